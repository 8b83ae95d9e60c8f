"""The command line: ``mpgrad run``, ``mpgrad demo``, ``mpgrad doctor``."""
