"""How messages go between hosts: their frames, and the contract of a carrier."""
