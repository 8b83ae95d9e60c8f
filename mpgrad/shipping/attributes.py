"""What forward has put on ctx: whether it may travel to a worker, and how.

It is sent as it is when the backward begins, so it may travel if nobody can change it from then on
where a backward of this process would see the change, and if backward cannot tell a copy from it.
"""

from __future__ import annotations

import gc
import io
import pickle
import sys
import types
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import cloudpickle
import numpy as np

from mpgrad.autograd.function import Function
from mpgrad.shipping.constants import (
    field_values,
    has_own_order,
    is_constant,
    is_enum_member,
    is_frozen_dataclass,
)
from mpgrad.shipping.findings import article
from mpgrad.shipping.installed_state import is_installed_name, is_trusted
from mpgrad.shipping.loading import thaw
from mpgrad.tensors.tensor import Tensor


def attributes_reason(attributes: dict[str, Any]) -> str:
    """Why a ctx with these attributes should stay in the client; empty if it may travel.

    A copy of a list is as good as the list only where nobody else holds it: a list that the caller
    shares could be changed by backward, which the caller would then miss.
    """
    for name in attributes:
        reason = _item_reason(attributes, name)
        if reason:
            return f"`ctx.{name}` is {article(type(attributes[name]).__name__)}{reason}"
    return ""


def attributes_words(cls: type[Function], reason: str) -> str:
    """``attributes_reason`` as a sentence, with the remedy."""
    return (
        f"in {cls.__qualname__}, {reason}. Put what backward needs of it on ctx as arrays, "
        "numbers, tuples or a frozen dataclass; or set run_on = "
        f'"worker" on {cls.__qualname__}, which promises that nobody changes it'
    )


def _references(container: Any, key: Any) -> int:
    value = container[key]
    return sys.getrefcount(value)


#: What `_references` counts for a value that only its container holds (it differs by interpreter).
_PRIVATE = _references([[]], 0)


def _item_reason(container: Any, key: Any) -> str:
    """Why ``container[key]`` may not travel; ``container`` itself is known to be private."""
    kind = type(container[key])
    if kind not in (list, dict):
        return _value_reason(container[key])
    if _references(container, key) > _PRIVATE:
        return " that is also held elsewhere, which can change"
    inner = container[key]
    if kind is dict and not is_constant(tuple(inner)):
        return " with keys that may change"
    return next(filter(None, (_item_reason(inner, k) for k in _keys(inner))), "")


def _keys(container: Any) -> Any:
    return tuple(container) if isinstance(container, dict) else range(len(container))


def _value_reason(value: Any) -> str:
    if is_constant(value) or isinstance(value, np.ufunc):
        return ", whose order differs in each process" if has_own_order(value) else ""
    kind = type(value)
    if kind is np.ndarray:
        return " with elements that are Python objects" if value.dtype.hasobject else ""
    if kind is Tensor:
        return " that requires grad (use save_for_backward)" if value.requires_grad else ""
    if kind is slice:
        return _value_reason((value.start, value.stop, value.step))
    if kind is tuple or _is_namedtuple(kind):
        return next(filter(None, map(_value_reason, value)), "")
    if is_frozen_dataclass(value):
        return next(filter(None, map(_value_reason, field_values(value))), "")
    if kind is types.MappingProxyType:
        return _mapping_reason(value)
    if is_enum_member(value) or _is_sparse(value):
        return ""
    if kind in (types.FunctionType, types.BuiltinFunctionType, type) and is_installed_name(value):
        return "" if is_trusted(value.__module__) else ", whose settings can change"
    return ", which can change"


def _is_namedtuple(kind: type) -> bool:
    return kind.__bases__ == (tuple,) and "_fields" in vars(kind)


def _mapping_reason(value: types.MappingProxyType[Any, Any]) -> str:
    """A proxy is as constant as the dictionary behind it: nobody else may have that."""
    behind = gc.get_referents(value)
    if len(behind) != 1 or _references(behind, 0) > _PRIVATE + 1:
        return " of a dictionary that is also held elsewhere, which can change"
    if not is_constant(tuple(value)):
        return " with keys that may change"
    return next(filter(None, map(_value_reason, value.values())), "")


#: Those of SciPy's sparse formats that are a few arrays.
_SPARSE = frozenset({"csr", "csc", "coo", "bsr", "dia"})


def _is_sparse(value: Any) -> bool:
    kind = type(value)
    if not kind.__module__.startswith("scipy.sparse.") or not is_installed_name(kind):
        return False
    return getattr(value, "format", None) in _SPARSE and not value.dtype.hasobject


# ---------------------------------------------------------------------- classes of the user


def classes_in(attributes: dict[str, Any]) -> tuple[type, ...]:
    """The user's classes among the types of what may travel, each once, in a fixed order.

    They travel with the Function, by value: so the very class that backward names is that of the
    values on ctx.
    """
    found: dict[type, None] = {}
    for value in attributes.values():
        _collect(value, found)
    return tuple(found)


def _collect(value: Any, found: dict[type, None]) -> None:
    kind = type(value)
    if kind in _PLAIN:
        return
    inner: Iterable[Any] = ()
    if kind in (list, tuple):
        inner = value
    elif kind in (dict, types.MappingProxyType):
        inner = value.values()
    elif _is_namedtuple(kind) or "__dataclass_fields__" in vars(kind) or isinstance(value, Enum):
        if not is_installed_name(kind):
            found[kind] = None
        inner = value if isinstance(value, tuple) else field_values(value)
    for item in inner:
        _collect(item, found)


#: Most of what stands on a ctx.
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, np.ndarray, Tensor})


def pack_attributes(
    attributes: dict[str, Any], classes: tuple[type, ...], out_of_band: Callable[[Any], None]
) -> bytes:
    """The attributes of a ctx, pickled; classes that travel with its Function stand as numbers.

    Args:
        attributes: what is on the ctx.
        classes: what ``classes_in`` found.
        out_of_band: gets the buffers of arrays.
    """
    if not attributes:
        return b""
    if all(type(value) in _SCALARS for value in attributes.values()):
        return pickle.dumps(attributes, protocol=5)
    stream = io.BytesIO()
    pickler = _Pickler(stream, protocol=5, buffer_callback=out_of_band)
    if classes:
        numbers = {other: number for number, other in enumerate(classes)}
        pickler.persistent_id = lambda value: (  # type: ignore[method-assign]
            numbers.get(value) if isinstance(value, type) else None
        )
    pickler.dump(attributes)
    return stream.getvalue()


#: Nothing in them needs cloudpickle, which takes five times as long.
_SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if _is_sparse(obj):
            # SciPy may sort its arrays in place: a worker needs them in memory of its own.
            return thaw, (pickle.dumps(obj, protocol=5),)
        return super().reducer_override(obj)
