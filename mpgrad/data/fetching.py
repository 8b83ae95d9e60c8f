"""How the samples of a dataset become a batch: alike in the user's process and in a worker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from mpgrad.data.collate import default_collate, default_convert
from mpgrad.data.dataset import IterableDataset, gathers, samples_of

Collate = Callable[[Any], Any]
#: Makes one batch from the indices of its samples; an iterable dataset needs only their number. It
#: returns ``END`` if an iterable dataset has no more samples.
Fetch = Callable[[Any], Any]
#: Takes the place of a batch after the last one. StopIteration would not do: code of the user
#: raises it by accident.
END: Any = object()
#: For errors: where such an accident happens.
USER_CODE = "A dataset, sampler, collate_fn or worker_init_fn"


def fetcher(dataset: Any, collate: Collate | None, batched: bool, drop_last: bool) -> Fetch:
    """The function that makes batches of ``dataset``.

    Args:
        dataset: with indices, or an IterableDataset, which is iterated from its beginning.
        collate: makes a batch of a list of samples; None: :func:`default_collate`, or
            :func:`default_convert` of a single sample.
        batched: a batch has several samples; else what is asked for is one index.
        drop_last: of an iterable dataset, leave out a last batch that is not full.
    """
    if isinstance(dataset, IterableDataset):
        return _of_iterator(iter(dataset), collate, batched, drop_last)

    def fetch(indices: Any) -> Any:
        if not batched:
            return (collate or default_convert)(dataset[indices])
        if collate is None and gathers(dataset):
            return dataset._gather(indices)
        return (collate or default_collate)(samples_of(dataset, indices))

    return fetch


def _of_iterator(
    samples: Iterator[Any], collate: Collate | None, batched: bool, drop_last: bool
) -> Fetch:
    def fetch(indices: Any) -> Any:
        if not batched:
            sample = next(samples, END)
            return END if sample is END else (collate or default_convert)(sample)
        taken = list(itertools.islice(samples, len(indices)))
        if not taken or (drop_last and len(taken) < len(indices)):
            return END
        return (collate or default_collate)(taken)

    return fetch
