"""Stubs of the package bigfleet.v1alpha1, which all BigFleet components and providers speak."""
