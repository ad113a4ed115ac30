"""A provider to copy: it runs as it is, and its TODOs say what to put in place of the toy."""
