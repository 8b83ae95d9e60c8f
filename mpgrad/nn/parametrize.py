"""Tensors of Modules that are computed from others: ``mg.nn.utils.parametrize`` of PyTorch.

``register_parametrization(layer, "weight", Symmetric())`` lets ``layer.weight`` be
``Symmetric()(layer.parametrizations.weight.original)``, computed whenever it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, NoReturn

from mpgrad.base.context_manager import contextmanager
from mpgrad.base.thread_state import PerThread
from mpgrad.nn.containers import ModuleDict, ModuleList
from mpgrad.nn.module import Module
from mpgrad.nn.parameter import Parameter
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
    "transfer_parametrizations_and_params",
    "type_before_parametrizations",
]


class _Cache(PerThread):
    """Computed tensors inside of :func:`cached`, by Module and name."""

    depth = 0

    def __init__(self) -> None:
        self.tensors: dict[tuple[int, str], Tensor] = {}


_cache = _Cache()


@contextmanager
def cached() -> Iterator[None]:
    """Inside, each parametrized tensor is computed once."""
    _cache.depth += 1
    try:
        yield
    finally:
        _cache.depth -= 1
        if not _cache.depth:
            _cache.tensors.clear()


class ParametrizationList(ModuleList):
    """The functions of one tensor in their order, and what the first of them gets: ``original``, or
    ``original0``, ``original1`` ... if the inverse of the first gives several.

    Raises:
        ValueError: what the functions give has another shape or dtype than ``original``.
    """

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        super().__init__(modules)
        self.unsafe = unsafe
        given = self._first_original(original)
        _check_originals(given)
        self.is_tensor = isinstance(given, Tensor)
        self.ntensors = 1 if self.is_tensor else len(given)
        if self.is_tensor:
            if given.dtype != original.dtype:
                raise ValueError(
                    "When `right_inverse` outputs one tensor, it may not change the dtype: "
                    f"{original.dtype} became {given.dtype}"
                )
            with no_grad():
                original.data = given.detach()
            self._register("original", original)
        else:
            for at, value in enumerate(given):
                kept = value.detach()
                if isinstance(original, Parameter):
                    kept = Parameter(kept, original.requires_grad)
                self._register(f"original{at}", kept)
        if not unsafe:
            with no_grad():
                _check_alike(self(), original)

    def _register(self, name: str, value: Tensor) -> None:
        if isinstance(value, Parameter):
            self.register_parameter(name, value)
        else:
            self.register_buffer(name, value)

    def _first_original(self, value: Tensor) -> Any:
        """What the functions give ``value`` of; those without an inverse get it as it is."""
        given: Any = value
        with no_grad():
            for module in reversed(list(self)):
                inverse = getattr(module, "right_inverse", None)
                try:
                    given = given if inverse is None else inverse(given)
                except NotImplementedError:
                    continue
        return given

    def right_inverse(self, value: Tensor) -> None:
        """Let the computed tensor be ``value``, as far as the functions can give it.

        Raises:
            RuntimeError: a function has no inverse.
            ValueError: there are not as many originals as the inverse gives, or they have other
                shapes or dtypes.
        """
        given: Any = value
        with no_grad():
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(
                        f"parametrization {type(module).__name__} does not implement right_inverse."
                    )
                given = module.right_inverse(given)
        parts = [given] if isinstance(given, Tensor) else given
        kept = self._originals()
        if not isinstance(parts, Sequence):
            raise ValueError(
                f"'right_inverse' must return a sequence of tensors. Got {type(parts).__name__}."
            )
        if len(parts) != len(kept):
            raise ValueError(
                f"'right_inverse' must return a sequence of tensors of length {len(kept)}. Got a "
                f"sequence of length {len(parts)}."
            )
        for original, part in zip(kept, parts, strict=True):
            if not isinstance(part, Tensor):
                raise ValueError(f"`right_inverse` should return tensors, not {type(part)}")
            for what in ("dtype", "shape"):
                if getattr(part, what) != getattr(original, what):
                    raise ValueError(
                        f"The tensor returned by `right_inverse` has {what} {getattr(part, what)} "
                        f"while `original` has {what} {getattr(original, what)}"
                    )
        with no_grad():
            for original, part in zip(kept, parts, strict=True):
                original.data = part.detach()

    def _originals(self) -> list[Tensor]:
        if self.is_tensor:
            return [self.original]
        return [getattr(self, f"original{at}") for at in range(self.ntensors)]

    def forward(self) -> Tensor:
        """The tensor."""
        first, *rest = self
        value: Tensor = first(*self._originals())
        for module in rest:
            value = module(value)
        return value


def _check_originals(given: Any) -> None:
    """Raise ValueError unless it is a tensor, or a sequence of tensors."""
    if isinstance(given, Tensor):
        return
    if not isinstance(given, Sequence):
        raise ValueError(
            f"'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). Got "
            f"{type(given).__name__}"
        )
    for at, value in enumerate(given):
        if not isinstance(value, Tensor):
            raise ValueError(
                "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). "
                f"Got element {at} of the sequence with type {type(value).__name__}."
            )


def _check_alike(found: Any, original: Tensor) -> None:
    if not isinstance(found, Tensor):
        raise ValueError(f"A parametrization must return a tensor. Got {type(found).__name__}.")
    for what in ("dtype", "shape"):
        before, after = getattr(original, what), getattr(found, what)
        if before != after:
            raise ValueError(
                f"Registering a parametrization may not change the {what} of the tensor, unless "
                f"the `unsafe` flag is enabled: {before} became {after}"
            )


def _check_inverse(parametrization: Module, found: Tensor, before: Tensor) -> None:
    """Raise ValueError if the inverse gives no tensor like ``before``."""
    if not hasattr(parametrization, "right_inverse"):
        return
    with suppress(NotImplementedError):
        given = parametrization.right_inverse(found)
        if not isinstance(given, Tensor):
            raise ValueError(
                f"parametrization.right_inverse must return a tensor. Got: {type(given)}"
            )
        for what in ("dtype", "shape"):
            if getattr(given, what) != getattr(before, what):
                raise ValueError(
                    "The tensor returned by parametrization.right_inverse must have the same "
                    f"{what} as the parametrized tensor: {getattr(given, what)} is not "
                    f"{getattr(before, what)}"
                )


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Let a parameter or buffer be computed by ``parametrization`` from an original.

    Args:
        module: whose tensor it is; its class becomes one of its own.
        tensor_name: of the tensor.
        parametrization: a Module from a tensor to one of the same shape. Its method
            ``right_inverse``, if there is one, gives the original of the tensor's current value,
            which else stays what it is. It comes after those that are registered already, and
            changes what they give.
        unsafe: allow another shape or dtype.

    Raises:
        ValueError: there is no such tensor, or the shape or dtype would change.
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        functions = module.parametrizations[tensor_name]
        before = getattr(module, tensor_name).detach()
        if not unsafe:
            with no_grad():
                found = parametrization(before)
                _check_alike(found, before)
                _check_inverse(parametrization, found, before)
        functions.append(parametrization)
        functions.unsafe |= unsafe
        return module
    if tensor_name not in {**module._parameters, **module._buffers}:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element "
            f"with name '{tensor_name}'"
        )
    original = getattr(module, tensor_name)
    functions = ParametrizationList([parametrization], original, unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        module.__class__ = _parametrized(type(module), ())
        module.parametrizations = ModuleDict()
    setattr(type(module), tensor_name, _property(tensor_name))
    module.parametrizations[tensor_name] = functions
    return module


def _parametrized(kind: type[Module], names: Sequence[str]) -> type[Module]:
    """A class for one Module, whose tensors of these names are computed."""
    members = {
        "parametrized": kind,
        "__deepcopy__": _deep_copy,
        "__getstate__": _refuse_pickling,
        "_reduce_by_value": _reduce_by_value,
        **{name: _property(name) for name in names},
    }
    return type(f"Parametrized{kind.__name__}", (kind,), members)


def _property(name: str) -> property:
    def get(self: Module) -> Tensor:
        functions = self.parametrizations[name]
        if not _cache.depth:
            return functions()  # type: ignore[no-any-return]
        key = (id(self), name)
        if key not in _cache.tensors:
            _cache.tensors[key] = functions()
        return _cache.tensors[key]

    def put(self: Module, value: Tensor) -> None:
        self.parametrizations[name].right_inverse(value)

    return property(get, put)


def _deep_copy(self: Module, memo: dict[int, Any]) -> Module:
    made = type(self).__new__(type(self))
    memo[id(self)] = made
    vars(made).update(deepcopy(vars(self), memo))
    return made


def _reduce_by_value(self: Module) -> Any:
    """How it travels to a worker."""
    return _rebuilt, (type(self).parametrized, tuple(self.parametrizations)), vars(self)  # type: ignore


def _rebuilt(kind: type[Module], names: Sequence[str]) -> Module:
    made = _parametrized(kind, names)
    return made.__new__(made)


def _refuse_pickling(self: Module) -> NoReturn:
    raise RuntimeError(
        "Serialization of parametrized modules is only supported through state_dict(). Save that, "
        "or remove the parametrizations first."
    )


def type_before_parametrizations(module: Module) -> type[Module]:
    """The class of ``module``, without what parametrizations made of it."""
    return type(module).parametrized if is_parametrized(module) else type(module)  # type: ignore


def transfer_parametrizations_and_params(
    from_module: Module, to_module: Module, tensor_name: str | None = None
) -> Module:
    """Give ``to_module`` the parametrizations of ``from_module``, and its originals.

    Args:
        from_module: whose parametrizations they are.
        to_module: where they are shared.
        tensor_name: of one tensor only.
    """
    if not is_parametrized(from_module):
        return to_module
    for name in [tensor_name] if tensor_name else list(from_module.parametrizations):
        functions = from_module.parametrizations[name]
        if not hasattr(to_module, name):
            setattr(to_module, name, Parameter(getattr(from_module, name)))
        for function in functions:
            register_parametrization(to_module, name, function)
        there = to_module.parametrizations[name]
        for at, original in enumerate(functions._originals()):
            setattr(there, "original" if functions.is_tensor else f"original{at}", original)
    return to_module


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a tensor of ``module`` (that one, if it is named) is computed."""
    functions = module._modules.get("parametrizations")
    if not isinstance(functions, ModuleDict):
        return False
    return len(functions) > 0 if tensor_name is None else tensor_name in functions


def remove_parametrizations(
    module: Module, tensor_name: str, leave_parametrized: bool = True
) -> Module:
    """Let a tensor be a parameter or buffer again.

    Args:
        module: whose tensor it is.
        tensor_name: of the tensor.
        leave_parametrized: it keeps the computed value; else it becomes the original again.

    Raises:
        ValueError: it is not parametrized, or there are several originals to become.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    functions = module.parametrizations[tensor_name]
    if not functions.is_tensor and not leave_parametrized:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is "
            "parametrized in terms of a sequence of tensors."
        )
    first = functions._originals()[0]
    if leave_parametrized:
        value = getattr(module, tensor_name).detach()
        if functions.is_tensor:
            first.data = value
        else:
            first = Parameter(value, first.requires_grad) if isinstance(first, Parameter) else value
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    if isinstance(first, Parameter):
        module.register_parameter(tensor_name, first)
    else:
        module.register_buffer(tensor_name, first)
    if not is_parametrized(module):
        delattr(module, "parametrizations")
        module.__class__ = type(module).parametrized  # type: ignore[attr-defined]
    return module
