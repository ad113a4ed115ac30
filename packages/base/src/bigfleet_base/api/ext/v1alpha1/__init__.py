"""Stubs of the package bigfleet.ext.v1alpha1."""
