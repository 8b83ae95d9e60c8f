"""parallelize(): the backward of custom Functions of an unchanged program in workers.

Forward stays in the calling process. The Node of such a call becomes the two Nodes of a branch (see
``branch_nodes``): in backward the first one hands the ctx to a worker, the second one waits.
"""

from __future__ import annotations

import functools
import types
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mpgrad.autograd.running import engine_slot
from mpgrad.base.thread_state import PerThread
from mpgrad.engine.submitter import is_serving_thread
from mpgrad.errors import PerformanceWarning
from mpgrad.parallel import placing
from mpgrad.parallel.forks import ForkFuture, fork_of
from mpgrad.torch.branch_nodes import (
    HAS_NUMBERS,
    BeginBranch,
    BranchPlace,
    ForkedBranch,
    are_batched,
    backward_number,
)
from mpgrad.torch.derivative_tasks import Derived
from mpgrad.torch.function_backward import Backward, copied, held_elsewhere
from mpgrad.torch.shared_results import SharedResult
from mpgrad.torch.tensors import KNOWS_HOOKS, LIBRARY

#: What a forward or ``setup_context`` may not call: its backward then needs torch's own Node.
_OF_OWN_NODE = frozenset({"mark_dirty", "set_materialize_grads"})
_interpreters = getattr(torch._C._functorch, "peek_interpreter_stack", None)


def parallelize(*classes: type[Any]) -> None:
    """Let workers run the backward of these custom Functions, wherever the program applies them.

    Forward runs as before. ``loss.backward()`` hands each ctx (``saved_tensors``, attributes) to a
    worker, side by side with others. Attributes that it sets there come back. Calls inside of
    ``torch.func`` and ``torch.compile``, and Functions that call ``mark_dirty`` or
    ``set_materialize_grads``, run as before, and so does a backward with ``create_graph=True``. So
    does one whose ctx cannot travel; a PerformanceWarning says why, once for each class. In
    ``local`` the backward runs in this process.

    Raises:
        TypeError: one of them is no ``torch.autograd.Function``.
        RuntimeError: this PyTorch does not let Nodes change their place (see ``doctor``).
    """
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, torch.autograd.Function)):
            raise TypeError(f"parallelize() takes subclasses of torch.autograd.Function, not {cls}")
    if not HAS_NUMBERS:
        raise RuntimeError(
            f"parallelize() needs another version of PyTorch than {torch.__version__}: its Nodes "
            "have no _set_sequence_nr"
        )
    for cls in classes:
        is_taken = isinstance(vars(cls).get("apply"), _Apply)
        if not is_taken and not _OF_OWN_NODE & _names_called(cls):
            cls.apply = _Apply(vars(cls).get("apply"))  # type: ignore[attr-defined]


class _Apply(classmethod):  # type: ignore[type-arg]
    """``apply`` of a class that ``parallelize`` has taken.

    Args:
        own: the ``apply`` that the class had defined itself, if it had.
    """

    def __init__(self, own: Any) -> None:
        super().__init__(functools.partial(_apply_of_class, own))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return types.MethodType(self.__func__, owner)

    def __reduce__(self) -> Any:
        return _Apply, self.__func__.args  # type: ignore[attr-defined]


def _apply_of_class(own: Any, cls: type[Any], *args: Any) -> Any:
    before = own or next(
        found
        for one in cls.__mro__
        if (found := vars(one).get("apply")) is not None and not isinstance(found, _Apply)
    )
    original = before.__get__(None, cls)
    if _is_as_before(args):
        return original(*args)
    return _ParallelizedCall(original, cls, args).results()


def _is_as_before(args: Sequence[Any]) -> bool:
    """Whether torch's own Node is right: nobody differentiates, or others transform the call."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return True
    if _interpreters is not None and _interpreters() is not None:
        return True
    tensors = [one for one in args if isinstance(one, torch.Tensor)]
    if not any(one.requires_grad for one in tensors):
        return True
    return engine_slot.is_inside_rule()


def _names_called(cls: type[Any]) -> set[str]:
    return {
        name
        for method in (cls.forward, cls.setup_context)
        if (code := getattr(method, "__code__", None)) is not None
        for name in code.co_names
    }


class _ParallelizedCall(ForkedBranch):
    """One call of a Function, whose Node is kept apart from the program's graph."""

    def __init__(self, original: Callable[..., Any], cls: type[Any], args: tuple[Any, ...]) -> None:
        self._places = [at for at, one in enumerate(args) if isinstance(one, torch.Tensor)]
        super().__init__([args[at] for at in self._places], LIBRARY.version)
        self._original, self._cls, self._args = original, cls, args
        self.take_place(BranchPlace.here())
        found = original(*map(_apart, args))
        self._is_single = not isinstance(found, tuple)
        self._found: tuple[Any, ...] = (found,) if self._is_single else found
        self._forms = [
            (one.shape, one.dtype) if isinstance(one, torch.Tensor) else None for one in self._found
        ]
        self._wanted = [
            at
            for at, one in enumerate(self._found)
            if isinstance(one, torch.Tensor) and one.requires_grad
        ]
        first = self._found[self._wanted[0]] if self._wanted else None
        self._node = None if first is None else first.grad_fn
        #: In older PyTorch a Node loses what it has saved with the last tensor behind it.
        self._behind = None if first is None or KNOWS_HOOKS else first.reshape(-1)[:0].clone()

    def results(self) -> Any:
        """What the call gives, with a history."""
        found, self._found = list(self._found), ()
        if self._wanted:
            token, self._token = self._token, torch.empty(0)
            own = tuple([found[at].detach() for at in self._wanted])
            attached = BeginBranch.apply(self, token, own)
            attached[0].grad_fn._set_sequence_nr(self._number)
            for at, one in zip(self._wanted, attached, strict=True):
                found[at] = one
        return found[0] if self._is_single else tuple(found)

    # ------------------------------------------------------------------ backward

    def end(self) -> list[torch.Tensor | None]:
        found = super().end()
        if not self.inputs:  # the graph is not kept
            self._node, self._behind, self._args = None, None, ()
        return found

    def _gradients(self, grads: Sequence[torch.Tensor | None]) -> Any:
        node: Any = self._node
        given, run = self._materialized(grads), Backward(self._cls)
        if are_batched(grads):
            return self._on_node(run, given)
        attributes = vars(node)
        picked = functools.partial(_picked, run, node, held_elsewhere(attributes), self._places)
        task = (copied(attributes, {}), node.saved_tensors, node.needs_input_grad, given)
        if is_serving_thread() or placing.mode() == "local":
            return picked(run(*task))
        try:
            future = fork_of(
                LIBRARY,
                run,
                task,
                {},
                _next_seed(),
                lambda begun: self._is_under_way(_Picked(begun, picked)),
            )
        except TypeError as error:
            _warn_once(self._cls, str(error))
            return self._on_node(run, given)
        return _Picked(future, picked)

    def _on_node(self, run: Backward, given: list[Any]) -> list[Any]:
        """The gradients, by torch's own Node."""
        node: Any = self._node
        return _of_tensors(run, run.gradients(node, len(self._args), given), self._places)

    def _materialized(self, grads: Sequence[torch.Tensor | None]) -> list[Any]:
        given: list[Any] = [
            None if form is None else torch.zeros(form[0], dtype=form[1]) for form in self._forms
        ]
        for at, grad in zip(self._wanted, grads, strict=True):
            if grad is not None:
                given[at] = grad
        return given

    def _recorded_gradients(
        self, grads: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        # Behind Nodes of their own: their hooks run when their gradients are there.
        args = [one.view_as(one) if _needs_grad(one) else one for one in self._args]
        found = self._original(*args)
        outs = found if isinstance(found, tuple) else (found,)
        needing = [args[at] for at in self._places if _needs_grad(args[at])]
        pairs = [
            (outs[at], grad)
            for at, grad in zip(self._wanted, grads, strict=True)
            if grad is not None
        ]
        results = iter(
            torch.autograd.grad(
                [out for out, _ in pairs],
                needing,
                [grad for _, grad in pairs],
                create_graph=True,
                allow_unused=True,
            )
        )
        return [next(results) if one.requires_grad else None for one in self.inputs]


class _Picked(Derived):
    """What ``picked`` makes of the result of another Future."""

    def __init__(self, source: ForkFuture, picked: Callable[[Any], Any]) -> None:
        super().__init__()
        self._source, self._picked, self.stop = source, picked, source.stop
        source.is_asked_for = True

    def result(self, timeout: float | None = None) -> Any:
        return self._picked(self._source.result(timeout))


def _picked(
    run: Backward, node: Any, held: frozenset[str], places: list[int], found: Any
) -> list[Any]:
    """The gradients of the tensors in what ``run`` has given; the Node gets what has changed."""
    gradients, changes = found
    changes.bring_back(node, held, run.__qualname__)
    return _of_tensors(run, gradients, places)


def _of_tensors(run: Backward, gradients: Sequence[Any], places: list[int]) -> list[Any]:
    """The gradients at the places of tensors.

    Raises:
        RuntimeError: there is one at another place.
    """
    for at, one in enumerate(gradients):
        if one is not None and at not in places:  # as torch says it
            raise RuntimeError(
                f"function {run.node_name} returned a gradient different than None at position "
                f"{at + 1}, but the corresponding forward input was not a Variable"
            )
    return [_plain(gradients[at]) for at in places]


class _Begun(PerThread):
    """How many calls the last backward of this thread has begun."""

    def __init__(self) -> None:
        self.backward, self.count = -1, 0


_begun = _Begun()


def _next_seed() -> tuple[int, int, int]:
    """Of the random numbers of the next call: they depend on the program's generator, from which
    nothing is drawn, and on the place of the call in its backward."""
    number = backward_number()
    _begun.count = _begun.count + 1 if number == _begun.backward else 0
    _begun.backward = number
    state = torch.default_generator.get_state()
    seed = zlib.crc32(state.numpy()) + _begun.count
    return seed, seed % (1 << 31), seed


def _needs_grad(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.requires_grad


def _plain(one: Any) -> Any:
    """A gradient: who gets it is torch's own matter."""
    if isinstance(one, SharedResult):
        one.__class__ = torch.Tensor
    return one


def _apart(one: Any) -> Any:
    """The same memory without the program's graph."""
    if not isinstance(one, torch.Tensor):
        return one
    return one.detach().requires_grad_() if one.requires_grad else one.detach()


_warned: set[str] = set()


def _warn_once(cls: type[Any], reason: str) -> None:
    name = f"{cls.__module__}.{cls.__qualname__}"
    if name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"the backward of {name} runs in the calling process: {reason}",
            PerformanceWarning,
            stacklevel=2,
        )
