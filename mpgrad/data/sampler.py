"""Samplers: the order of the samples of a dataset, and the samples of each batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from mpgrad.ops.generators import Generator
from mpgrad.ops.new_tensors.creation import as_tensor, empty
from mpgrad.ops.random import multinomial, randint, randperm

T_co = TypeVar("T_co", covariant=True)

#: The number of indices that are drawn at once with replacement, as in PyTorch.
CHUNK = 32


class Sampler(Generic[T_co]):
    """Yields indices of samples; subclasses define ``__iter__`` and perhaps ``__len__``."""

    def __init__(self, data_source: Any = None) -> None:
        pass

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError("Subclasses of Sampler should implement __iter__.")


class SequentialSampler(Sampler[int]):
    """0, 1, 2 ... for a ``data_source`` of that length."""

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """Indices of ``data_source`` in a new random order at every pass.

    Args:
        data_source: whose length counts.
        replacement: an index may come again.
        num_samples: how many to draw; by default as many as there are.
        generator: where the order is drawn from; by default the process's, from which it takes one
            number for each pass.

    Raises:
        ValueError: ``num_samples`` is not positive.
    """

    def __init__(
        self,
        data_source: Any,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Any = None,
    ) -> None:
        self.data_source, self.replacement, self.generator = data_source, replacement, generator
        self._num_samples = num_samples
        if self.num_samples <= 0 and num_samples is not None:
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={num_samples}"
            )

    @property
    def num_samples(self) -> int:
        """How many indices a pass has."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        # Drawn here and not at the first index, so that the order depends on when the pass began.
        generator = self.generator
        if generator is None:
            generator = Generator().manual_seed(drawn_seed())
        chunks = self._chunks(generator)
        return itertools.chain(next(chunks, ()), itertools.chain.from_iterable(chunks))

    def _chunks(self, generator: Any) -> Iterator[list[int]]:
        """The indices of a pass, in parts: it may have more than memory holds."""
        count, left = len(self.data_source), self.num_samples
        while left > 0 and (count or self.replacement):
            if self.replacement:
                chunk = randint(0, count, (min(left, CHUNK),), generator=generator).tolist()
            else:
                chunk = randperm(count, generator=generator).tolist()[:left]
            yield chunk
            left -= len(chunk)

    def __len__(self) -> int:
        return self.num_samples


def drawn_seed(generator: Any = None) -> int:
    """A seed, drawn from ``generator`` or the process's."""
    return int(empty((), dtype=np.int64).random_(generator=generator).item())


class SubsetRandomSampler(Sampler[Any]):
    """The elements of ``indices`` in a new random order at every pass.

    Args:
        indices: what to draw from, each once.
        generator: where the order is drawn from; default: mpgrad's own.
    """

    def __init__(self, indices: Sequence[Any], generator: Any = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[Any]:
        order = randperm(len(self.indices), generator=self.generator).tolist()
        return iter([self.indices[k] for k in order])

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """Indices of ``weights``, drawn with probabilities in proportion to these.

    Args:
        weights: one for each sample.
        num_samples: how many to draw.
        replacement: an index may come again.
        generator: where to draw from.

    Raises:
        ValueError: ``num_samples`` is not positive, or ``weights`` does not have one dimension.
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Any = None,
    ) -> None:
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={num_samples}"
            )
        self.weights = as_tensor(weights, dtype=np.float64)
        if self.weights.ndim != 1:
            raise ValueError(
                "weights should be a 1d sequence but given weights have shape "
                f"{tuple(self.weights.shape)}"
            )
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self) -> Iterator[int]:
        drawn = multinomial(
            self.weights, self.num_samples, self.replacement, generator=self.generator
        )
        return iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """The indices of ``sampler`` in lists of ``batch_size``.

    Args:
        sampler: yields indices.
        batch_size: of every list but perhaps the last.
        drop_last: leave out a last list that is shorter.

    Raises:
        ValueError: ``batch_size`` is not a positive integer, or ``drop_last`` no bool.
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise ValueError(
                f"batch_size should be a positive integer value, but got batch_size={batch_size!r}"
            )
        if not isinstance(drop_last, bool):
            raise ValueError(
                f"drop_last should be a boolean value, but got drop_last={drop_last!r}"
            )
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches(iter(self.sampler))

    def _batches(self, indices: Iterator[int]) -> Iterator[list[int]]:
        while batch := list(itertools.islice(indices, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield batch

    def __len__(self) -> int:
        whole, rest = divmod(len(self.sampler), self.batch_size)  # type: ignore[arg-type]
        return whole + (rest > 0 and not self.drop_last)
