"""The engine: executes a frozen graph in this process or in workers.

Not here: decisions while a graph runs in workers (``scheduler``), and formulas (``ops``). Begin
with ``engine``.
"""
