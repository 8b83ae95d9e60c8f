"""Checkpointing: intermediate results are computed again in backward instead of being kept.

The public names are in ``mpgrad.utils.checkpoint``.
"""
