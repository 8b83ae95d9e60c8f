"""The functions of the array namespace on NumPy arrays."""
