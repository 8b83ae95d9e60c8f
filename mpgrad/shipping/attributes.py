"""The attributes that forward has set on ctx: whether they may be sent to a worker, and how.

They are sent unchanged when the backward begins. So a value may be sent if nothing can change it
afterwards that a backward in this process would notice, and if backward cannot distinguish it from
a copy.
"""

from __future__ import annotations

import copyreg
import io
import operator
import pickle
import types
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import numpy as np

from mpgrad.autograd.function import Function
from mpgrad.shipping.constants import (
    PRIVATE,
    field_values,
    is_constant,
    is_enum_member,
    is_frozen_dataclass,
    is_private_proxy,
    references,
    why_no_copy,
)
from mpgrad.shipping.contents import reduce_array
from mpgrad.shipping.findings import article
from mpgrad.shipping.installed_state import is_known_name
from mpgrad.shipping.loading import tensor_over, thaw
from mpgrad.tensors.tensor import Tensor
from mpgrad.wire.code_pickles import CodePickler


def attributes_reason(attributes: dict[str, Any]) -> str:
    """Why a ctx with these attributes should stay in the client; empty if it may be sent.

    A copy of a list is as good as the list only if nobody else holds it: backward could change a
    list that the caller shares, and the caller would not see it.
    """
    for name in attributes:
        reason = _item_reason(attributes, name)
        if reason:
            return f"`ctx.{name}` is {article(type(attributes[name]).__name__)}{reason}"
    return ""


def are_scalars(attributes: dict[str, Any]) -> bool:
    """Whether they all are plain numbers and texts, which may always be sent."""
    values = attributes.values()
    # Of these types only a float can be a NaN, which alone differs from itself.
    return _SCALARS.issuperset(map(type, values)) and not [1 for value in values if value != value]


def attributes_words(cls: type[Function], reason: str) -> str:
    """``attributes_reason`` as a sentence, with the remedy."""
    if reason.endswith(_NOT_SENT):
        return (
            f"in {cls.__qualname__}, {reason}. Set what it is made of on ctx, as arrays, numbers "
            "or sparse matrices, and make it again in backward"
        )
    return (
        f"in {cls.__qualname__}, {reason}. Set the values that backward needs on ctx as arrays, "
        "numbers, tuples or a frozen dataclass; or set run_on = "
        f'"worker" on {cls.__qualname__}, which promises that nothing changes it'
    )


#: The end of the reason for an object that cannot be pickled.
_NOT_SENT = ", which cannot be pickled"
_CODE = (types.FunctionType, property)


def _item_reason(container: Any, key: Any) -> str:
    """Why ``container[key]`` may not be sent; ``container`` itself is known to be private."""
    kind = type(container[key])
    if kind not in (list, dict):
        return _value_reason(container[key])
    if references(container, key) > PRIVATE:
        return f" that is also held elsewhere, which can change (set {kind.__name__}() of it)"
    inner = container[key]
    if kind is dict and not is_constant(tuple(inner)):
        return " with keys that may change"
    return next(filter(None, (_item_reason(inner, k) for k in _keys(inner))), "")


def _keys(container: Any) -> Any:
    return tuple(container) if isinstance(container, dict) else range(len(container))


def _value_reason(value: Any) -> str:
    if is_constant(value) or isinstance(value, np.ufunc):
        return why_no_copy(value)
    kind = type(value)
    if kind is np.ndarray:
        if value.dtype.hasobject:
            return " with elements that are Python objects"
        return _gaps_reason(value)
    if kind is Tensor:
        if value.requires_grad:
            return " that requires grad (use save_for_backward)"
        return _gaps_reason(value._array)
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
    if kind in (types.FunctionType, types.BuiltinFunctionType, type) and is_known_name(value):
        return ""
    if kind is types.FunctionType:
        return ", whose code is not looked through (backward may call it by its global name)"
    if kind.__module__.partition(".")[0] == "pathlib":
        return ", whose methods read and write files (use str() of it)"
    return _NOT_SENT if _has_no_pickle(value) else ", which can change"


def _has_no_pickle(value: Any) -> bool:
    """Whether it is known, without any code of the user, that pickle refuses ``value``."""
    kind = type(value)
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return False
    if kind in copyreg.dispatch_table or isinstance(getattr(kind, "__getstate__", None), _CODE):
        return False
    try:
        object.__reduce_ex__(value, 2)
    except TypeError:
        return True
    return False


def _gaps_reason(array: Any) -> str:
    """A worker gets a copy, and NumPy may round otherwise where elements lie otherwise."""
    if type(array) is not np.ndarray or array.flags.forc:
        return ""
    return " with gaps between its elements, which a copy has not (use np.ascontiguousarray)"


def _is_namedtuple(kind: type) -> bool:
    return kind.__bases__ == (tuple,) and "_fields" in vars(kind)


def _mapping_reason(value: types.MappingProxyType[Any, Any]) -> str:
    """A proxy is constant only if nobody else has the dictionary behind it."""
    if not is_private_proxy(value):
        return " of a dictionary that is also held elsewhere, which can change"
    if not is_constant(tuple(value)):
        return " with keys that may change"
    return next(filter(None, map(_value_reason, value.values())), "")


# ---------------------------------------------------------------------- changed by backward


def containers_in(attributes: dict[str, Any]) -> dict[str, Any]:
    """The lists and dictionaries among ``attributes``, in copies that keep what they hold now."""
    return {name: _copied(value) for name, value in attributes.items() if type(value) in _CHANGED}


def changed_containers(attributes: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The current content of the containers that backward has changed since ``containers_in``."""
    return {
        name: attributes[name]
        for name, old in before.items()
        if name in attributes and not _holds(attributes[name], old)
    }


_CHANGED = (list, dict)


def _copied(value: Any) -> Any:
    if type(value) is list:
        return [_copied(item) for item in value]
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value


def _holds(value: Any, old: Any) -> bool:
    """Whether ``value`` holds the same objects as ``old`` in the same order, by identity."""
    if type(value) is not type(old) or type(value) not in _CHANGED:
        return value is old
    if len(value) != len(old):
        return False
    if type(value) is dict and not all(map(operator.is_, value, old)):
        return False
    return all(_holds(value[key], old[key]) for key in _keys(old))


#: Those of SciPy's sparse formats that are a few arrays.
_SPARSE = frozenset({"csr", "csc", "coo", "bsr", "dia"})


def _is_sparse(value: Any) -> bool:
    kind = type(value)
    if not kind.__module__.startswith("scipy.sparse.") or not is_known_name(kind):
        return False
    return getattr(value, "format", None) in _SPARSE and not value.dtype.hasobject


# ---------------------------------------------------------------------- classes of the user


def classes_in(attributes: dict[str, Any]) -> tuple[type, ...]:
    """The user's classes among the types of these attributes, each once, in a fixed order.

    They are sent with the Function, by value, so that the class that backward names is the class of
    the values on ctx.
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
        if not is_known_name(kind):
            found[kind] = None
        inner = value if isinstance(value, tuple) else field_values(value)
    for item in inner:
        _collect(item, found)


#: The types of most attributes of a ctx.
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, np.ndarray, Tensor})


def pack_attributes(
    attributes: dict[str, Any], classes: tuple[type, ...], out_of_band: Callable[[Any], None]
) -> bytes:
    """The attributes of a ctx, pickled; classes that are sent with its Function are numbers.

    Args:
        attributes: the attributes.
        classes: the result of ``classes_in``.
        out_of_band: gets the buffers of arrays.
    """
    if not attributes:
        return b""
    if _SCALARS.issuperset(map(type, attributes.values())):
        return pickle.dumps(attributes, protocol=5)
    stream = io.BytesIO()
    pickler = _AttributePickler(stream, protocol=5, buffer_callback=out_of_band)
    if classes:
        numbers = {other: number for number, other in enumerate(classes)}
        pickler.persistent_id = lambda value: (  # type: ignore[method-assign]
            numbers.get(value) if isinstance(value, type) else None
        )
    pickler.dump(attributes)
    return stream.getvalue()


#: They never change and do not need cloudpickle, which takes five times as long.
_SCALARS = frozenset({bool, int, float, str, bytes, type(None)})


class _AttributePickler(CodePickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is complex:  # copyreg has an entry for it, which can be replaced
            return complex, (obj.real, obj.imag)
        if _is_sparse(obj):
            # SciPy may sort its arrays in place: a worker needs them in memory of its own.
            return thaw, (pickle.dumps(obj, protocol=5),)
        if type(obj) is np.ndarray and not obj.flags.forc and not obj.dtype.hasobject:
            return reduce_array(obj)
        if type(obj) is Tensor and type(obj._array) is np.ndarray and not obj.requires_grad:
            return tensor_over, (obj._array, vars(obj))
        return super().reducer_override(obj)
