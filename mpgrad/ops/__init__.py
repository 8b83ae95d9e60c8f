"""The operators: each forward and its derivative formulas, family by family.

Not here: how an operator is called and recorded (``recording.dispatch``), and arrays. Begin with
``catalogue``.
"""
