"""What can be changed about how ranks train together, with the names of PyTorch."""
