"""LBFGS: quasi-Newton steps from a limited memory of earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mpgrad.autograd.profiling.ranges import ANNOTATION, span
from mpgrad.ops.elementwise.complex_numbers import view_as_real
from mpgrad.ops.new_tensors.creation import zeros
from mpgrad.ops.shapes.shape import cat
from mpgrad.optim.line_search import Point, strong_wolfe
from mpgrad.optim.optimizer import Optimizer, ParamGroup
from mpgrad.recording.graph.grad_modes import enable_grad, no_grad
from mpgrad.recording.tensors.tensor import Tensor

#: Steps along which the gradient has grown by less are not remembered.
LEAST_CURVATURE = 1e-10


class LBFGS(Optimizer):
    """L-BFGS, with the options of ``torch.optim.LBFGS`` and the same formulas.

    A call of ``step(closure)`` makes up to ``max_iter`` iterations, and evaluates ``closure`` for
    each. Nocedal, "Updating quasi-Newton matrices with limited storage", 1980.

    Args:
        params: Tensors in a single group, all of one dtype, on one device.
        lr: length of a step, or the first one that the line search tries.
        max_iter: iterations of a step.
        max_eval: evaluations of a step; ``max_iter * 1.25`` if not given.
        tolerance_grad: a gradient whose largest element is no larger ends the step.
        tolerance_change: a change of the parameters or of the loss that is smaller ends the step.
        history_size: how many earlier iterations are remembered.
        line_search_fn: "strong_wolfe" or None.

    Raises:
        ValueError: an option is out of range, or there is more than one group.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup],
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        options = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
        }
        super().__init__(params, options)

    def _check_options(self, group: ParamGroup) -> None:
        if self.param_groups:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")
        if not group["lr"] >= 0.0:
            raise ValueError(f"Invalid learning rate: {group['lr']}")
        if group["max_eval"] is None:
            group["max_eval"] = self.defaults["max_eval"] = group["max_iter"] * 5 // 4

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make up to ``max_iter`` iterations.

        Args:
            closure: drops the gradients, computes the loss and its gradients, returns the loss.

        Returns:
            The loss before the first iteration.

        Raises:
            TypeError: there is no closure.
            RuntimeError: ``line_search_fn`` is unknown.
        """
        if closure is None:
            raise TypeError("LBFGS.step() needs a closure, which computes the loss again")
        if self.param_groups[0]["line_search_fn"] not in (None, "strong_wolfe"):
            raise RuntimeError("only 'strong_wolfe' is supported")
        with span("Optimizer.step#LBFGS.step", ANNOTATION), no_grad():
            return self._iterate(closure)

    def _iterate(self, closure: Callable[[], Any]) -> Any:
        group, kept = self.param_groups[0], self._memory()
        first_loss, grad = self._evaluate(closure)
        loss, evaluations = _number(first_loss), 1
        kept["func_evals"] += 1
        if _largest(grad) <= group["tolerance_grad"]:
            return first_loss
        for iteration in range(1, int(group["max_iter"]) + 1):
            kept["n_iter"] += 1
            direction = self._direction(kept, grad, int(group["history_size"]))
            t = float(group["lr"])
            if kept["n_iter"] == 1:
                t /= max(1.0, float(grad.abs().sum()))
            kept.update(d=direction, t=t, prev_flat_grad=grad, prev_loss=loss)
            slope = float(grad.dot(direction))
            if slope > -group["tolerance_change"]:
                break
            made, is_last = 0, iteration == group["max_iter"]
            if group["line_search_fn"] is not None:
                start = Point(0.0, loss, grad, slope)
                found, made = self._search(
                    closure, direction, start, t, group["max_eval"] - evaluations
                )
                loss, grad, t = found.loss, found.grad, found.t
                kept["t"] = t
                self._add(direction, t)
            else:
                self._add(direction, t)
                if not is_last:
                    value, grad = self._evaluate(closure)
                    loss, made = _number(value), 1
            evaluations += made
            kept["func_evals"] += made
            if (
                is_last
                or evaluations >= group["max_eval"]
                or _largest(grad) <= group["tolerance_grad"]
                or _largest(direction) * abs(t) <= group["tolerance_change"]
                or abs(loss - kept["prev_loss"]) < group["tolerance_change"]
            ):
                break
        return first_loss

    def _memory(self) -> dict[str, Any]:
        """The state of earlier iterations, which is stored with the first parameter."""
        kept = self.state.setdefault(self.param_groups[0]["params"][0], {})
        kept.setdefault("func_evals", 0)
        kept.setdefault("n_iter", 0)
        return kept

    def _direction(self, kept: dict[str, Any], grad: Tensor, history_size: int) -> Tensor:
        """Minus the gradient times the inverse Hessian that the memory represents."""
        if kept["n_iter"] == 1:
            kept.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            return -grad
        changes, steps, scales = kept["old_dirs"], kept["old_stps"], kept["ro"]
        change, step = grad - kept["prev_flat_grad"], kept["d"] * kept["t"]
        curvature = float(change.dot(step))
        if curvature > LEAST_CURVATURE:
            if len(changes) == history_size:
                for memory in (changes, steps, scales):
                    memory.pop(0)
            changes.append(change)
            steps.append(step)
            scales.append(1.0 / curvature)
            kept["H_diag"] = curvature / float(change.dot(change))
        weights = kept.setdefault("al", [None] * history_size)
        direction = -grad
        for k in reversed(range(len(changes))):
            weights[k] = float(steps[k].dot(direction)) * scales[k]
            direction.add_(changes[k], alpha=-weights[k])
        direction.mul_(kept["H_diag"])
        for k in range(len(changes)):
            other = float(changes[k].dot(direction)) * scales[k]
            direction.add_(steps[k], alpha=weights[k] - other)
        return direction

    def _search(
        self,
        closure: Callable[[], Any],
        direction: Tensor,
        start: Point,
        t: float,
        max_steps: int,
    ) -> tuple[Point, int]:
        """The point that a line search finds, and its evaluations; no parameter has moved after."""
        parameters = self.param_groups[0]["params"]
        origin = [parameter.detach().clone() for parameter in parameters]

        def evaluate(t: float) -> Point:
            self._add(direction, t)
            loss, grad = self._evaluate(closure)
            for parameter, before in zip(parameters, origin, strict=True):
                parameter.copy_(before)
            return Point(t, _number(loss), grad, float(grad.dot(direction)))

        return strong_wolfe(evaluate, start, t, _largest(direction), max_steps)

    def _evaluate(self, closure: Callable[[], Any]) -> tuple[Any, Tensor]:
        """The loss, and the gradients of all parameters as one new vector."""
        with enable_grad():
            loss = closure()
        parts = []
        for parameter in self.param_groups[0]["params"]:
            grad = parameter.grad
            if grad is None:
                grad = zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
            parts.append(_parts(grad.detach()).reshape(-1))
        return loss, cat(parts)

    def _add(self, direction: Tensor, t: float) -> None:
        """Move all parameters by ``t`` times their part of the direction."""
        offset = 0
        for parameter in self.param_groups[0]["params"]:
            place = _parts(parameter)
            part = direction[offset : offset + place.numel()]
            place.add_(part.reshape(place.shape), alpha=t)
            offset += place.numel()


def _parts(tensor: Tensor) -> Tensor:
    """Complex numbers as real and imaginary parts; other tensors themselves."""
    return view_as_real(tensor) if tensor.is_complex() else tensor


def _largest(vector: Tensor) -> float:
    """The largest absolute value."""
    return float(vector.abs().max())


def _number(loss: Any) -> float:
    return float(loss.detach() if isinstance(loss, Tensor) else loss)
