"""The devices of arrays, and everything of GPUs.

Not here: Tensors, derivatives, and which Nodes run where. Begin with ``device_arrays``.
"""
