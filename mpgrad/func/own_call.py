"""OwnCall: a call of the user's function with new Tensors in place of those to differentiate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from mpgrad.autograd.backward import grad as gradients
from mpgrad.base.thread_state import PerThread
from mpgrad.func import trees
from mpgrad.ops.new_tensors.creation import from_numpy, tensor, zeros_like
from mpgrad.recording.graph.grad_modes import enable_grad, is_grad_enabled
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad
from mpgrad.recording.tensors.tensor import Tensor

Argnums = int | tuple[int, ...]

#: By id, the leaves that any OwnCall has made.
_LEAVES: WeakValueDictionary[int, Tensor] = WeakValueDictionary()


class _RunningCalls(PerThread):
    """Attributes: ``calls``: the OwnCalls whose functions run now, the outermost first."""

    def __init__(self) -> None:
        self.calls: list[OwnCall] = []


_RUNNING = _RunningCalls()


class OwnCall:
    """One call of a function, and derivatives of its result.

    A function may use Tensors from outside that require grad: of the user, or of another
    derivative around this one. What depends on them keeps its history; everything else is constant
    for the caller, although it depends on the Tensors that were made here.

    Attributes:
        given: the trees in place of the arguments that are differentiated.
        result: what the function gave: a tree.
        other: what it gave beside that, with ``has_aux``, as it leaves the derivative.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        argnums: Argnums,
        *,
        has_aux: bool = False,
    ) -> None:
        places = argnums if isinstance(argnums, tuple) else (argnums,)
        _check_places(places, len(args))
        self._is_recorded = is_grad_enabled()
        #: The ids of points that require no grad outside, and of Nodes that lead outside.
        self._own: set[int] = set()
        self._borders: set[int] = set()
        changed = list(args)
        with enable_grad():
            for place in places:
                changed[place] = trees.mapped(self._point, changed[place])
            self.given = [changed[place] for place in places]
            self.points = list(trees.leaves(self.given))
            _RUNNING.calls.append(self)
            try:
                self.result = func(*changed, **kwargs)
            finally:
                _RUNNING.calls.pop()
        self._is_single = not isinstance(argnums, tuple)
        self.other: Any = None
        if has_aux:
            if not (isinstance(self.result, tuple) and len(self.result) == 2):
                raise RuntimeError(
                    "with has_aux=True the output of function f should be a tuple (output, aux), "
                    f"not {type(self.result).__name__}"
                )
            self.result, other = self.result
            self.other = self.released(other)

    def outputs(self, function: str) -> list[Tensor]:
        """The Tensors of the result.

        Raises:
            RuntimeError: there is none, or a leaf of the result is no Tensor.
        """
        found: list[Any] = []
        trees.mapped(found.append, self.result)
        for leaf in found:
            if not isinstance(leaf, Tensor):
                raise RuntimeError(
                    f"{function}: Expected f to return only Tensors, got {type(leaf).__name__}"
                )
        if not found:
            raise RuntimeError(f"{function}: Expected f to be a function that has non-empty output")
        return found

    def gradient(
        self,
        outputs: Sequence[Tensor],
        seeds: Sequence[Tensor] | None,
        *,
        create_graph: bool,
        batched: bool = False,
    ) -> list[Tensor | None]:
        """The gradients of all points, from those outputs that depend on any Tensor.

        Args:
            outputs: Tensors of the result.
            seeds: one for each, or None for ones.
            create_graph: whether they get a history.
            batched: the seeds are batches, and so are the gradients.
        """
        pairs = [
            (output, None if seeds is None else seeds[index])
            for index, output in enumerate(outputs)
            if output.requires_grad
        ]
        if not pairs or not self.points:
            return [None] * len(self.points)
        return list(
            gradients(
                [output for output, _ in pairs],
                self.points,
                [seed for _, seed in pairs],
                retain_graph=True,
                create_graph=create_graph,
                allow_unused=True,
                is_grads_batched=batched,
            )
        )

    def like_arguments(self, values: Sequence[Tensor | None]) -> Any:
        """Values for all points in the form of the arguments; zeros for None."""
        defined = [
            zeros_like(point) if value is None else value
            for point, value in zip(self.points, values, strict=True)
        ]
        arguments = tuple(trees.filled(self.given, defined))
        return arguments[0] if self._is_single else arguments

    def reaches_outside(self, tree: Any) -> bool:
        """Whether any Tensor of ``tree`` depends on one that was not made here."""
        return self._is_recorded and any(map(self._depends, trees.leaves(tree)))

    def released(self, tree: Any) -> Any:
        """``tree`` for the caller: Tensors that depend only on those made here are constants."""
        return trees.mapped(self._released, tree)

    def _released(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or self.reaches_outside(leaf):
            return leaf
        return leaf.detach()

    def _point(self, value: Any) -> Tensor:
        """A new Tensor that requires grad, with the history of ``value``."""
        given = as_tensor(value)
        if given.requires_grad:
            point = given[...]
            self._borders.add(id(point.grad_fn))
            return point
        return self.leaf(given.detach())

    def leaf(self, value: Tensor) -> Tensor:
        """``value``, requiring grad, as a Tensor of this call that nobody sees outside."""
        self._own.add(id(value))
        _LEAVES[id(value)] = value
        return value.requires_grad_()

    def _depends(self, leaf: Tensor) -> bool:
        if leaf.grad_fn is None:
            return leaf.requires_grad and self._is_outside(leaf)
        waiting, seen = [leaf.grad_fn], {leaf.grad_fn}
        while waiting:
            node = waiting.pop()
            if id(node) in self._borders:
                return True
            if isinstance(node, AccumulateGrad):
                if self._is_outside(node.variable):
                    return True
                continue
            for edge in node.next_edges:
                if edge is not None and edge[0] not in seen:
                    seen.add(edge[0])
                    waiting.append(edge[0])
        return False

    def _is_outside(self, leaf: Tensor) -> bool:
        """Not one that this call made, or one inside it, which has ended."""
        if id(leaf) in self._own:
            return False
        if _LEAVES.get(id(leaf)) is not leaf:
            return True
        return any(id(leaf) in call._own for call in _RUNNING.calls)


def as_tensor(value: Any) -> Tensor:
    """A Tensor, or one of a NumPy array or a float.

    Raises:
        TypeError: ``value`` is something else.
    """
    if isinstance(value, np.ndarray):
        return from_numpy(value)
    if isinstance(value, float):
        return tensor(value)
    if not isinstance(value, Tensor):
        raise TypeError(
            f"a derivative is taken with respect to Tensors, not to {type(value).__name__}"
        )
    return value


def _check_places(places: tuple[int, ...], count: int) -> None:
    if not places:
        raise RuntimeError("argnums must be non-empty")
    for place in places:
        if not isinstance(place, int):
            raise RuntimeError(
                f"argnums must be int or Tuple of int, and each must be int: {place!r}"
            )
        if not -count <= place < count:
            raise RuntimeError(f"Got argnum={place}, but only {count} positional inputs")
    if len({place % count for place in places}) < len(places):
        raise RuntimeError(f"argnums elements must be unique, but they are {places}")
