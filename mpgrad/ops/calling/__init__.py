"""What operators' arguments mean: dtypes, dimensions, ``out=``, older orders of arguments.

Not here: operators. Begin with ``dimensions``.
"""
