"""What operators' arguments mean: dtypes, dimensions, ``out=``, older orders of arguments."""
