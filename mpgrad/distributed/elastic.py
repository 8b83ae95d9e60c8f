"""Elastic programs: they outlive their ranks. ``run`` repeats a function from the last commit.

A rank that dies is started again by ``mpgrad run --max-restarts``. The others leave the collective
that they are in with HostLost, meet the new process as another generation of the same ranks, and
all of them take the newest state that a survivor has committed. The names are Horovod's.
"""

from __future__ import annotations

import functools
import gc
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from mpgrad.distributed.data_parallel import DistributedDataParallel, copy_of
from mpgrad.distributed.object_collectives import all_gather_object, broadcast_object_list
from mpgrad.distributed.process_group import (
    barrier_of,
    get_rank,
    get_world_size,
    group_of,
    is_torchelastic_launched,
    renew_process_group,
)
from mpgrad.distributed.states.host_membership import newest
from mpgrad.distributed.world import has_both, restarts_max
from mpgrad.errors import HostLost
from mpgrad.nn.module import Module
from mpgrad.ops.generators import initial_seed, manual_seed

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: The number of the commit of a State that has never met another rank's.
NEVER = -1


class State:
    """What all ranks have in common between two steps, and its last commit.

    Each name becomes an attribute. Of what has ``state_dict()`` and ``load_state_dict()`` (modules,
    optimizers, schedulers) these are used; anything else is pickled, and replaced when it comes
    back.

    The random numbers of a rank begin anew with each commit, from its number, the rank, and the
    seed that rank 0 had when it made its State. So a rank that is started again draws what the dead
    one would have drawn. ``random`` and ``numpy.random`` are left alone.

    Args:
        objects: by name, the same names on all ranks.

    Raises:
        TypeError: an object cannot be saved, or belongs to one generation of the ranks.
        ValueError: a name is one of State's own.

    Example:
        >>> state = State(model=model, optimizer=optimizer, epoch=0, batch=0)
    """

    def __init__(self, **objects: Any) -> None:
        for name, value in objects.items():
            if name.startswith("_") or hasattr(type(self), name):
                raise ValueError(f"State({name}=...): this name is State's own")
            if isinstance(value, DistributedDataParallel):
                raise TypeError(
                    f"State({name}=...): a DistributedDataParallel belongs to ranks of which one "
                    "may die: give State its .module, and wrap that in the function that "
                    "elastic.run runs"
                )
            setattr(self, name, value)
        self._names = tuple(objects)
        #: Of what random numbers begin with; the number of the last commit, and that of the last
        #: one before the loader's present pass.
        self._seed, self._number, self._pass = initial_seed(), NEVER, NEVER
        self._saved = self._pickled()

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(self.__dict__.get("_names", ()))
        raise AttributeError(f"this State has no {name!r}; it has: {known}")

    def commit(self) -> None:
        """Keep the state as it is now; all ranks commit at the same places of the program.

        The buffers of modules become those of rank 0 first.

        Raises:
            HostLost: a rank is lost.
            RuntimeError: it has never been synchronized.
            TypeError: something cannot be saved.
        """
        self._check_synchronized("commit")
        buffers = [b for m in self._modules() for b in m.buffers()]
        copy_of(0, buffers, group_of(None))
        self._saved = self._pickled()
        self._number += 1
        self._begin_random_numbers(self._number)

    def rest_of(self, loader: Iterable[T], done: int) -> Iterator[T]:
        """The batches of a pass over ``loader`` that come after the first ``done``.

        A pass that is repeated draws the random numbers that it has drawn before, and so does the
        first step after it. The first ``done`` batches are loaded and dropped.

        Args:
            loader: gives the same batches in each run of this pass.
            done: how many of them belong to steps that are committed; 0 begins a pass.

        Raises:
            RuntimeError: the State has never been synchronized.
        """
        self._check_synchronized("rest_of")
        if done == 0:
            self._pass = self._number
        self._begin_random_numbers(self._pass)
        batches = iter(loader)
        if done > 0:
            for _ in itertools.islice(batches, done):
                pass
            self._begin_random_numbers(self._number)
        return batches

    def restore(self) -> None:
        """Go back to the last commit; gradients are dropped."""
        self._pass, saved_values = self._saved
        for name, saved in saved_values.items():
            mine, value = getattr(self, name), pickle.loads(saved)
            if _has_state(mine):
                mine.load_state_dict(value)
            else:
                setattr(self, name, value)
        for module in self._modules():
            module.zero_grad()
        if self._number != NEVER:
            self._begin_random_numbers(self._number)

    def sync(self) -> None:
        """Give all ranks the newest state that one of them has committed.

        At the beginning that is what rank 0 has made.

        Raises:
            HostLost: a rank is lost.
            RuntimeError: the State of another rank has other names.
        """
        numbers: list[Any] = [None] * get_world_size()
        all_gather_object(numbers, self._number)
        found: list[Any] = [max(self._number, 0), self._seed, self._saved]
        broadcast_object_list(found, src=newest(numbers))
        names = tuple(found[2][1])
        if names != self._names:
            raise RuntimeError(
                f"a State of {', '.join(names)} came from another rank, but this rank's is of "
                f"{', '.join(self._names)}: all ranks have to make the same one"
            )
        self._number, self._seed, self._saved = found
        self.restore()

    def _check_synchronized(self, method: str) -> None:
        if self._number == NEVER:
            raise RuntimeError(
                f"State.{method}() before State.sync(): call it in the function that elastic.run "
                "runs"
            )

    def _modules(self) -> list[Module]:
        values = [getattr(self, name) for name in self._names]
        return [value for value in values if isinstance(value, Module)]

    def _pickled(self) -> tuple[int, dict[str, bytes]]:
        return self._pass, {name: _pickled(name, getattr(self, name)) for name in self._names}

    def _begin_random_numbers(self, number: int) -> None:
        mixed = np.random.SeedSequence([self._seed, get_rank(), number])
        manual_seed(int(mixed.generate_state(1, np.uint64)[0]))


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _pickled(name: str, value: Any) -> bytes:
    try:
        saved = value.state_dict() if _has_state(value) else value
        return pickle.dumps(saved, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # pickle raises anything
        raise TypeError(
            f"State({name}=...): a {type(value).__name__} cannot be saved ({error}): give what "
            "pickle takes, or what has state_dict() and load_state_dict()"
        ) from error


def run(
    function: Callable[Concatenate[State, P], R],
) -> Callable[Concatenate[State, P], R]:
    """Decorate the function that trains; a call of it outlives the death of ranks.

    Before the function runs, all ranks get the newest committed state. Where a rank is lost, the
    others wait until it was started again, as long as the ``timeout`` of ``init_process_group``
    says, and run the function again. It ends when it has ended on all ranks. What belongs to one
    generation of the ranks (DistributedDataParallel, ``new_group``) has to be made in it.

    Args:
        function: takes a State, and anything else; it begins where the State is.

    Returns:
        The function; all ranks have to call it, after ``init_process_group``. It raises
        RuntimeError where no launcher restarts ranks or ``rpc`` needs them, RendezvousTimeout where
        ranks do not come, and HostLost where ``--max-restarts`` is 0.

    Example:
        >>> @elastic.run
        ... def train(state):
        ...     model = DistributedDataParallel(state.model)
        ...     while state.step < STEPS:
        ...         step(model, state.optimizer)
        ...         state.step += 1
        ...         state.commit()
        >>> train(State(model=model, optimizer=optimizer, step=0))
    """

    @functools.wraps(function)
    def again_and_again(state: State, /, *args: P.args, **kwargs: P.kwargs) -> R:
        _check(state)
        while True:
            has_returned = False
            try:
                state.sync()
                result = function(state, *args, **kwargs)
                has_returned = True
                # Those that are ready have to be there as long as one may die.
                group = group_of(None)
                group.start(barrier_of(group, is_end=True)).wait()
                return result
            except HostLost:
                if has_returned and group_of(None).has_ended():
                    return result  # others know that all have, and may have gone
                if restarts_max() == 0:
                    raise
            # The error has led to the frames of the function, and to the hooks of its models.
            gc.collect()
            renew_process_group()

    return again_and_again


def _check(state: Any) -> None:
    """Raise unless the function can run again."""
    if not is_torchelastic_launched():
        raise RuntimeError(
            "elastic.run needs a launcher that starts dead ranks again: mpgrad run "
            "--nproc-per-node N --max-restarts M script.py"
        )
    if not isinstance(state, State):
        raise TypeError(f"elastic.run: the first argument has to be a State, not {state!r}")
    if has_both():
        raise RuntimeError(
            "elastic.run: this process takes remote calls, too; what a dead rank owned of these is "
            "lost. Call rpc.shutdown() before"
        )
