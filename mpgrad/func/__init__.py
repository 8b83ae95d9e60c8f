"""``mg.func``: derivatives of functions, as functions.

The names are those of ``torch.func``; ``value_and_grad`` is the form of ``grad_and_value`` in JAX
and HIPS autograd. Arguments and results may be Tensors, or lists, tuples and dictionaries of them:
*trees*. All of them may be applied to each other, and to functions that use Tensors from outside.
"""

from __future__ import annotations

# Its functions make Tensors, which must have their methods.
import mpgrad.tensor_methods  # noqa: F401  isort: skip

from mpgrad.base.missing_names import missing_from as _missing_from
from mpgrad.func.derivatives import (
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    value_and_grad,
    vjp,
)
from mpgrad.func.module_calls import (
    functional_call,
    replace_all_batch_norm_modules_,
    stack_module_state,
)
from mpgrad.func.vectorized import vmap

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "replace_all_batch_norm_modules_",
    "stack_module_state",
    "value_and_grad",
    "vjp",
    "vmap",
]

__getattr__ = _missing_from(__name__)
