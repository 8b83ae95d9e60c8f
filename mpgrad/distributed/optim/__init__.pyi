"""The public names of mpgrad.distributed.optim, which ``__init__.py`` loads on first use."""

from mpgrad.distributed.optim.distributed_optimizer import (
    DistributedOptimizer as DistributedOptimizer,
)
