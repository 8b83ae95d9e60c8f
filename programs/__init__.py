"""Public PyTorch programs, unchanged, with PyTorch and with mpgrad: ``scripts/programs``."""
