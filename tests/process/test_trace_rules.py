"""A profile's trace keeps the rules of the Trace Event Format, and those of Perfetto's importer.

Perfetto drops a range that partly overlaps another one of its thread, and an arrow whose end lies
in no range. Its own program cannot be had from a package index, so the rules are checked here.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import mpgrad as mg

pytestmark = pytest.mark.process

Entry: TypeAlias = dict[str, Any]

#: What each phase has to say beside its process and thread.
WANTED = {
    "X": {"name": str, "cat": str, "ts": (int, float), "dur": (int, float)},
    "M": {"name": str, "args": dict},
    "C": {"name": str, "ts": (int, float), "args": dict},
    "b": {"name": str, "cat": str, "id": (int, str), "ts": (int, float)},
    "e": {"name": str, "cat": str, "id": (int, str), "ts": (int, float)},
    "s": {"name": str, "cat": str, "id": (int, str), "ts": (int, float)},
    "f": {"name": str, "cat": str, "id": (int, str), "ts": (int, float), "bp": str},
}
METADATA = {"process_name", "process_sort_index", "thread_name"}
#: Times are nanoseconds for Perfetto.
RESOLUTION_US = 0.001


def faults_in(trace: dict[str, Any]) -> list[str]:
    """What breaks a rule, in words."""
    entries = trace["traceEvents"]
    others = (_overlaps, _loose_pairs, _loose_arrows)
    return _malformed(entries) or [fault for look in others for fault in look(entries)]


def _malformed(entries: list[Entry]) -> list[str]:
    found = []
    for entry in entries:
        wanted = {"pid": int, "tid": int, **WANTED.get(entry["ph"], {"phase": str})}
        found += [
            f"{entry['ph']} without {key}: {entry}"
            for key, kind in wanted.items()
            if not isinstance(entry.get(key), kind) or isinstance(entry.get(key), bool)
        ]
        if (entry.get("ts") or 0.0) < 0.0 or (entry.get("dur") or 0.0) < 0.0:
            found.append(f"a negative time: {entry}")
        if entry["ph"] == "M" and entry["name"] not in METADATA:
            found.append(f"unknown metadata: {entry}")
        if entry["ph"] == "C" and not all(isinstance(v, int) for v in entry["args"].values()):
            found.append(f"a counter that is no number: {entry}")
    return found


def _overlaps(entries: list[Entry]) -> list[str]:
    """Ranges of a thread that lie neither inside nor outside of one another."""
    found = []
    for ranges in _ranges(entries).values():
        open_: list[Entry] = []
        for entry in sorted(ranges, key=lambda entry: (entry["ts"], -entry["dur"])):
            while open_ and _end(open_[-1]) <= entry["ts"] + RESOLUTION_US:
                open_.pop()
            if open_ and _end(entry) > _end(open_[-1]) + RESOLUTION_US:
                found.append(f"{entry['name']} overlaps {open_[-1]['name']}")
            open_.append(entry)
    return found


def _loose_pairs(entries: list[Entry]) -> list[str]:
    """Ranges of their own and arrows that have a beginning alone, or an end before it."""
    found = []
    for first, last in (("b", "e"), ("s", "f")):
        times: defaultdict[tuple[str, object], dict[str, float]] = defaultdict(dict)
        for entry in entries:
            if entry["ph"] in (first, last):
                times[entry["cat"], entry["id"]][entry["ph"]] = entry["ts"]
        found += [
            f"{key} has {sorted(pair)}"
            for key, pair in times.items()
            if len(pair) != 2 or pair[first] > pair[last]
        ]
    return found


def _loose_arrows(entries: list[Entry]) -> list[str]:
    ranges = _ranges(entries)
    return [
        f"the arrow {entry['name']} {entry['id']} ends in no range"
        for entry in entries
        if entry["ph"] in ("s", "f")
        and not any(
            one["ts"] - RESOLUTION_US <= entry["ts"] <= _end(one) + RESOLUTION_US
            for one in ranges[entry["pid"], entry["tid"]]
        )
    ]


def _ranges(entries: list[Entry]) -> defaultdict[tuple[int, int], list[Entry]]:
    found: defaultdict[tuple[int, int], list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry["ph"] == "X":
            found[entry["pid"], entry["tid"]].append(entry)
    return found


def _end(entry: Entry) -> float:
    return entry["ts"] + entry["dur"]


class Works(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * (2 + 0 * sum(range(20_000)))


def no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def test_the_trace_of_a_training_loop(engine: mg.Engine, tmp_path: Path) -> None:
    layer = mg.nn.Linear(20, 20)
    optimizer = mg.optim.SGD(layer.parameters(), lr=0.1)
    with mg.profiler.profile(record_shapes=True, profile_memory=True) as prof:
        for _ in range(2):
            with mg.profiler.record_function("step"):
                x = layer(mg.ones(4, 20))
                x.register_hook(lambda grad: grad * 1.0)
                loss = mg.stack([Works.apply(x).sum() for _ in range(6)]).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(str(path))
    trace = json.loads(path.read_text(), parse_constant=no_constant)
    phases = {entry["ph"] for entry in trace["traceEvents"]}
    assert {"X", "M", "C", "s", "f"} <= phases <= set(WANTED)
    assert faults_in(trace) == []


X = {"ph": "X", "name": "a", "cat": "c", "pid": 1, "tid": 1, "ts": 0.0, "dur": 5.0}


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ([X, {**X, "name": "b", "ts": 3.0}], "b overlaps a"),
        ([{**X, "dur": None}], "X without dur"),
        ([{**X, "ts": -1.0}], "a negative time"),
        ([X, {**X, "ph": "s", "id": 1}], "has ['s']"),
        ([{**X, "ph": "s", "id": 1}, {**X, "ph": "f", "bp": "e", "id": 1}], "ends in no range"),
        ([{**X, "ph": "?"}], "without phase"),
    ],
)
def test_a_fault_is_found(entries: list[Entry], fault: str) -> None:
    assert fault in " ".join(faults_in({"traceEvents": entries}))
