"""record(): runs a BranchCall and keeps what it has recorded, the branch.

The client and the workers run it alike, on copies of what the function reaches, so that a program
gives the same bits and the same errors wherever a call runs.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpgrad.autograd.running import engine_slot
from mpgrad.base.accidental_ends import accidental_end
from mpgrad.calls.array_library import ArrayLibrary, library_of
from mpgrad.calls.attempts import Attempts
from mpgrad.calls.call import BranchCall, Item
from mpgrad.calls.classes import held_by_classes
from mpgrad.calls.inner_imports import as_in_caller
from mpgrad.calls.item_errors import CHANGED, error_of_item
from mpgrad.calls.random_numbers import (
    Drawn,
    drawn_from,
    generators_kept,
    seed_generators,
    states_of,
)
from mpgrad.calls.reached_state import Change, ReachedState
from mpgrad.calls.results import can_return, dump_result
from mpgrad.calls.unpicklable import why_it_does_not_travel
from mpgrad.calls.unreached_leaves import require_own_leaves
from mpgrad.recording.tensors.storage import leaves_made
from mpgrad.shm.digest import digest_of
from mpgrad.wire.captured_state import complete_filters
from mpgrad.wire.state_in_force import state_in_force

Array: TypeAlias = np.ndarray[Any, Any]

_NO_ARRAY: Array = np.empty(0, np.uint8)
#: Added to the numbers of items: random numbers of a backward are others than its forward's.
_OF_BACKWARD = 1 << 40

_LOST = (
    "{name} has changed {what}, which would be lost: a call works on copies of what it reaches. "
    "{remedy}"
)
_AROUND = (
    "{name} has changed {what}, which would be lost: it is as it was for the next call. Undo it "
    "before the end (with contextlib.chdir(...), subprocess.run(..., env=..., cwd=...)), or set it "
    "before parallel_map()"
)
_RETURN = "Return it as a part of the result"
_RETURN_GRADIENTS = "Compute the gradient inside with grad(), and return what the caller needs"
_SPAWN = "Give each item a generator of its own as an argument (rng.spawn(n) of NumPy, or a seed)"
_NO_RESULT = "the result of {name} cannot travel to the caller"
_OTHER_RESULT = "Return what it is made of: tensors, arrays, numbers, texts, objects that hold such"
_GRAD = (
    "{name} has run backward() on {what}, whose .grad would be lost: a call works on copies. Use "
    "mg.grad() inside, and return the gradients"
)
_NOT_A_SUM = (
    "out='sum' adds tensors and numbers, in tuples, lists and dictionaries of the same form; "
    "{name} has returned {found}"
)


class Branch(NamedTuple):
    """What one BranchCall has recorded.

    Attributes:
        library: of its tensors.
        result: the pickle of its result, with a number in place of each tensor: k for output k,
            -1 - k for input k.
        buffers: arrays in that pickle.
        outputs: the tensors that it has made.
        inputs: the tensors that it got.
        changed: the numbers of the inputs that have changed and may (Modules' buffers).
        grown: the bytes that this process has gained meanwhile, if its library asks for that.
        made: the leaves that were made meanwhile, by ``id``; None: nobody asks.
        call: that has recorded it, without code and arguments; None: it has no graph.
        reached: what its backward must leave as it is; None: nobody looks.
        imports: see ``as_in_caller``.
    """

    library: ArrayLibrary
    result: bytes
    buffers: list[Array]
    outputs: list[Any]
    inputs: list[Any]
    changed: list[int]
    grown: int = 0
    made: dict[int, Any] | None = None
    call: BranchCall | None = None
    reached: Any = None
    imports: Mapping[str, Mapping[str, Any]] = MappingProxyType({})

    @property
    def is_recorded(self) -> bool:
        """Whether there is anything to differentiate."""
        return any(map(has_history, self.outputs))

    def nbytes(self) -> int:
        """The bytes of its outputs and of what its graph has saved."""
        return self.library.nbytes(self)

    def digest(self) -> int:
        """A number that differs if the outputs differ."""
        return sum(
            (at + 1) * digest_of(self.library.laid_out(output)[0])
            for at, output in enumerate(self.outputs)
        ) % (1 << 64)

    def differentiate(
        self, grads: Sequence[Any], needs: Sequence[bool], *, create_graph: bool = False
    ) -> list[Any]:
        """The gradient of each input that is needed.

        Args:
            grads: for each output its gradient, a tensor or None.
            needs: for each input, whether its gradient is wanted.
            create_graph: record the computation.

        Raises:
            BaseException: what user code raises.
            RuntimeError: user code has changed what it reaches.
        """
        pairs = [
            (output, grad)
            for output, grad in zip(self.outputs, grads, strict=True)
            if grad is not None and has_history(output)
        ]
        wanted = [
            number for number, (one, need) in enumerate(zip(self.inputs, needs, strict=True))
            if need and one.requires_grad
        ]  # fmt: skip
        found: list[Any] = [None] * len(self.inputs)
        if not pairs or not wanted:
            return found
        with (
            engine_slot.locally(),
            self._numbers_of_backward(),
            as_in_caller(self.imports),
            self._watched_backward(),
        ):
            results = self.library.gradients(
                [output for output, _ in pairs],
                [self.inputs[number] for number in wanted],
                [grad for _, grad in pairs],
                create_graph,
            )
        for number, result in zip(wanted, results, strict=True):
            found[number] = result
        return found

    @contextmanager
    def _numbers_of_backward(self) -> Iterator[None]:
        """User code draws random numbers of its item: others than in forward, the same anywhere."""
        if self.call is None or not self.library.runs_user_code(self):
            yield
            return
        with generators_kept(self.library):
            index = self.call.items[0].number + _OF_BACKWARD
            seed_generators(self.library, self.call.seed, index)
            yield

    @contextmanager
    def _watched_backward(self) -> Iterator[None]:
        """Check, of a call that is watched, that user code leaves what it reaches as it is."""
        if self.reached is None or self.call is None or self.call.watched is None:
            yield
            return
        state = ReachedState(self.reached, self.call.watched, self.library.tensor_class)
        yield
        if (change := state.what_changed(self.reached)) is not None:
            raise _lost(self.call, self.reached, change, _RETURN_GRADIENTS, " in its backward")


def record(call: BranchCall, inputs: Sequence[Any], *, is_copy: bool = True) -> Branch:
    """Run ``call``; its inputs are ``inputs`` themselves.

    Do it inside of ``generators_kept``: each item seeds the generators of the process.

    Args:
        call: the call.
        inputs: the tensors that the function reaches, by number.
        is_copy: whether they are copies; else they are the caller's own.

    Raises:
        BaseException: what the function raises, with a note that names the item.
        RuntimeError: it has changed an input in place.
    """
    # What it sets in context variables is its own.
    return contextvars.copy_context().run(_record, call, inputs, is_copy)


def _record(call: BranchCall, inputs: Sequence[Any], is_copy: bool) -> Branch:
    library = library_of(call.library)
    attempts = Attempts(call, inputs, library)
    complete_filters()
    before = list(map(library.mark, inputs))
    kept = {
        number: library.content(inputs[number])
        for number, kind in enumerate(call.inputs)
        if kind.is_buffer
    }
    hidden = {} if call.watched is None else _digests(call, inputs, library)
    held = library.held()
    with (
        engine_slot.locally(),
        state_in_force(call.captured) as changed_around,
        library.entered(call.modes),
        leaves_made() as made,
        held_by_classes([(cls, name, inputs[at]) for cls, name, at in call.held])
        if call.held
        else nullcontext(),
    ):
        results, drawn, reached = [], list[tuple[int, int, Any]](), list[Any]()
        for item in call.items:
            run = functools.partial(_item, call, item, attempts, library, changed_around)
            one, from_generators, its = attempts.of_item(item.number, run)
            results.append(one)
            reached.append({**its, "its result": one})
            drawn += from_generators
        result = results[0]
        if call.is_sum:
            for other in results[1:]:
                result = sum_of(result, other, call.name, library)
            sum_of(result, result, call.name, library, only_check=True)
    if drawn:
        result = Drawn(result, tuple(drawn))
    changed = _changed(call, inputs, before, kept, hidden, library, is_copy=is_copy)
    data, buffers, outputs = _dumped(call, result, inputs, library)
    grown = library.held() - held
    until_backward = None if call.watched is None else reached[0] if len(reached) == 1 else reached
    without_data = call._replace(
        code=_NO_ARRAY,
        code_buffers=(),
        items=(Item(b"", (), call.items[0].number),),
        inputs=(),
        captured=None,
    )
    branch = Branch(
        library, data, buffers, outputs, list(inputs), changed, grown, made, without_data,
        until_backward, attempts.receiver.imports,
    )  # fmt: skip
    if call.seeks_lost and branch.is_recorded:
        require_own_leaves(call, branch, record)
    return branch


def _item(
    call: BranchCall,
    item: Item,
    attempts: Attempts,
    library: ArrayLibrary,
    changed_around: Callable[[], str],
) -> tuple[Any, list[tuple[int, int, Any]], dict[str, Any]]:
    """The result of one item, what it has drawn from its generators, and what it reaches."""
    args = attempts.receiver.load(item.data, item.buffers)
    fn, shared, keywords = attempts.fn, attempts.shared, attempts.keywords
    seed_generators(library, call.seed, item.number)
    generators = states_of(args)
    compared = [None if at in generators else one for at, one in enumerate(args)]
    reached = {"": fn, "shared": (shared, keywords), "arguments": compared}
    attempts.receiver.set_context()
    with (
        as_in_caller(attempts.receiver.imports),
        _watched(call, reached, library, changed_around),
    ):
        result = _called(call, item, fn, (*args, *shared), keywords, len(args))
    drawn = [*drawn_from(item.number, generators, args)] if generators else []
    return result, drawn, reached


def _called(
    call: BranchCall,
    item: Item,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    own: int,
) -> Any:
    """The result of one item, whose ``own`` first arguments an error shows."""
    try:
        return fn(*args, **keywords)
    except StopIteration as error:
        raise accidental_end(f"{call.name} of item {item.number}") from error
    except BaseException as error:
        tensor = library_of(call.library).tensor_class
        error = error_of_item(error, call.name, item.number, args[:own], tensor)
        raise error


@contextmanager
def _watched(
    call: BranchCall, reached: Any, library: ArrayLibrary, changed_around: Callable[[], str]
) -> Iterator[None]:
    """Check, if the call asks for it, that what it reaches is afterwards as it was."""
    if call.watched is None:
        yield
        return
    state = ReachedState(reached, call.watched, library.tensor_class)
    yield
    if change_around := changed_around():
        raise RuntimeError(_AROUND.format(name=call.name, what=change_around))
    change = state.what_changed(reached)
    if change is not None:
        raise _lost(call, reached, change, _RETURN)


def _lost(
    call: BranchCall, reached: Any, change: Change, remedy: str, when: str = ""
) -> RuntimeError:
    """The error for what would be lost; ``when`` it was changed, in words."""
    own = getattr(reached.get(""), "remedy", "") if isinstance(reached, dict) else ""
    remedy = own or (_SPAWN if change.is_generator else remedy)
    if change.name and not own:
        remedy += f". changes=({change.name!r},) of the map lets that be lost"
    what = f"`{change.path}`{when}"
    return RuntimeError(_LOST.format(name=call.name, what=what, remedy=remedy))


def _dumped(
    call: BranchCall, result: Any, inputs: Sequence[Any], library: ArrayLibrary
) -> tuple[bytes, list[Any], list[Any]]:
    """The pickle of a result, its arrays, and the tensors that are its outputs.

    Raises:
        TypeError: something in it cannot be pickled; the message names it.
    """
    outputs: list[Any] = []
    places = {id(one): -1 - number for number, one in enumerate(inputs)}

    def number_of(tensor: Any) -> int:
        number = places.get(id(tensor))
        if number is None:
            number = places[id(tensor)] = len(outputs)
            outputs.append(tensor)
        return number

    try:
        data, buffers = dump_result(result, number_of, library)
    except Exception as error:
        what = _NO_RESULT.format(name=call.name)
        raise why_it_does_not_travel(
            error,
            {"its result": result},
            functools.partial(can_return, library=library),
            what=what,
            remedy=_OTHER_RESULT,
        ) from error
    return data, buffers, outputs


def has_history(output: Any) -> bool:
    """Whether an output is to be differentiated: it needs grad, and is no leaf."""
    return bool(output.requires_grad) and output.grad_fn is not None


def _changed(
    call: BranchCall,
    inputs: Sequence[Any],
    before: list[Any],
    kept: dict[int, bytes],
    hidden: dict[int, int],
    library: ArrayLibrary,
    *,
    is_copy: bool,
) -> list[int]:
    """The inputs that the function has changed, which it may do with buffers alone."""
    changed = []
    after = _digests(call, inputs, library) if hidden else {}
    for number, (one, mark) in enumerate(zip(inputs, before, strict=True)):
        kind = call.inputs[number]
        if is_copy and library.has_grad(one):
            what = kind.name or f"a tensor of shape {list(one.shape)}"
            raise RuntimeError(_GRAD.format(name=call.name, what=what))
        if kind.is_buffer:
            if library.content(one) != kept[number]:
                changed.append(number)
        elif library.has_changed(one, mark) or hidden.get(number) != after.get(number):
            what = kind.name or f"an argument of shape {list(one.shape)}"
            raise RuntimeError(CHANGED.format(name=call.name, what=what))
    return changed


def _digests(call: BranchCall, inputs: Sequence[Any], library: ArrayLibrary) -> dict[int, int]:
    """Numbers that show a write which the library does not see (``x.data``, ``x.numpy()``)."""
    return {
        number: digest_of(library.laid_out(one)[0])
        for number, (one, kind) in enumerate(zip(inputs, call.inputs, strict=True))
        if not kind.is_buffer
    }


# ---------------------------------------------------------------------- sums


def sum_of(
    first: Any, second: Any, name: str, library: ArrayLibrary, *, only_check: bool = False
) -> Any:
    """``first + second`` of two results of the same form.

    Raises:
        TypeError: they differ in form, or hold something else than tensors and numbers.
    """
    numbers = int | float | complex | np.number | np.ndarray
    tensor = library.tensor_class
    if isinstance(first, tensor) and isinstance(second, tensor):
        if first.shape != second.shape:
            raise TypeError(_NOT_A_SUM.format(name=name, found=_forms(first, second, tensor)))
        return first if only_check else library.add(first, second)
    if isinstance(first, numbers) and isinstance(second, numbers):
        return first if only_check else first + second
    if type(first) is type(second):
        if isinstance(first, dict) and first.keys() == second.keys():
            pairs = [(key, first[key], second[key]) for key in first]
            return type(first)(
                [(key, sum_of(a, b, name, library, only_check=only_check)) for key, a, b in pairs]
            )
        if isinstance(first, tuple | list) and len(first) == len(second):
            parts = [
                sum_of(a, b, name, library, only_check=only_check)
                for a, b in zip(first, second, strict=True)
            ]
            make: Any = type(first)
            return make(*parts) if hasattr(first, "_fields") else make(parts)
    raise TypeError(_NOT_A_SUM.format(name=name, found=_forms(first, second, tensor)))


def _forms(first: Any, second: Any, tensor: type[Any]) -> str:
    shown = [
        f"a tensor of shape {list(one.shape)}" if isinstance(one, tensor) else type(one).__name__
        for one in (first, second)
    ]
    return shown[0] if shown[0] == shown[1] else " and ".join(shown)
