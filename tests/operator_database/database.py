"""What the database holds: public names, samples of their arguments, and wrong arguments.

It comes with PyTorch (``torch.testing._internal``) and is loaded by :func:`operators` alone.
"""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from tests.operator_database import layers_and_optimizers

#: Operators that draw random numbers or leave memory as it is: shapes and dtypes alone are theirs.
_RANDOM = """
bernoulli empty empty_like empty_permuted empty_strided multinomial new_empty new_empty_strided
normal cauchy exponential geometric log_normal uniform
rand_like randint randint_like randn randn_like svd_lowrank pca_lowrank
nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout
nn.functional.feature_alpha_dropout nn.functional.rrelu nn.functional.fractional_max_pool2d
nn.functional.fractional_max_pool3d nn.functional.multi_head_attention_forward
"""
RANDOM = frozenset(_RANDOM.split())
#: Operators whose vectors are determined up to a sign or a phase: sizes alone are compared.
UP_TO_SIGN = frozenset({"linalg.eig", "linalg.eigh"})
#: Entries that are no operators of PyTorch's interface.
NOT_PUBLIC = frozenset({"slice", "sparse.mm", "to_sparse", "hash_tensor", "_chunk_cat"})


#: NumPy has no arrays of more.
MOST_DIMENSIONS = 64


class CannotBeHad(Exception):
    """A sample holds something that NumPy or mpgrad has nothing for."""


def operators() -> dict[str, list[Any]]:
    """The entries of the database by public name."""
    # It imports a package for expected texts, of which it needs one class that is never used.
    stand_in: Any = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase
    sys.modules.setdefault("expecttest", stand_in)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    found: dict[str, list[Any]] = {}
    for entry in op_db:
        if not is_private(entry.name):
            found.setdefault(entry.name, []).append(entry)
    return dict(sorted(found.items()))


def entries() -> dict[str, list[Any]]:
    """The entries of all databases by public name: operators, layers and optimizers."""
    return operators() | layers_and_optimizers.layers() | layers_and_optimizers.optimizers()


def is_random(name: str, keywords: dict[str, Any]) -> bool:
    """Whether a call gives other numbers each time, or none that mean anything."""
    random = RANDOM | layers_and_optimizers.RANDOM_LAYERS
    return name in random or bool(keywords.get("dropout_p"))


def is_private(name: str) -> bool:
    """Whether a name of the database is none that a program would use."""
    last = name.rpartition(".")[2]
    return (
        name in NOT_PUBLIC
        or name.startswith(("torch.", "jiterator", "sparse.", "native_", "unsafe_"))
        or (last.startswith("_") and not last.startswith("__"))
        or last.endswith(("_backward", "_copy"))
    )


def function_named(library: Any, name: str) -> Any:
    """``library``'s function of that name, else its method, or that in place; None if there is
    none of them."""
    found = library
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found):
        return found
    return getattr(library.Tensor, name, None) or getattr(library.Tensor, f"{name}_", None)


def function_for(library: Any, torch: Any, name: str, entry: Any) -> Any:
    """What is called with the arguments of ``entry``: ``library``'s function of that name, or the
    entry's own function around it, if the arguments are for that."""
    if is_wrapped(entry):
        return _with_sizes_alone(name, _rebuilt(entry.op, library, torch))
    return plain_function(library, name)


class _WithMethods:
    """A library whose methods are functions, too, where it lacks these."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        if hasattr(self._library, name) or not hasattr(self._library.Tensor, name):
            return getattr(self._library, name)
        return getattr(self._library.Tensor, name)


def plain_function(library: Any, name: str) -> Any:
    """``library``'s function of that name, or one that makes and uses its layer or optimizer."""
    found = function_named(library, name)
    if layers_and_optimizers.is_layer(name):
        return layers_and_optimizers.layer_function(library, found)
    if layers_and_optimizers.is_optimizer(name):
        return layers_and_optimizers.optimizer_function(library, found)
    return _with_sizes_alone(name, found)


def is_wrapped(entry: Any) -> bool:
    """Whether the arguments of ``entry`` are for a function of the database itself."""
    return isinstance(entry.op, types.FunctionType) and _is_of_database(entry.op)


def _with_sizes_alone(name: str, function: Any) -> Any:
    if name not in UP_TO_SIGN:
        return function
    return lambda *args, **kwargs: _without_signs(function(*args, **kwargs))


#: It draws the same random numbers for each call of what it is given.
_SEEDS = ("wrapper_set_seed",)


def _without_signs(factors: Any) -> Any:
    first, *vectors = factors
    return (first, *(vector.abs() for vector in vectors))


def _is_of_database(function: types.FunctionType) -> bool:
    return function.__module__.startswith("torch.testing.")


def _rebuilt(function: types.FunctionType, library: Any, torch: Any) -> Any:
    """A function of the database, for which ``torch`` is ``library``."""
    if library is torch:
        return function
    names = dict(function.__globals__)
    for name in function.__code__.co_names:
        value = names.get(name)
        if isinstance(value, types.FunctionType) and _is_of_database(value) and name not in _SEEDS:
            names[name] = _rebuilt(value, library, torch)
    names |= {"torch": _WithMethods(library), "F": library.nn.functional}
    cells = tuple(
        types.CellType(converted(cell.cell_contents, library, torch))
        for cell in function.__closure__ or ()
    )
    made = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, cells
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def samples(entry: Any, dtype: Any, most: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """At most that many samples of one entry, evenly from all: arguments, keyword arguments."""
    if dtype not in entry.supported_dtypes("cpu"):
        return
    found = list(islice(entry.sample_inputs("cpu", dtype, requires_grad=False), 200))
    step = max(1, -(-len(found) // most))
    for sample in found[::step]:
        yield (sample.input, *sample.args), sample.kwargs


def wrong_arguments(entry: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What PyTorch refuses."""
    # Python's operators cannot tell that the left one of two operands should have been a tensor.
    if entry.error_inputs_func is None or entry.name.startswith("__"):
        return
    for error in entry.error_inputs("cpu"):
        sample = error.sample_input
        yield (sample.input, *sample.args), sample.kwargs


def converted(value: Any, library: Any, torch: Any) -> Any:
    """``value`` for ``library``: its tensors, dtypes and devices in place of PyTorch's, copied.

    Raises:
        CannotBeHad: there is nothing for it.
    """
    if isinstance(value, torch.Tensor):
        return tensor_for(value, library, torch)
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, list | tuple):
        items = [converted(item, library, torch) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: converted(item, library, torch) for key, item in value.items()}
    if isinstance(value, torch.dtype | torch.memory_format):
        if library is torch:
            return value
        name = str(value).removeprefix("torch.")
        if not hasattr(library, name):
            raise CannotBeHad(name)
        return getattr(library, name)
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, torch.Generator | torch.layout):
        raise CannotBeHad(type(value).__name__)
    if library is not torch:
        return _of_library(value, library, torch)
    return value


def _of_library(value: Any, library: Any, torch: Any) -> Any:
    """A function, class or plain layer of PyTorch, as ``library``'s."""
    if isinstance(value, types.FunctionType) and _is_of_database(value):
        return _rebuilt(value, library, torch)
    if isinstance(value, torch.nn.Module):
        try:
            return function_named(library, f"nn.{type(value).__name__}")()
        except TypeError:  # its arguments are not told
            raise CannotBeHad(type(value).__name__) from None
    module = getattr(value, "__module__", None) or ""
    if callable(value) and (module.startswith("torch") or value in vars(torch).values()):
        path = f"{module}.{value.__name__}".removeprefix("torch.").replace("modules.", "")
        for name in (path, value.__name__, f"nn.functional.{value.__name__}"):
            if function_named(library, name) is not None:
                return function_named(library, name)
        raise CannotBeHad(path)
    return value


def tensor_for(tensor: Any, library: Any, torch: Any) -> Any:
    """A copy of one of PyTorch's tensors, whose dimensions lie in memory in the same order."""
    if tensor.ndim > MOST_DIMENSIONS:
        raise CannotBeHad(f"{tensor.ndim} dimensions")
    if tensor.layout != torch.strided or tensor.dtype in (torch.bfloat16, torch.complex32):
        raise CannotBeHad(str(tensor.dtype))
    if library is torch:
        return tensor.detach().clone()
    try:
        array = tensor.detach().resolve_conj().resolve_neg().numpy()
    except TypeError:
        raise CannotBeHad(str(tensor.dtype)) from None
    return library.from_numpy(np.array(array, order="K", copy=True))


def tensors_in(values: Iterable[Any], library: Any) -> list[Any]:
    """All tensors among arguments, inside lists and dictionaries too."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, library.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_in(value, library)
        elif isinstance(value, dict):
            found += tensors_in(value.values(), library)
    return found
