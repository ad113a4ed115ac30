"""Providers to read and to try out."""
