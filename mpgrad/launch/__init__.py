"""The command line: ``mpgrad run``, ``mpgrad top``, ``mpgrad doctor``."""
