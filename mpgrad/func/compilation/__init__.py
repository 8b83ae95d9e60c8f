"""``mg.compile``: functions of Tensors as straight-line programs of NumPy calls."""
