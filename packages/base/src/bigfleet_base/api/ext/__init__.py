"""Services of our own, beside the common contract."""
