"""Weights that are computed before each forward: ``weight_norm`` and ``spectral_norm``."""

from __future__ import annotations

from typing import Any, TypeVar

from mpgrad.nn.module import Module
from mpgrad.nn.module_hooks import BeforeForward
from mpgrad.nn.parameter import Parameter, is_uninitialized
from mpgrad.ops.linear_algebra.matrix_products import mv
from mpgrad.ops.linear_algebra.norms import norm, normalize
from mpgrad.ops.random import randn
from mpgrad.ops.shapes.shape import movedim, reshape
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor

Kind = TypeVar("Kind", bound=Module)


def length_along(weight: Tensor, dim: int) -> Tensor:
    """The norm over all dimensions but ``dim`` (over all for -1), which keep length 1."""
    if dim == -1:
        return norm(weight)
    others = [d for d in range(weight.ndim) if d != dim % weight.ndim]
    return norm(weight, 2, others, keepdim=True) if others else weight.abs()


class _WeightNorm:
    """The hook of ``weight_norm``: its weight has the length ``g`` and the direction ``v``."""

    #: What it assigns is no state: it is computed anew whenever it is needed.
    computes_before_forward = True

    def __init__(self, name: str, dim: int) -> None:
        self.name, self.dim = name, dim

    def compute(self, module: Module) -> Tensor:
        """The weight."""
        g, v = (getattr(module, f"{self.name}_{part}") for part in "gv")
        return v * (g / length_along(v, self.dim))  # type: ignore[no-any-return]

    def __call__(self, module: Module, args: Any) -> None:
        setattr(module, self.name, self.compute(module))


class _SpectralNorm:
    """The hook of ``spectral_norm``: its weight is divided by its largest singular value."""

    computes_before_forward = True

    def __init__(self, name: str, iterations: int, dim: int, eps: float) -> None:
        self.name, self.iterations, self.dim, self.eps = name, iterations, dim, eps

    def matrix(self, weight: Tensor) -> Tensor:
        """``dim`` as rows, everything else as columns."""
        turned = movedim(weight, self.dim, 0) if self.dim else weight
        return reshape(turned, (turned.shape[0], -1))

    def compute(self, module: Module, steps: int) -> Tensor:
        """The weight after this many steps of the power iteration."""
        weight = getattr(module, f"{self.name}_orig")
        u, v = (getattr(module, f"{self.name}_{part}") for part in "uv")
        matrix = self.matrix(weight)
        with no_grad():
            for _ in range(steps):
                v.copy_(normalize(mv(matrix.T, u), dim=0, eps=self.eps))
                u.copy_(normalize(mv(matrix, v), dim=0, eps=self.eps))
        # Later forwards write into the vectors that this one's gradient needs.
        return weight / (u.clone() * mv(matrix, v.clone())).sum()  # type: ignore[no-any-return]

    def __call__(self, module: Module, args: Any) -> None:
        steps = self.iterations if module.training else 0
        setattr(module, self.name, self.compute(module, steps))


def weight_norm(module: Kind, name: str = "weight", dim: int | None = 0) -> Kind:
    """Learn the length and the direction of a weight apart (Salimans and Kingma, "Weight
    normalization", 2016).

    Args:
        module: whose parameter it is; it gets ``<name>_g`` and ``<name>_v`` in its place.
        name: of the parameter.
        dim: along which there is a length each; None for one of all.

    Raises:
        RuntimeError: that is done already.
    """
    _refuse_twice(module, name, _WeightNorm)
    _refuse_lazy(module, name, "WeightNorm")
    hook = _WeightNorm(name, -1 if dim is None else dim)
    weight = getattr(module, name)
    delattr(module, name)
    setattr(module, f"{name}_g", Parameter(length_along(weight, hook.dim).detach()))
    setattr(module, f"{name}_v", Parameter(weight.detach()))
    setattr(module, name, hook.compute(module))
    module.register_forward_pre_hook(hook)
    return module


def remove_weight_norm(module: Kind, name: str = "weight") -> Kind:
    """Undo ``weight_norm``: the weight is a parameter again.

    Raises:
        ValueError: there is none.
    """
    hook = _taken(module, name, _WeightNorm, "weight_norm")
    weight = hook.compute(module).detach()
    for part in (name, f"{name}_g", f"{name}_v"):
        delattr(module, part)
    setattr(module, name, Parameter(weight))
    return module


def spectral_norm(
    module: Kind,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Kind:
    """Divide a weight by its largest singular value (Miyato et al., "Spectral normalization for
    generative adversarial networks", 2018), which is found step by step while training.

    Args:
        module: whose parameter it is; it gets ``<name>_orig`` in its place.
        name: of the parameter.
        n_power_iterations: steps in each forward.
        eps: the least length that is divided by.
        dim: of the outputs; 1 of transposed convolutions, else 0.

    Raises:
        RuntimeError: that is done already.
        ValueError: ``n_power_iterations`` is not positive.
    """
    _refuse_twice(module, name, _SpectralNorm)
    _refuse_lazy(module, name, "SpectralNorm")
    if n_power_iterations <= 0:
        raise ValueError(
            "Expected n_power_iterations to be positive, but got n_power_iterations="
            f"{n_power_iterations}"
        )
    if dim is None:
        dim = 1 if getattr(module, "transposed", False) else 0
    hook = _SpectralNorm(name, n_power_iterations, dim, eps)
    weight = getattr(module, name)
    rows, columns = hook.matrix(weight).shape
    delattr(module, name)
    setattr(module, f"{name}_orig", Parameter(weight.detach()))
    for part, count in (("u", rows), ("v", columns)):
        start = randn(count, dtype=weight.dtype, device=weight.device)
        module.register_buffer(f"{name}_{part}", normalize(start, dim=0, eps=eps))
    setattr(module, name, weight.detach())
    module.register_forward_pre_hook(hook)
    return module


def remove_spectral_norm(module: Kind, name: str = "weight") -> Kind:
    """Undo ``spectral_norm``: the current weight becomes a parameter again.

    Raises:
        ValueError: there is none.
    """
    hook = _taken(module, name, _SpectralNorm, "spectral_norm")
    weight = hook.compute(module, 0).detach()
    for part in (name, f"{name}_orig", f"{name}_u", f"{name}_v"):
        delattr(module, part)
    setattr(module, name, Parameter(weight))
    return module


def _hooks(module: Module) -> dict[int, Any]:
    """The functions that run before the forward of ``module``, by the keys of their handles."""
    return module._forward_pre_hooks


def _is_of(call: Any, name: str, kind: type) -> bool:
    hook: Any = call.hook if isinstance(call, BeforeForward) else None
    return isinstance(hook, kind) and getattr(hook, "name", None) == name


def _refuse_lazy(module: Module, name: str, function: str) -> None:
    if is_uninitialized(getattr(module, name)):
        raise ValueError(
            f"The module passed to `{function}` can't have uninitialized parameters. Make sure to "
            "run the dummy forward before applying it"
        )


def _refuse_twice(module: Module, name: str, kind: type) -> None:
    if any(_is_of(call, name, kind) for call in _hooks(module).values()):
        raise RuntimeError(f"Cannot register two hooks of this kind on the same parameter {name}")


def _taken(module: Module, name: str, kind: type, function: str) -> Any:
    for key, call in _hooks(module).items():
        if _is_of(call, name, kind):
            del _hooks(module)[key]
            return call.hook
    raise ValueError(f"{function} of '{name}' not found in {module}")
