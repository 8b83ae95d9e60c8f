"""The command line: ``mpgrad run``, ``mpgrad top``, ``mpgrad doctor``.

Not here: what the commands do to a program: each has its own module elsewhere. Begin with ``cli``.
"""
