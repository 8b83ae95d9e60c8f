"""The tables of docs/evidence/hosts.md that ``scripts/bench hosts`` writes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.document import markdown_table
from benchmarks.hosts.measurement import CALL, CURVE, HALF, MODES, PLAIN, Figures

#: The page between these is written, not typed.
BEGIN = "<!-- scripts/bench hosts --write: from here -->"
END = "<!-- scripts/bench hosts --write: to here -->"

_NAMES = {8: "8", 64 * 1024: "64 KiB", 1024**2: "1 MiB", 16 * 1024**2: "16 MiB"}
#: The aims, in seconds.
_SOON = {
    "a process is killed": 1.0,
    "the raylet of a host is killed": 5.0,
    "a process is stopped": 10.0,
}
_TRAINING_S = 10.0


def replaced(page: str, text: str) -> str:
    """``page`` with ``text`` between the marks.

    Raises:
        ValueError: they are not there.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def tables(found: Figures, machine: Mapping[str, str], *, is_quick: bool) -> str:
    """All tables, with what they show."""
    blocks = ["`scripts/bench hosts` has measured these, all in one run; it writes them here."]
    if is_quick:
        blocks.append("**A quick run with few rounds: the figures are rough.**")
    blocks += [
        markdown_table(["machine", ""], [[name, text] for name, text in machine.items()]),
        *_hops(found),
        *_backwards(found),
        *_overlap(found),
        *_deaths(found),
    ]
    return "\n\n".join(blocks)


def _hops(found: Figures) -> Iterator[str]:
    yield (
        "One way of an array between two ranks by `send` and `recv`: half of there and back. Ray, "
        "on another node of a cluster on the same machine: a call of an actor that takes the array "
        "and answers nothing; and half of a call that gives it back. Milliseconds: the median of "
        f"{len(found.hops[8][CURVE])} rounds, in which all take their turns, and the quartiles."
    )
    yield markdown_table(
        ["bytes", "lanes, encrypted", "lanes, plain", "Ray call", "half of one there and back"],
        [
            [_NAMES[size], *(_spread(samples[name]) for name in (CURVE, PLAIN, CALL, HALF))]
            for size, samples in found.hops.items()
        ],
    )
    yield (
        "The same in parts of a Ray call, by the medians; for 16 MiB in MB/s. The aims: a fifth of "
        "a call up to 64 KiB; for 16 MiB 0.8 times Ray's rate encrypted, and twice in the clear."
    )
    yield markdown_table(
        ["bytes", "lanes, encrypted", "lanes, plain", "Ray call"],
        [_compared(size, samples) for size, samples in found.hops.items()],
    )


def _compared(size: int, samples: Mapping[str, Sequence[float]]) -> list[str]:
    middle = {name: statistics.median(values) for name, values in samples.items()}
    if size < 16 * 1024**2:
        return [
            _NAMES[size],
            *(f"{middle[name] / middle[CALL]:.2f}" for name in (CURVE, PLAIN, CALL)),
        ]
    rates = {name: size / ms / 1e3 for name, ms in middle.items()}
    return [
        _NAMES[size],
        *(f"{rates[n]:,.0f} ({rates[n] / rates[CALL]:.2f})" for n in (CURVE, PLAIN, CALL)),
    ]


def _backwards(found: Figures) -> Iterator[str]:
    yield (
        "A backward with 8 bytes over the same two ranks, encrypted, `local`, in the same rounds, "
        "without its forward. The aim: SMART takes at most 1.1 times as long as FAST."
    )
    rows = []
    for crossings, samples in found.backwards.items():
        smart, fast = (samples[mode] for mode in MODES)
        ratios = [a / b for a, b in zip(smart, fast, strict=True)]
        rows.append([str(crossings), _spread(smart), _spread(fast), _spread(ratios)])
    yield markdown_table(["crossings", "SMART, ms", "FAST, ms", "SMART / FAST"], rows)


def _overlap(found: Figures) -> Iterator[str]:
    hidden = [100 * (a + r - both) / min(a, r) for a, r, both in found.overlap]
    alone, reduced, both = (1e3 * statistics.median(v) for v in zip(*found.overlap, strict=True))
    low, middle, high = statistics.quantiles(hidden, n=4)
    yield (
        "What part of the averaging of `DistributedDataParallel` hides behind a backward that "
        "takes as long: two ranks, 16 buckets of 1 MiB, a link slowed in the carrier, rules that "
        f"wait and use no processor. {middle:.0f} % (quartiles {low:.0f} and {high:.0f}) in "
        f"{len(hidden)} rounds; the aim was 80. Backward {alone:.0f} ms, averaging "
        f"{reduced:.0f}, both at "
        f"once {both:.0f}; each lasts until both ranks are done. The last bucket can only travel "
        "after the backward: with 16 equal ones at most 94 % can hide. A backward that computes on "
        "the processors that also carry the messages has not been measured. One such backward more:"
    )
    rows = [
        [str(number), *(f"{1e3 * s:.0f} ms" for s in span)]
        for number, span in enumerate(found.buckets)
        if number % 2 == 0 or number == len(found.buckets) - 1
    ]
    yield markdown_table(["bucket", "left", "came"], rows)


def _deaths(found: Figures) -> Iterator[str]:
    yield (
        "From a death until the last of the other ranks has `HostLost`, and until the last of four "
        "ranks, the new one among them, has committed a step again (`elastic.run`, a small model)."
    )
    rows = [[what, *_seconds(times, _SOON[what])] for what, times in found.lost.items()]
    training = ["a rank of a training is killed: until it goes on"]
    yield markdown_table(
        ["what dies", "times", "median", "longest", "aim"],
        [*rows, [*training, *_seconds(found.training, _TRAINING_S)]],
    )


def _seconds(times: Sequence[float], aim_s: float) -> list[str]:
    figures = [f"{statistics.median(times):.3f} s", f"{max(times):.3f} s", f"{aim_s:.0f} s"]
    return [str(len(times)), *figures]


def _spread(samples: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(samples, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"
