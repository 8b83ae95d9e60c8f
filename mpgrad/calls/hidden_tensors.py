"""Tensors that an object's own pickling turns into something else: they would get no gradient."""

from __future__ import annotations

from typing import Any

_HIDDEN = (
    "{name} pickles its tensors in a form of its own, as bytes for example, so they would get no "
    "gradient. Pass its Module or its tensors, or call under no_grad()"
)


def leaves_at_risk(obj: Any, tensor_class: type[Any]) -> list[Any]:
    """The tensors that require grad, of an object that says how it is pickled: in its attributes,
    and in the Modules among these."""
    cls, held = type(obj), getattr(obj, "__dict__", None)
    if type(held) is not dict or not held:
        return []
    if (cls.__reduce__, cls.__reduce_ex__, cls.__getstate__) == _OF_OBJECTS:
        return []
    found = []
    for one in (obj, *held.values()):
        if isinstance(one, tensor_class):
            found.append(one)
        elif "_parameters" in getattr(one, "__dict__", ()) and hasattr(type(one), "parameters"):
            found += one.parameters()
    return [one for one in found if one.requires_grad and one.is_leaf]


def hidden(obj: Any) -> TypeError:
    """The error for such an object."""
    return TypeError(_HIDDEN.format(name=type(obj).__qualname__))


_OF_OBJECTS = object.__reduce__, object.__reduce_ex__, object.__getstate__
