"""``mg.utils.checkpoint``: the public names of ``mpgrad.autograd.checkpointing``."""

from __future__ import annotations

# Functions return Tensors, which must have their methods.
import mpgrad.tensor_methods  # noqa: F401  isort: skip

from mpgrad.autograd.checkpointing.checkpointed_call import checkpoint as checkpoint
from mpgrad.autograd.checkpointing.checkpointed_call import (
    checkpoint_sequential as checkpoint_sequential,
)
from mpgrad.autograd.checkpointing.checkpointed_call import noop_context_fn as noop_context_fn
from mpgrad.autograd.checkpointing.device_states import get_device_states as get_device_states
from mpgrad.autograd.checkpointing.device_states import set_device_states as set_device_states
from mpgrad.autograd.checkpointing.recomputation import CheckpointError as CheckpointError
from mpgrad.autograd.checkpointing.recomputation import GraphExecGroup as GraphExecGroup
from mpgrad.autograd.checkpointing.reentrant_checkpoint import (
    CheckpointFunction as CheckpointFunction,
)
from mpgrad.autograd.checkpointing.reentrant_checkpoint import (
    check_backward_validity as check_backward_validity,
)
from mpgrad.autograd.checkpointing.reentrant_checkpoint import detach_variable as detach_variable
from mpgrad.autograd.checkpointing.selective import CheckpointPolicy as CheckpointPolicy
from mpgrad.autograd.checkpointing.selective import (
    SelectiveCheckpointContext as SelectiveCheckpointContext,
)
from mpgrad.autograd.checkpointing.selective import (
    create_selective_checkpoint_contexts as create_selective_checkpoint_contexts,
)
from mpgrad.autograd.checkpointing.settings import (
    set_checkpoint_debug_enabled as set_checkpoint_debug_enabled,
)
from mpgrad.autograd.checkpointing.settings import (
    set_checkpoint_early_stop as set_checkpoint_early_stop,
)

__all__ = [
    "CheckpointError",
    "CheckpointFunction",
    "CheckpointPolicy",
    "GraphExecGroup",
    "SelectiveCheckpointContext",
    "check_backward_validity",
    "checkpoint",
    "checkpoint_sequential",
    "create_selective_checkpoint_contexts",
    "detach_variable",
    "get_device_states",
    "noop_context_fn",
    "set_checkpoint_debug_enabled",
    "set_checkpoint_early_stop",
    "set_device_states",
]
