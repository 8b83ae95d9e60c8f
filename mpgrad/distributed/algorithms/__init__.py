"""What can be changed about how ranks train together, with the names of PyTorch.

It has folders only, for the sake of their names. Begin with ``ddp_comm_hooks``.
"""
