"""PyTorch's own database of operators, with its samples, as the oracle of mpgrad's."""
