"""The mistakes, one function each, grouped by what they get wrong."""
