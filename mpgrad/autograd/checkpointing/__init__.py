"""Checkpointing: intermediate results are computed again in backward instead of being kept.

The public names are in ``mpgrad.utils.checkpoint``. Not here: what saves tensors when nothing is
computed again. Begin with ``checkpointed_call``.
"""
