"""Every operator at special points, beside PyTorch: at 0, at ties, in saturation, at infinity, at
matrices of rank 1, and of nothing; values, first and second derivatives.

    python -m tests.operator_database.special_points [NAMES] [--write]

``--write`` keeps what PyTorch gives (``special_points.json``), so that a machine without it tests
it, and writes docs/evidence/operators.md. Exit status 0: nothing differs that has no reason in
``special_left.toml``, and each reason is needed.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import tomllib
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tests.operator_database import database, page, recorded
from tests.operator_database.comparison import (
    Call,
    arrays_of,
    attempt,
    derivatives,
    difference,
    tensors_in,
)
from tests.operator_database.database import CannotBeHad

FILE = Path(__file__).with_name("special_points.json")
LEFT = Path(__file__).with_name("special_left.toml")

#: Samples of each entry, and the most elements of their tensors.
MOST, LARGEST = 2, 130
#: Where PyTorch 2.13 itself crashes, by operator; [] is everywhere.
CRASHES = {
    "lu_unpack": [],
    "nn.functional.pdist": ["no rows", "no columns"],
}
#: What is compared, in the order in which it is tried.
THINGS = ("value", "gradient", "second gradient")


def _rank_one(array: Any) -> Any:
    if array.ndim < 2:
        return array
    rows, columns = array.shape[-2:]
    return np.broadcast_to(
        np.outer(np.arange(1.0, rows + 1), np.arange(1.0, columns + 1)), array.shape
    )


def _all(number: float) -> Callable[[Any], Any]:
    return lambda array: np.full(array.shape, number)


#: What each tensor of the arguments becomes.
POINTS: dict[str, Callable[[Any], Any]] = {
    "0": _all(0.0),
    "1": _all(1.0),
    "-1": _all(-1.0),
    "ties": _all(0.5),
    "40": _all(40.0),
    "-40": _all(-40.0),
    "inf": _all(np.inf),
    "-inf": _all(-np.inf),
    "rank 1": _rank_one,
    "no rows": lambda array: array[:0] if array.ndim else array,
    "no columns": lambda array: array[..., :0] if array.ndim else array,
}
#: Points that the first tensor alone takes, too.
_OF_FIRST = ("0", "1", "40", "-40", "inf", "-inf")


def points_of(sample: Call, torch: Any) -> Iterator[tuple[str, Call]]:
    """The sample with its floating tensors at each point: the point's name, the arguments."""
    tensors = [t for t in tensors_in(sample, torch) if t.is_floating_point()]
    if not tensors:
        return
    for name, at in POINTS.items():
        yield name, _moved(sample, tensors, at, torch)
    if len(tensors) > 1:
        for name in _OF_FIRST:
            yield f"first {name}", _moved(sample, tensors[:1], POINTS[name], torch)


def _moved(value: Any, tensors: Sequence[Any], at: Callable[[Any], Any], torch: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not any(value is tensor for tensor in tensors):
            return value
        moved = np.array(at(value.detach().numpy()), dtype=value.detach().numpy().dtype)
        return torch.from_numpy(moved)
    if isinstance(value, list | tuple):
        items = [_moved(item, tensors, at, torch) for item in value]
        return tuple(items) if type(value) is tuple else items
    if isinstance(value, dict):
        return {key: _moved(item, tensors, at, torch) for key, item in value.items()}
    return value


def calls_of(torch: Any, name: str, entries: list[Any]) -> Iterator[dict[str, Any]]:
    """The calls at special points, each with what PyTorch gives."""
    function = database.plain_function(torch, name)
    seen = set()
    for entry in entries:
        for sample in _samples(entry, torch):
            for point, moved in points_of(sample, torch):
                if point in CRASHES.get(name, ()):
                    continue
                call = _recorded(torch, name, function, entry, moved)
                key = json.dumps(call, sort_keys=True)
                if call and key not in seen:
                    seen.add(key)
                    yield {"point": point, **call}


def _samples(entry: Any, torch: Any) -> Iterator[Call]:
    if database.is_wrapped(entry):
        return
    found = database.samples(entry, torch.float64, 40)
    small = (
        sample
        for sample in found
        if all(0 < tensor.numel() <= LARGEST for tensor in tensors_in(sample, torch))
    )
    kept = list(small)
    yield from islice(kept, 0, None, max(1, -(-len(kept) // MOST)))


def _recorded(torch: Any, name: str, function: Any, entry: Any, sample: Call) -> dict[str, Any]:
    """The arguments and what PyTorch gives; empty if it refuses them."""
    if "out" in sample[1] or database.is_random(name, sample[1]):
        return {}

    def taken() -> Call:
        return database.converted(sample, torch, torch)

    try:
        args, kwargs = taken()
        text = {"args": recorded.encode(recorded.plain(args))}
        text["kwargs"] = recorded.encode(recorded.plain(kwargs))
        value = attempt(lambda: arrays_of(function(*args, **kwargs)))
        if isinstance(value, Exception):
            return {}
        found = {"value": recorded.encode(value)}
        orders = (entry.supports_autograd, entry.supports_autograd and entry.supports_gradgrad)
        for order, (thing, is_there) in enumerate(zip(THINGS[1:], orders, strict=True), 1):
            if is_there:
                given = attempt(lambda order=order: derivatives(torch, function, taken(), order))
                if not isinstance(given, Exception):
                    found[thing] = recorded.encode(given)
    except (CannotBeHad, TypeError):
        return {}
    return {**text, **found}


def differences(
    library: Any, name: str, calls: list[dict[str, Any]]
) -> Iterator[tuple[str, str, str]]:
    """(point, thing, text) of each thing that was recorded; the text is empty if it is right."""
    function = database.plain_function(library, name)
    for call in calls:
        for order, thing in enumerate(THINGS):
            if thing in call:
                given = recorded.for_library((call["args"], call["kwargs"]), library)
                found = attempt(
                    lambda given=given, order=order: _run(library, function, given, order)
                )
                yield call["point"], thing, difference(found, call[thing])


def _run(library: Any, function: Any, call: Call, order: int) -> Any:
    if order:
        return derivatives(library, function, call, order)
    return arrays_of(function(*call[0], **call[1]))


@cache
def reasons() -> dict[str, list[str]]:
    """Why something differs, and where: ``"operator | thing | point"``, with ``*``."""
    found: dict[str, list[str]] = tomllib.loads(LEFT.read_text())
    return found


def reason(name: str, thing: str, point: str) -> str:
    """Why that differs; empty if no reason is known."""
    for why, places in reasons().items():
        if any(fnmatchcase(f"{name} | {thing} | {point}", place) for place in places):
            return why
    return ""


def read() -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """The packed calls by operator, and by the thing how many were tried and right."""
    found = json.loads(FILE.read_text())
    return found["calls"], found["counts"]


def main(arguments: Sequence[str] | None = None) -> int:
    import mpgrad

    parser = argparse.ArgumentParser(prog="tests.operator_database.special_points")
    parser.add_argument("names", nargs="*", help="operators (default: all)")
    parser.add_argument("--write", action="store_true", help="keep what PyTorch gives")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    kept = read()[0] if options.names else {}
    counts: dict[str, dict[str, int]] = {thing: {"tried": 0, "right": 0} for thing in THINGS}
    unused = {place for places in reasons().values() for place in places}
    unexpected = 0
    for name, entries in database.operators().items():
        if options.names and name not in options.names:
            continue
        if CRASHES.get(name) == [] or database.function_named(mpgrad, name) is None:
            continue
        torch.manual_seed(0)
        calls = list(calls_of(torch, name, entries))
        if calls:
            text = json.dumps(calls)
            print(name, len(calls), file=sys.stderr, flush=True)
            kept[name] = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
            for point, thing, found in differences(mpgrad, name, recorded.unpacked(kept[name])):
                counts[thing]["tried"] += 1
                counts[thing]["right"] += not found
                here = f"{name} | {thing} | {point}"
                if found:
                    unused -= {place for place in unused if fnmatchcase(here, place)}
                    if not reason(name, thing, point):
                        unexpected += 1
                        print(f"{here} | {found}", flush=True)
    if options.names:
        return 1 if unexpected else 0
    for place in sorted(unused):
        print(f"{place}: its reason can go")
    if options.write:
        lines = (f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept))
        calls = "{\n" + ",\n".join(lines) + "\n}"
        FILE.write_text(f'{{"counts": {json.dumps(counts)},\n"calls": {calls}}}\n')
        version = torch.__version__.partition("+")[0]
        page.DOCUMENT.write_text(page.text(recorded.read()[0], version))
    return 1 if unexpected or unused else 0


if __name__ == "__main__":
    sys.exit(main())
