"""A folder for ``sys.path``, where ``import torch`` finds mpgrad."""
