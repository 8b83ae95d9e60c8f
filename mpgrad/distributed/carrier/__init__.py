"""How messages go between hosts: their frames, and the contract of a carrier.

Not here: what the messages mean to anybody. Begin with ``contract``.
"""
