"""The page about a profile: figures, advice, a timeline and the graph, in one HTML file.

Not here: what a profile notes (``autograd.profiling``). Begin with ``page``.
"""
