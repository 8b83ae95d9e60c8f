"""Nodes that freezing puts around recorded ones, and that only the client may run: they call hooks.

The order in one Node is PyTorch's: tensor hooks, ``retain_grad``, pre-hooks, the rule,
post-accumulate hooks, post-hooks; hooks of one kind in the order of their registration.

All of them work on Tensors. ``apply`` wraps arrays with recording off; ``apply_recorded`` is for
``create_graph``, where hooks compute on recorded gradients.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from mpgrad.autograd.running.running_backward import note_early_change
from mpgrad.recording.dispatch.operator_call import record_call
from mpgrad.recording.graph.executing import EXECUTING, executing
from mpgrad.recording.graph.grad_modes import enable_grad, is_grad_enabled, no_grad
from mpgrad.recording.graph.node import InputMetadata, Node
from mpgrad.recording.graph.registry import OPERATORS
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad, first_grad, grad_lock
from mpgrad.recording.tensors.copy_on_write import own
from mpgrad.recording.tensors.storage import adopt, is_exclusive
from mpgrad.recording.tensors.tensor import Tensor

#: ``(xp, grads, needs) -> gradients``, as ``Node.apply``.
Rule: TypeAlias = Callable[[Any, list[Any], Sequence[bool]], Sequence[Any]]

#: At DEBUG it logs each Node before it runs.
LOGGER = logging.getLogger("mpgrad.autograd.graph")


class ClientNode(Node):
    """A Node before, after or instead of ``node``."""

    __slots__ = ("node",)

    takes_undefined = True
    runs_on_client = True

    def __init__(self, node: Node, input_metadata: Sequence[InputMetadata]) -> None:
        super().__init__((), input_metadata, node.sequence_nr)
        self.node = node

    @property
    def subject(self) -> Node:
        return self.node

    @property
    def label(self) -> str:
        return f"{type(self).__name__}({self.node.label})"

    def run(self, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
        """Call the hooks."""
        raise NotImplementedError

    def shows(self, input_nr: int) -> bool:
        """Whether user code sees, and so may change, the gradient of input ``input_nr``."""
        return True

    def apply(self, xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
        tensors: list[Tensor | None] = []
        for nr in range(len(grads)):
            # Taken out of the list, so that this is the only reference if nobody else has one.
            array, grads[nr] = grads[nr], None
            if array is not None and self.shows(nr) and not is_exclusive(array):
                array = adopt(array)
            tensors.append(None if array is None else Tensor(array))
        array = None
        with no_grad(), executing(self.node):
            arrays = [None if grad is None else grad._array for grad in self.run(tensors)]
        count = len(arrays)
        arrays += [None if grad is None else grad._array for grad in tensors]
        unseen = [(array, array) for nr, array in enumerate(arrays[count:]) if not self.shows(nr)]
        tensors.clear()
        own(arrays, count, unseen)
        return arrays[:count]

    def apply_recorded(
        self, grads: Sequence[Tensor | None], needs: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        with enable_grad(), executing(self.node):
            return self.run(list(grads))


class HooksBefore(ClientNode):
    """The tensor hooks and pre-hooks of ``node``, between its producers and itself.

    Args:
        runs: whether ``node`` runs; if it is only captured, its pre-hooks do not run.
        shared: return every gradient twice, for ``node`` and for its :class:`HooksAfter`.
        logs: log the Node.
    """

    __slots__ = ("logs", "runs", "shared")

    def __init__(self, node: Node, *, runs: bool, shared: bool, logs: bool) -> None:
        super().__init__(node, node.input_metadata)
        self.runs, self.shared, self.logs = runs, shared, logs

    def shows(self, input_nr: int) -> bool:
        hooks = self.node.hooks
        return hooks is not None and (bool(hooks.pre) or input_nr in hooks.tensor)

    def run(self, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
        run_tensor_hooks(self.node, grads)
        if self.runs:
            grads = run_pre_hooks(self.node, grads)
        if self.logs:
            _log(self.node, grads)
        return grads + grads if self.shared else grads


class HooksAfter(ClientNode):
    """The post-hooks of ``node``; its inputs are the results of ``node``, then its inputs."""

    __slots__ = ("outputs",)

    def __init__(self, node: Node, results: Sequence[InputMetadata]) -> None:
        super().__init__(node, (*results, *node.input_metadata))
        self.outputs = len(results)

    def run(self, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
        return run_post_hooks(self.node, grads[: self.outputs], grads[self.outputs :])


class AccumulateNow(ClientNode):
    """Adds to ``.grad`` in serial order, and runs the hooks around that.

    A post-accumulate hook (an optimizer in backward) or a Node hook on AccumulateGrad must see the
    gradient as soon as it is complete, so such a leaf does not wait for the commit at the end.

    Args:
        keep: gets the leaf and its gradient instead of ``.grad``, and the leaf's post-accumulate
            hooks do not run.
    """

    __slots__ = ("keep", "logs")

    node: AccumulateGrad

    def __init__(
        self,
        accumulator: AccumulateGrad,
        *,
        logs: bool,
        keep: Callable[[Tensor, Tensor], None] | None = None,
    ) -> None:
        super().__init__(accumulator, accumulator.input_metadata)
        self.logs, self.keep = logs, keep

    @property
    def label(self) -> str:
        return self.node.label

    def shows(self, input_nr: int) -> bool:
        return self.node.hooks is not None

    def run(self, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
        run_tensor_hooks(self.node, grads)
        grads = run_pre_hooks(self.node, grads)
        if self.logs:
            _log(self.node, grads)
        if self.keep is not None:
            if grads[0] is not None:
                self.keep(self.node.variable, grads[0])
            run_post_hooks(self.node, [], grads)
            return ()
        if grads[0] is not None:
            # As in PyTorch, post-hooks then see the new .grad.
            exclusive = _is_held_by_list_alone(grads) and is_exclusive(grads[0]._array)
            with grad_lock():
                self.node.check()
                add_to_grad(self.node, grads[0], exclusive=exclusive)
        run_post_accumulate_hooks(self.node.variable)
        run_post_hooks(self.node, [], grads)
        return ()


def _is_held_by_list_alone(grads: list[Tensor | None]) -> bool:
    """Whether nobody has kept the first of ``grads``: neither a hook nor the caller."""
    return sys.getrefcount(grads[0]) <= _HELD_BY_LIST


def _held_by_list() -> int:
    grads = [object()]
    return sys.getrefcount(grads[0])


#: The reference count in ``_is_held_by_list_alone`` if so (it differs between interpreters).
_HELD_BY_LIST = _held_by_list()


def add_to_grad(accumulator: AccumulateGrad, grad: Tensor, *, exclusive: bool = False) -> None:
    """Accumulate at once: recorded if recording is on, else in place.

    ``exclusive``: nobody else holds the array of ``grad``, so that ``.grad`` may adopt it.
    """
    variable = accumulator.variable
    if not is_grad_enabled():
        note_early_change(variable)
        accumulator.accumulate(grad._array, exclusive=exclusive)
    elif variable._requires_grad and variable._grad is None:
        note_early_change(variable)
        variable._grad = first_recorded_grad(variable, grad)
    elif variable._requires_grad:
        keep_grad(variable, grad)


# ---------------------------------------------------------------------- running hooks


def run_tensor_hooks(node: Node, grads: list[Tensor | None]) -> None:
    """Call the tensor hooks of ``node`` and keep gradients for ``retain_grad``; changes ``grads``.

    Hooks get None for an undefined gradient.

    Raises:
        TypeError, RuntimeError: a hook returned a value of another type or form.
    """
    if node.hooks is None:
        return
    for nr, hooks in tuple(node.hooks.tensor.items()):
        grad = grads[nr]
        for hook in hooks:
            returned = hook(grad)
            if returned is not None:
                grad = _checked(hook, returned, grad)
        grads[nr] = grad
    for nr, reference in node.hooks.retained.items():
        tensor, grad = reference(), grads[nr]
        if tensor is not None and grad is not None:
            keep_grad(tensor, grad)


def run_pre_hooks(node: Node, grads: list[Tensor | None]) -> list[Tensor | None]:
    """Call the pre-hooks of ``node``; return the gradients that it runs on.

    Raises:
        TypeError, RuntimeError: a hook returned a value of another type or form.
    """
    for hook in node.hooks.pre if node.hooks is not None else ():
        returned = hook(tuple(grads))
        if returned is not None:
            grads = _checked_tuple(hook, returned, grads)
    return grads


def run_post_hooks(
    node: Node, grad_inputs: list[Tensor | None], grad_outputs: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Call the post-hooks of ``node``; return the gradients that flow on.

    Raises:
        TypeError, RuntimeError: a hook returned a value of another type or form.
    """
    positions = node.outputs_shown()
    shown = grad_inputs if positions is None else [grad_inputs[at] for at in positions]
    for hook in node.hooks.post if node.hooks is not None else ():
        returned = hook(tuple(shown), tuple(grad_outputs))
        if returned is not None:
            shown = _checked_tuple(hook, returned, shown)
    if positions is None:
        return shown
    result = list(grad_inputs)
    for at, grad in zip(positions, shown, strict=True):
        result[at] = grad
    return result


def runs_node_hooks(node: Node) -> bool:
    """Whether freezing puts a :class:`HooksAfter` behind ``node`` if that runs."""
    hooks = node.hooks
    return hooks is not None and bool(hooks.pre or hooks.post)


def rule_of(node: Node) -> Rule:
    """The rule that the client runs for ``node``: user code may ask for the Node or hook it."""
    if not (node.is_user_code or node.has_packed):
        return node.apply
    return functools.partial(run_user_code, node)


def run_user_code(node: Node, xp: Any, grads: list[Any], needs: Sequence[bool]) -> Sequence[Any]:
    """The rule of a Node whose user code may ask for the Node, or hook it."""
    hooked = runs_node_hooks(node)
    before, EXECUTING.node = EXECUTING.node, node
    try:
        results = node.apply(xp, grads, needs)
    finally:
        EXECUTING.node = before
    if hooked or not runs_node_hooks(node):
        return results
    # Hooks added while it ran have no HooksAfter. The inputs of the Node were not kept for them:
    # as in PyTorch, they get an empty tuple.
    tensors = [None if value is None else Tensor(value) for value in results]
    with no_grad(), executing(node):
        final = run_post_hooks(node, tensors, ())
    return [None if grad is None else grad._array for grad in final]


def run_post_accumulate_hooks(variable: Tensor) -> None:
    """Call the post-accumulate hooks of a leaf.

    Raises:
        TypeError, RuntimeError: a hook returned something.
    """
    for hook in variable._post_accumulate_hooks or ():
        returned = hook(variable)
        if returned is not None and _checked(hook, returned, variable) is not variable:
            raise RuntimeError("Tensor post accumulate grad hooks should return None.")


def first_recorded_grad(leaf: Tensor, grad: Tensor) -> Tensor:
    """A copy of ``grad`` in the layout of ``leaf``, recorded as one ``copy_`` as in PyTorch."""
    copied = Tensor(first_grad(grad._array, leaf._array, exclusive=False))
    if grad.requires_grad:
        record_call(OPERATORS["copy"], (copied.detach(), grad), [copied], (False, True), {})
    return copied


def keep_grad(tensor: Tensor, grad: Tensor) -> None:
    """Add a copy of ``grad`` to ``tensor.grad``, as a new tensor."""
    note_early_change(tensor)
    previous = tensor._grad
    tensor._grad = grad.clone() if previous is None else previous + grad


# ---------------------------------------------------------------------- what a hook may return


def _checked_tuple(
    hook: Any, returned: Any, previous: Sequence[Tensor | None]
) -> list[Tensor | None]:
    if not isinstance(returned, tuple):
        raise TypeError(f"expected tuple, but hook returned '{type(returned).__name__}'")
    if len(returned) != len(previous):
        raise RuntimeError(
            f"hook '{_name(hook)}' has returned an incorrect number of values (got "
            f"{len(returned)}, but expected {len(previous)})"
        )
    return [
        None if value is None else _checked(hook, value, before)
        for value, before in zip(returned, previous, strict=True)
    ]


def _checked(hook: Any, returned: Any, previous: Tensor | None) -> Tensor:
    """Check that ``returned`` may replace ``previous``.

    Raises:
        TypeError: it is not a Tensor.
        RuntimeError: there was no gradient, or one of another dtype or shape.
    """
    if previous is None:
        raise RuntimeError("can't replace a None gradient with a non-None value")
    if not isinstance(returned, Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(returned).__name__}'")
    if returned.dtype != previous.dtype:
        raise RuntimeError(
            f"hook '{_name(hook)}' has changed the type of value (was {previous.dtype} got "
            f"{returned.dtype})"
        )
    if returned.shape != previous.shape:
        raise RuntimeError(
            f"hook '{_name(hook)}' has changed the size of value (was {previous.shape} got "
            f"{returned.shape})"
        )
    return returned


def _name(hook: Any) -> str:
    return getattr(hook, "__name__", "<unknown>")


# ---------------------------------------------------------------------- logging


def _log(node: Node, grads: Iterable[Tensor | None]) -> None:
    described = ",".join(
        "None" if grad is None else f"{_short(grad.dtype)}[{', '.join(map(str, grad.shape))}]"
        for grad in grads
    )
    LOGGER.debug("Executing: %s with grad_outputs: [%s]", node, described)


def _short(dtype: Any) -> str:
    """``f32`` for float32."""
    return f"{dtype.kind}{8 * dtype.itemsize}"
