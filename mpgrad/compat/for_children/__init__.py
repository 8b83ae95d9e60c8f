"""A folder for ``sys.path``, where ``import torch`` finds mpgrad.

Nothing else may be in it: every folder in it would be a module of the program. Begin with
``torch``.
"""
