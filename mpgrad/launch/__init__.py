"""The command line: ``mpgrad run``, ``mpgrad replay``, ``mpgrad doctor``."""
