"""CallsOfMap: the calls of one map or fork, and the results of their answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpgrad.arrays.cpu.array_program import TRACING
from mpgrad.arrays.cuda.device_arrays import CUDA
from mpgrad.autograd.profiling.ranges import FUNCTION, WAITING, span
from mpgrad.calls.array_library import ArrayLibrary
from mpgrad.calls.branch import has_history, record
from mpgrad.calls.call import BranchCall, InputKind, Item, Ran, failure_noted
from mpgrad.calls.context_variables import of_packages
from mpgrad.calls.fork_function import IN_CLIENT, Ended, Lifetime, new_number
from mpgrad.calls.kept_branches import BRANCHES
from mpgrad.calls.random_numbers import Drawn, draw_seed, let_go_on
from mpgrad.calls.results import load_result
from mpgrad.calls.travel import Sender, travels
from mpgrad.calls.unpicklable import why_it_does_not_travel
from mpgrad.engine.calls_in_workers import Answered, Chunks, Request
from mpgrad.engine.engine import current_engine
from mpgrad.engine.packed_arrays import PackedArrays
from mpgrad.parallel import placing
from mpgrad.parallel.buffers_of_forks import BuffersOfFork
from mpgrad.recording.tensors import storage
from mpgrad.shm.arena import client_arena
from mpgrad.wire.captured_state import capture_state

Array: TypeAlias = np.ndarray[Any, Any]


class _Ran(NamedTuple):
    """What one BranchCall has given, wherever it ran."""

    result: bytes
    buffers: list[Array]
    #: Tensors without history.
    outputs: list[Any]
    requires_grad: list[bool]
    changed: list[tuple[int, Any]]
    saved: Sequence[int]
    unreached: Sequence[int]
    digest: int
    #: Of its branch, if there is one.
    lifetime: Lifetime | None


class CallsOfMap:
    """The Calls of one map or fork, and the results of their answers.

    Args:
        library: of the tensors.
        fn, items, positional, keywords: what is called, and with what.
        pieces: the items of each chunk.
        is_sum: whether the results of a chunk are added.
        changes, retries: see ``parallel_map``.
        are_buffers_of_first: whether Modules' buffers keep what the first call has left in them.
        seed: of the random numbers; None: one is drawn from each of this process's generators.

    Attributes:
        name, key: of the function, for errors and for what is learned of it.
        captured: the state of the caller.
        keep: the arrays that workers read, as long as any branch may be made again.
        is_on_gpu: whether an input lies on a GPU, where workers of the CPU cannot read it.
        beside: of a fork, the buffers that it reaches.
    """

    def __init__(
        self,
        library: ArrayLibrary,
        fn: Callable[..., Any],
        items: list[tuple[Any, ...]],
        positional: tuple[Any, ...],
        keywords: dict[str, Any],
        pieces: list[range],
        *,
        is_sum: bool,
        changes: frozenset[str] = frozenset(),
        retries: int = 0,
        are_buffers_of_first: bool = False,
        seed: tuple[int, int, int] | None = None,
    ) -> None:
        if TRACING.entered and (program := TRACING.program()) is not None:
            program.give_up(
                "the calls of parallel_map() and fork() may run in workers; a loop in their place "
                "would be compiled"
            )
        library.require_own_surroundings()
        # An engine's initializer decides which globals travel, so it must be known first.
        current_engine().execution_for_calls()
        self._watched = changes if placing.RUNS.is_watched(fn) else None
        self._are_buffers_of_first, self._retries = are_buffers_of_first, retries
        self._fn, self._library = fn, library
        self.name, self.key = placing.name_of(fn), placing.key_of(fn)
        self._items, self._pieces, self._is_sum = items, pieces, is_sum
        self._sender = Sender(library, changes)
        self._seed = draw_seed(library) if seed is None else seed
        self._modes, self.captured = library.modes(), capture_state()
        self._travels = functools.partial(travels, library=library)
        #: The arrays of the inputs by ``id``; the inputs live as long.
        self._array_of: dict[int, Array] = {}
        #: NumPy arrays among the arguments, and copies for both passes; and copies of inputs.
        self._own_arrays: dict[int, tuple[Array, Array]] = {}
        self._copies: dict[int, Array] = {}
        #: The items that have drawn from generators, by the ``id`` of these.
        self._drawn_by: dict[int, int] = {}
        try:
            context = [*of_packages(self._travels)]
            code, self._buffers = self._sender.dump_shared((fn, positional, keywords, context))
        except Exception as error:
            roots = {self.name: fn, "shared": positional or keywords}
            raise why_it_does_not_travel(error, roots, self._travels) from error
        self._code = client_arena().empty((len(code),), np.uint8)
        self._code[:] = np.frombuffer(code, np.uint8)
        self.keep = PackedArrays()
        self._inputs: list[list[Any]] = []
        self._calls: list[BranchCall] = []
        #: The number of chunks whose calls there are.
        self._packed = 0
        self._arrays: list[list[Array]] = []
        self.is_on_gpu = False
        self.beside: BuffersOfFork | None = None
        self._pack_until(len(items) if CUDA.in_use else 1)  # is a later one on a GPU?

    def _pack_until(self, items: int) -> None:
        """Make the calls of so many items: later ones are packed while workers run earlier ones."""
        while self._packed < len(self._pieces) and self._pieces[self._packed].start < items:
            self._pack(self._pieces[self._packed])
            self._packed += 1

    @property
    def _count(self) -> int:
        """The number of calls."""
        return len(self._pieces if self._is_sum else self._items)

    def _pack(self, piece: range) -> None:
        """Make the Calls of one chunk: one of all its items for a sum, else one for each."""
        for numbers in [piece] if self._is_sum else [range(at, at + 1) for at in piece]:
            self._sender.begin_call()
            packed = []
            for at in numbers:
                try:
                    data, buffers = self._sender.dump(self._items[at])
                except Exception as error:
                    args = self._items[at]
                    roots = {f"(argument {k} of item {at})": one for k, one in enumerate(args)}
                    raise why_it_does_not_travel(error, roots, self._travels) from error
                packed.append(Item(data, buffers, at))
            inputs = list(self._sender.tensors)
            kinds = tuple([self._kind(one, numbers[0]) for one in inputs])
            self._inputs.append(inputs)
            self._arrays.append([self._array(one) for one in inputs])
            self.is_on_gpu |= any(map(self._library.is_on_gpu, inputs))
            self._calls.append(
                BranchCall(
                    new_number(),
                    self.name,
                    self._code,
                    self._buffers,
                    tuple(packed),
                    kinds,
                    self._is_sum,
                    self._seed,
                    self._modes,
                    self._library.module,
                    self.captured,
                    self._watched if numbers[0] == 0 else None,
                    self._held(),
                    self._watched is not None,
                    self._retries,
                )
            )

    def _held(self) -> tuple[tuple[type[Any], str, int], ...]:
        return tuple([(cls, name, self._sender.number_of(t)) for cls, name, t in self._sender.held])

    def _array(self, tensor: Any) -> Array:
        array = self._array_of.get(id(tensor))
        if array is None:
            is_buffer = id(tensor) in self._sender.buffers
            array = self._array_of[id(tensor)] = self._library.array(tensor, is_buffer)
        return array

    def _kind(self, tensor: Any, item: int) -> InputKind:
        is_buffer = id(tensor) in self._sender.buffers
        name = next(
            (f"argument {k}" for k, one in enumerate(self._items[item]) if one is tensor), ""
        )
        return self._library.kind(tensor, is_buffer, name)

    # ------------------------------------------------------------------ running

    def run(self) -> list[Any]:
        """The results of all calls, in order."""
        with span(f"parallel_map({self.name})", FUNCTION), failure_noted(self.name):
            return self._run()

    def _run(self) -> list[Any]:
        mode = "local" if self.is_on_gpu else placing.mode()
        if mode == "local":
            return self.run_here()
        if mode == "process":
            ran = self._in_workers(0)
        else:
            key, in_workers = (self.key, self._modes[0]), lambda: self._in_workers(0)
            ran = placing.run_wherever_it_is_faster(key, self._count, self._here_until, in_workers)
        self._write_buffers(ran)
        return [self._result(number, one) for number, one in enumerate(ran)]

    def run_here(self) -> list[Any]:
        """The results of all calls, which run in this process."""
        self._pack_until(len(self._items))  # what cannot travel is found before anything runs
        ran = self._run_here(until=lambda done: False)
        self._note_buffers(ran[0])
        self._write_buffers(ran)
        return [self._result(number, one) for number, one in enumerate(ran)]

    def _here_until(self, until: Callable[[int], bool]) -> list[_Ran]:
        """Run the calls here, and in workers what is left when ``until(done)`` is true."""
        self._pack_until(len(self._items))
        ran = self._run_here(until=until)
        return ran if len(ran) == self._count else ran + self._in_workers(len(ran))

    def _run_here(self, until: Callable[[int], bool]) -> list[_Ran]:
        return placing.run_here(self.key, self._count, self._here, self._library, until=until)

    def _here(self, number: int) -> _Ran:
        """Run one call in this process, on copies as a worker has."""
        call = self._calls[number]
        if any(kind.requires_grad for kind in call.inputs):  # it may be differentiated
            call = self._calls[number] = call.with_own_arrays(self._own_arrays)
        library, arrays = self._library, list(map(self._own, self._arrays[number]))
        inputs = [library.leaf(kind, one) for kind, one in zip(call.inputs, arrays, strict=True)]
        execution = current_engine().execution_for_calls()
        execution.initialize_here()
        with execution.blas_limit(), span(self.name, FUNCTION):
            branch = record(call._replace(captured=None), inputs)
        outputs = [library.copied(output) for output in branch.outputs]
        for at in library.aliases(branch):
            library.frozen(outputs[at])
        buffers = [buffer.copy() for buffer in branch.buffers]
        needing = [has_history(output) for output in branch.outputs]
        changed = [(at, library.copied(branch.inputs[at])) for at in branch.changed]
        used: tuple[Sequence[int], Sequence[int]] = (), ()
        digest, lifetime = 0, None
        if branch.is_recorded:
            used, digest = library.used_inputs(branch), branch.digest()
            BRANCHES.put(call.number, branch, call.seed)
            lifetime = Lifetime(call.number, IN_CLIENT, None, self.keep)
        return _Ran(
            branch.result, buffers, outputs, needing, changed, *used, digest, lifetime,
        )  # fmt: skip

    def _own(self, array: Array) -> Array:
        """``array``, or a copy for this process if it is the caller's own memory."""
        if not self._library.is_live(array):
            return array
        if id(array) not in self._copies:
            self._copies[id(array)] = array.copy()
        return self._copies[id(array)]

    def _in_workers(self, first: int) -> list[_Ran]:
        """Run the calls from ``first`` on in workers."""
        execution = current_engine().execution_for_calls()
        self._ended = execution.ended_branches
        with span(f"wait for {self.name}", WAITING):
            chunks = self._chunks(first)
            answered = execution.run_calls(chunks, self.captured, self.keep)
        requests = [request for chunk in chunks.made for request in chunk]
        tasks = [(chunk[0].recorded[0], len(chunk)) for chunk in chunks.made for _ in chunk]
        placing.TIMES.observe(self.key, [one.took_us for one in answered])
        ran, lacking = dict[int, _Ran](), dict[int, Request]()
        placing.SIZES.note(self.key, max([one.answer.nbytes for one in answered]))
        for at, one in enumerate(answered):
            if one.lacks_room:
                lacking[at] = requests[at].with_room(one.answer.nbytes, one.answer.slot)
            else:
                ran[at] = self._opened(first + at, one, tasks[at])
        if lacking:
            alone = list(lacking.values())
            chunks = Chunks([1] * len(alone), lambda at: [alone[at]])
            again = execution.run_calls(chunks, self.captured, self.keep)
            for at, one in zip(lacking, again, strict=True):
                self._ended.extend(lacking[at].left_behind(one.answer.slot))
                if one.lacks_room:
                    lacking[at].with_room(one.answer.nbytes, one.answer.slot)
                ran[at] = self._opened(first + at, one)
        return [ran[at] for at in range(len(requests))]

    def request(self, number: int) -> Request:
        """A call, for workers."""
        limit = current_engine().execution_for_calls().shm_limit
        room = placing.SIZES.expected(self.key, self._count, limit)
        call = self._calls[number] = self._calls[number].with_own_arrays(self._own_arrays)
        return Request(call, self._arrays[number], room)

    def _chunks(self, first: int) -> Chunks:
        """The calls from ``first`` on, for workers."""
        if self._is_sum:
            calls = [range(at, at + 1) for at in range(first, self._count)]
        else:
            pieces = [one for one in self._pieces if one.stop > first]
            calls = [range(max(one.start, first), one.stop) for one in pieces]
        calls = placing.CUTS.tasks(self.key, calls)

        def make(chunk: int) -> list[Request]:
            last = calls[chunk].stop
            self._pack_until(self._pieces[last - 1].stop if self._is_sum else last)
            return [self.request(at) for at in calls[chunk]]

        return Chunks(list(map(len, calls)), make)

    def _opened(self, number: int, one: Answered, task: tuple[int, int] | None = None) -> _Ran:
        """What call ``number`` has given. Its branch goes with it, whatever is raised later."""
        answer, data = one.answer, one.data

        def array_of(told: Any) -> Array:
            if data is None:
                return np.ndarray(told.shape, told.dtype)
            return np.ndarray(told.shape, told.dtype, data.data, told.offset, told.strides)

        outputs = [self._library.opened(told, data) for told in answer.outputs]
        for at in answer.aliases:
            self._library.frozen(outputs[at])
        needs = [told.requires_grad for told in answer.outputs]
        branch = self._calls[number].number
        return _Ran(
            answer.result,
            [array_of(told) for told in answer.buffers],
            outputs,
            needs,
            [(at, self._library.opened(told, data)) for at, told in answer.changed],
            answer.saved, answer.unreached, answer.digest,
            Lifetime(branch, answer.slot, self._ended, self.keep, task) if any(needs) else None,
        )  # fmt: skip

    # ------------------------------------------------------------------ a fork

    def begin_fork(self) -> BuffersOfFork:
        """Note which buffers the only call reaches, for the forks beside it."""
        pairs = zip(self._inputs[0], self._calls[0].inputs, strict=True)
        self.beside = BuffersOfFork(self.name, [one for one, kind in pairs if kind.is_buffer])
        return self.beside

    def _note_buffers(self, ran: _Ran) -> None:
        if self.beside is not None:
            self.beside.note([self._inputs[0][at] for at, _ in ran.changed])

    def take_own_memory(self) -> None:
        """Copy the tensors' memory that arrays of the caller's may write, without a new version."""
        is_held = self._library.is_held_elsewhere
        self._arrays[0] = [
            storage.adopt_in_layout(array, array) if is_held(one) else array
            for one, array in zip(self._inputs[0], self._arrays[0], strict=True)
        ]

    def place(self) -> Any:
        """The place of the Node that is made when the answer comes."""
        return self._library.place(self._inputs[0], self._modes)

    def versions(self) -> list[int]:
        """The versions of the inputs, for ``result_of``."""
        return list(map(self._library.version, self._inputs[0]))

    def _require_unchanged(self, versions: list[int], ran: _Ran) -> None:
        """Check that nobody has changed the inputs of a call while it ran. Others may change
        buffers that the call has left as they were."""
        written = {at for at, _ in ran.changed}
        for at, kind in enumerate(self._calls[0].inputs):
            one, is_left = self._inputs[0][at], kind.is_buffer and at not in written
            if self._library.version(one) != versions[at] and not is_left:
                raise RuntimeError(
                    f"{kind.name or 'a tensor'} of shape {list(one.shape)} was changed in place "
                    f"while {self.name} ran with it in a worker: wait for the result first, or "
                    "pass a .clone() of it"
                )

    def result_of(self, answered: Answered, ended: Ended, place: Any, versions: list[int]) -> Any:
        """The result of the only call, whose Node gets a place that was taken before.

        Raises:
            RuntimeError: an input has another version than in ``versions``, or a fork beside it
                reaches a buffer that one of them has changed.
        """
        self._ended = ended
        placing.TIMES.observe(self.key, [answered.took_us])
        placing.SIZES.note(self.key, answered.answer.nbytes)
        ran = self._opened(0, answered)
        self._note_buffers(ran)
        self._require_unchanged(versions, ran)
        self._write_buffers([ran])
        return self._result(0, ran, place)

    # ------------------------------------------------------------------ results

    def _write_buffers(self, ran: list[_Ran]) -> None:
        """Give Modules' buffers what the calls have left in them, in the order of the items."""
        written: dict[int, int] = {}
        for number, one in enumerate(ran):
            for at, value in one.changed:
                buffer = self._inputs[number][at]
                before = written.setdefault(id(buffer), number)
                if before != number and self._are_buffers_of_first:
                    continue
                if before != number:
                    raise RuntimeError(
                        f"items {self._first(before)} and {self._first(number)} of {self.name} "
                        f"have both changed the same buffer, of shape {list(buffer.shape)}. In a "
                        "loop each would start from what the one before has left, which calls "
                        "side by side cannot. Call module.eval(), or give each item a Module of "
                        "its own; mg.nn.DataParallel keeps the buffers of part 0"
                    )
                self._library.write(buffer, value)

    def _first(self, number: int) -> int:
        return self._calls[number].items[0].number

    def _result(self, number: int, ran: _Ran, place: Any = None) -> Any:
        inputs, outputs = self._inputs[number], ran.outputs
        wanted = tuple([at for at, needs in enumerate(ran.requires_grad) if needs])
        if wanted and ran.lifetime is not None:
            call = self._calls[number]
            told = Ran(
                call,
                ran.lifetime,
                ran.digest,
                wanted,
                tuple([outputs[at] for at in wanted]),
                len(outputs),
                tuple([at for at in ran.saved if not call.inputs[at].is_buffer]),
                tuple(ran.unreached),
                tuple(self._arrays[number]),
            )
            attached = self._library.attach(told, inputs, place, self._fn)
            for at, output in zip(wanted, attached, strict=True):
                outputs[at] = output
        found = load_result(
            ran.result,
            ran.buffers,
            lambda at: outputs[at] if at >= 0 else inputs[-1 - at],
            self._library,
        )
        if isinstance(found, Drawn):
            let_go_on(found, self._items, self._drawn_by, self.name)
            return found.result
        return found
