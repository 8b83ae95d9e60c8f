"""How the ranks of a job are started: on one host, on several, or by Ray.

Not here: what ranks do once they run. Begin with ``ranks``.
"""
