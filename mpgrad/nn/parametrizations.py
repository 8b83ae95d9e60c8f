"""``weight_norm`` and ``spectral_norm`` as parametrizations: ``mg.nn.utils.parametrizations``."""

from __future__ import annotations

from typing import Any, TypeVar

from mpgrad.nn.module import Module
from mpgrad.nn.orthogonal_matrices import orthogonal
from mpgrad.nn.parametrize import register_parametrization
from mpgrad.nn.weight_norms import length_along
from mpgrad.ops.linear_algebra.matrix_products import mv, vdot
from mpgrad.ops.linear_algebra.norms import normalize
from mpgrad.ops.random import randn
from mpgrad.ops.shapes.shape import flatten, movedim
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]

Kind = TypeVar("Kind", bound=Module)


class _LengthAndDirection(Module):
    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        """The tensor of the length ``weight_g`` and the direction of ``weight_v``."""
        return weight_v * (weight_g / length_along(weight_v, self.dim))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Its length and itself."""
        return length_along(weight, self.dim), weight


class _OverSingularValue(Module):
    def __init__(self, weight: Tensor, iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        if iterations <= 0:
            raise ValueError(
                "Expected n_power_iterations to be positive, but got n_power_iterations="
                f"{iterations}"
            )
        self.n_power_iterations, self.eps = iterations, eps
        self.dim = dim if dim >= 0 else dim + weight.ndim
        if weight.ndim > 1:
            matrix = self._matrix(weight)
            for name, count in zip("uv", matrix.shape, strict=True):
                start = randn(count, dtype=weight.dtype, device=weight.device)
                self.register_buffer(f"_{name}", normalize(start, dim=0, eps=eps))
            self._iterate(matrix, 15)

    def _matrix(self, weight: Tensor) -> Tensor:
        return flatten(movedim(weight, self.dim, 0), 1) if self.dim else flatten(weight, 1)

    def _iterate(self, matrix: Tensor, steps: int) -> None:
        with no_grad():
            for _ in range(steps):
                self._u.copy_(normalize(mv(matrix, self._v), dim=0, eps=self.eps))
                self._v.copy_(normalize(mv(matrix.mH, self._u), dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        """``weight`` over its largest singular value; a vector over its length."""
        if weight.ndim == 1:
            return normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(matrix.detach(), self.n_power_iterations)
        # Later forwards write into the vectors that this one's gradient needs.
        return weight / vdot(self._u.clone(), mv(matrix, self._v.clone()))  # type: ignore[no-any-return]

    def right_inverse(self, value: Tensor) -> Tensor:
        """``value``: its singular values are taken to be right."""
        return value


def weight_norm(module: Kind, name: str = "weight", dim: int | None = 0) -> Kind:
    """Learn the length and the direction of a weight apart: ``original0`` and ``original1``.

    The arguments are those of ``mg.nn.utils.weight_norm``.
    """
    register_parametrization(module, name, _LengthAndDirection(dim), unsafe=True)

    def take_older_names(state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        """State dicts of ``mg.nn.utils.weight_norm`` fit, too."""
        names = [f"{prefix}{name}_{part}" for part in "gv"]
        if all(older in state_dict for older in names):
            for at, older in enumerate(names):
                key = f"{prefix}parametrizations.{name}.original{at}"
                state_dict[key] = state_dict.pop(older)

    module._register_load_state_dict_pre_hook(take_older_names)
    return module


def spectral_norm(
    module: Kind,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Kind:
    """Divide a weight by its largest singular value, which is found step by step while training.

    The arguments are those of ``mg.nn.utils.spectral_norm``.

    Raises:
        ValueError: there is no such parameter, or ``n_power_iterations`` is not positive.
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if dim is None:
        dim = 1 if getattr(module, "transposed", False) else 0
    made = _OverSingularValue(weight, n_power_iterations, dim, eps)
    register_parametrization(module, name, made)
    return module
