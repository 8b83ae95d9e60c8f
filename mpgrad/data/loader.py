"""DataLoader: batches of a dataset, in order or shuffled, made in this process or in workers."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import GenericAlias
from typing import Any

from mpgrad.autograd.profiling.ranges import ANNOTATION, span
from mpgrad.base.accidental_ends import accidental_end
from mpgrad.data.collate import default_collate, default_convert
from mpgrad.data.dataset import IterableDataset
from mpgrad.data.fetching import END, USER_CODE, Fetch, fetcher
from mpgrad.data.loader_worker import LoaderWork
from mpgrad.data.sampler import BatchSampler, RandomSampler, SequentialSampler, drawn_seed
from mpgrad.data.worker_pool import WorkerPool

#: The default number of batches that each worker makes in advance.
PREFETCH_FACTOR = 2


class DataLoader:
    """Iterates over the batches of ``dataset``; every pass is an epoch.

    Args:
        dataset: anything with ``__getitem__`` and ``__len__``, or an IterableDataset.
        batch_size: samples per batch; None: the samples themselves, one by one.
        shuffle: in a new random order at every pass.
        sampler: yields the indices, in place of ``shuffle``.
        batch_sampler: yields lists of indices, in place of all four of these options.
        num_workers: processes that make the batches ahead; 0: they are made here. The order of the
            batches is the same.
        collate_fn: makes a batch of a list of samples (default: :func:`default_collate`).
        pin_memory, pin_memory_device, in_order: accepted, and without effect: batches always come
            in order, into the memory where this process's tensors are born.
        drop_last: leave out a last batch that is not full.
        timeout: seconds to wait for a batch of a worker; 0: for ever.
        worker_init_fn: called in each worker with its number, before its first batch.
        multiprocessing_context: of ``multiprocessing``, or the name of its start method (default:
            "fork", so that nothing needs to be pickled on its way into a worker).
        generator: where the order and the workers' seeds are drawn from; by default the process's,
            so that ``mg.manual_seed`` repeats them.
        prefetch_factor: batches that each worker makes in advance (default: 2).
        persistent_workers: keep the workers from one pass to the next.

    Raises:
        ValueError: an option is out of range, or excludes another one.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        _check_order(dataset, batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.dataset, self.generator = dataset, generator
        self.num_workers, self.persistent_workers = num_workers, persistent_workers
        self.prefetch_factor = prefetch_factor or (PREFETCH_FACTOR if num_workers else None)
        self.pin_memory, self.timeout, self.worker_init_fn = pin_memory, timeout, worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self._is_iterable = isinstance(dataset, IterableDataset)
        if sampler is None:
            if self._is_iterable:
                sampler = itertools.repeat(0)
            else:
                sampler = (
                    RandomSampler(dataset, generator=generator)
                    if shuffle
                    else SequentialSampler(dataset)
                )
        if batch_sampler is not None:
            batch_size, drop_last = None, False
        elif batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size, self.drop_last = batch_size, drop_last
        self.sampler, self.batch_sampler = sampler, batch_sampler
        default = default_convert if batch_sampler is None else default_collate
        self.collate_fn = collate_fn or default
        self._own_collate = collate_fn
        #: What ``len()`` said of an iterable dataset, which may have more.
        self._told_length: int | None = None
        self._pool: WorkerPool | None = None

    def __len__(self) -> int:
        """The number of batches of one pass.

        Raises:
            TypeError: an iterable dataset has no length.
        """
        if not self._is_iterable:
            order = self.sampler if self.batch_sampler is None else self.batch_sampler
            return len(order)  # type: ignore[arg-type]
        samples = len(self.dataset)
        whole, rest = divmod(samples, self.batch_size or 1)
        self._told_length = whole + (rest > 0 and not self.drop_last)
        return self._told_length

    def __iter__(self) -> Iterator[Any]:
        try:
            return self._begun_pass()
        except StopIteration as error:
            raise accidental_end(USER_CODE) from error

    def _begun_pass(self) -> _Pass:
        seed = drawn_seed(self.generator)
        # Begun here and not at the first batch: the order depends on when the pass began.
        indices = iter(self.sampler if self.batch_sampler is None else self.batch_sampler)
        batched = self.batch_sampler is not None
        if not self.num_workers:
            fetch = fetcher(self.dataset, self._own_collate, batched, self.drop_last)
            return _Pass(self, partial(_next_batch, fetch, indices))
        pool = self._pool
        if pool is None or not pool.may_go_on:
            work = LoaderWork(
                self.dataset,
                self._own_collate,
                batched,
                self.drop_last,
                self.worker_init_fn,
                self.num_workers,
            )
            assert self.prefetch_factor is not None
            pool = WorkerPool(
                work, self.prefetch_factor, self.timeout, self.multiprocessing_context
            )
        self._pool = pool if self.persistent_workers else None
        ends_with_pass = None if self.persistent_workers else pool
        return _Pass(self, pool.batches(indices, seed), ends_with_pass)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and "_pool" in vars(self):
            raise ValueError(f"{name} attribute should not be set after DataLoader is initialized")
        super().__setattr__(name, value)

    __class_getitem__: Any = classmethod(GenericAlias)


#: What the order of the batches was made of.
_FIXED = frozenset(
    {"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"}
)


def _next_batch(fetch: Fetch, indices: Iterator[Any]) -> Any:
    wanted = next(indices, END)
    return END if wanted is END else fetch(wanted)


class _Pass(Iterator[Any]):
    """One pass over the batches; after an exception of a batch it goes on with the next.

    Args:
        loader: whose batches they are.
        fetch: makes the next batch, or returns ``END``.
        pool: the workers that end with this pass, if some do.
    """

    def __init__(
        self, loader: DataLoader, fetch: Callable[[], Any], pool: WorkerPool | None = None
    ) -> None:
        self._loader, self._fetch, self._pool = loader, fetch, pool
        self._count = 0

    def __next__(self) -> Any:
        with span("enumerate(DataLoader)#DataLoader.__next__", ANNOTATION):
            try:
                batch = self._fetch()
            except StopIteration as error:
                raise accidental_end(USER_CODE) from error
            if batch is END:
                if self._pool is not None:
                    self._pool.close()
                raise StopIteration
        self._count += 1
        told = self._loader._told_length
        if told is not None and self._count > told:
            self._warn(told)
        return batch

    def __len__(self) -> int:
        if self._loader._is_iterable:
            raise TypeError("a pass over an IterableDataset has no len()")
        return len(self._loader)

    def _warn(self, told: int) -> None:
        hint = (
            " For multiprocessing data-loading, this could be caused by not properly configuring "
            "the IterableDataset replica at each worker: see get_worker_info()."
        )
        warnings.warn(
            f"Length of IterableDataset {self._loader.dataset} was reported to be {told} (when "
            f"accessing len(dataloader)), but {self._count} samples have been fetched."
            + (hint if self._loader.num_workers else ""),
            stacklevel=3,
        )


def _check_workers(
    num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool
) -> None:
    if num_workers < 0:
        raise ValueError(
            "num_workers option should be non-negative; use num_workers=0 to make batches here"
        )
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if prefetch_factor is not None and num_workers == 0:
        raise ValueError("prefetch_factor option needs num_workers > 0")
    if prefetch_factor is not None and prefetch_factor < 1:
        raise ValueError(f"prefetch_factor option should be positive, but got {prefetch_factor}")
    if persistent_workers and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")


def _check_order(
    dataset: Any,
    batch_size: int | None,
    shuffle: bool | None,
    sampler: Any,
    batch_sampler: Any,
    drop_last: bool,
) -> None:
    if isinstance(dataset, IterableDataset):
        for name, value in (
            ("shuffle", shuffle or None),
            ("sampler", sampler),
            ("batch_sampler", batch_sampler),
        ):
            if value is not None:
                raise ValueError(
                    f"DataLoader with IterableDataset: expected unspecified {name} option, but got "
                    f"{name}={value}; an iterable dataset has its own order"
                )
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler or drop_last):
        raise ValueError(
            "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and "
            "drop_last"
        )
    if batch_size is None and batch_sampler is None and drop_last:
        raise ValueError(
            "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
        )
