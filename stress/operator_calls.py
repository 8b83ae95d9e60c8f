"""A child of the run ``operators``: calls operators with odd arguments, and counts the outcomes.

    python -m stress.operator_calls SEED FIRST CALLS [--beside-torch] [--in-process]

Before each call its number goes to stdout's file, so that the parent knows what a crash came from,
and before the same call of PyTorch once more, with ``BESIDE``.
The last line is the tally, in JSON.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import inspect
import json
import operator
import random
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import mpgrad as mg
from stress.left_differences import reason_for
from tests.operator_database.comparison import TOLERANCES, arrays_of, difference

DTYPES = ("float32", "float64", "float16", "complex64", "int64", "int32", "uint8", "bool")
#: Chosen at random weights: most programs use floats.
SHAPES: tuple[tuple[int, ...], ...] = (
    *((), (0,), (1,), (3,), (2, 3), (3, 3), (2, 0), (1, 3), (2, 1, 3), (2, 3, 4), (0, 3, 3)),
    *((2, 3, 3, 3), (1, 2, 5, 5), (2, 1, 2, 1, 2), (1,) * 9, (1,) * 33),
)
NUMBERS = (0, 1, -1, 2, -2, 3, 5, 0.5, -0.0, 1e30, float("nan"), float("inf"), True, 1j, 100)
WORDS = ("mean", "sum", "none", "floor", "trunc", "constant", "reflect", "fro", "left", "nonsense")
SPECIAL = (0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e-30, 1e30)
#: For sizes: none, no numbers, too many of them.
HUGE = (2**40, (2**31, 2**31), 2**62)
SIZES: tuple[Any, ...] = (0, 1, -1, 2, None, (0, 1), (1,), [], (-1, 0), 7, (1, 1, 1, 1), *HUGE)
#: Seconds after which a call is taken for stuck.
STUCK_S = 60
#: What a child may allot, in bytes: a result that is larger is refused, not written. What lies in
#: shared memory is not counted there; :mod:`stress.operators` limits that.
MEMORY = 4 << 30
#: Stands behind the number of a call that PyTorch performs.
BESIDE = "beside"
#: One in this many calls with gradients is repeated in workers.
EVERY = 10
#: Functions that change the process, draw numbers, or return uninitialised memory.
LEFT_OUT = frozenset(
    {"manual_seed", "set_rng_state", "get_rng_state", "empty", "empty_like", "rand", "randn"}
    | {"empty_strided", "empty_permuted"}
    | {"rand_like", "randn_like", "randint", "randint_like", "randperm", "bernoulli", "normal"}
    | {
        "multinomial",
        "poisson",
        "dropout",
        "seed",
        "initial_seed",
        "set_default_dtype",
        "from_dlpack",
        "to_dlpack",
    }
    | {"dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu"}
    | {
        "pca_lowrank",
        "svd_lowrank",
        "gumbel_softmax",
        "scaled_dot_product_attention",
        "from_numpy",
        "get_default_dtype",
    }
)
#: Messages of NumPy that a user of mpgrad should not see.
BARE = (
    *(
        "operands could not be broadcast",
        "ufunc '",
        "cannot reshape array",
        "out of bounds for axis",
    ),
    *("array is 0-dimensional", "zero-size array to reduction", "has no attribute '_array'"),
    *(
        "shape mismatch: objects",
        "not enough values to unpack",
        "object too deep",
        "too small depth",
    ),
    *("attempt to get arg", "can only convert an array of size", "up to 32 dimensions"),
    *("out of bounds for uint8", "out of bounds for int", "Maximum allowed size exceeded"),
    *("arrays used as indices", "maximum supported dimension", "to a NumPy dtype"),
)


def functions(library: Any) -> dict[str, Callable[..., Any]]:
    """The functions to call, by their path below the library."""
    found = {}
    for name, home in vars(mg)["_HOME"].items():
        if home.startswith("mpgrad.ops.") and name not in LEFT_OUT:
            found[name] = getattr(library, name, None)
    for module in ("nn.functional", "linalg", "fft", "special"):
        here, there = (operator.attrgetter(module)(where) for where in (mg, library))
        for name in here.__all__:
            if name not in LEFT_OUT:
                found[f"{module}.{name}"] = getattr(there, name, None)
    return {name: f for name, f in sorted(found.items()) if callable(f) and not inspect.isclass(f)}


def array(chance: random.Random) -> Any:
    """An array of an odd shape, dtype, memory layout and values."""
    shape, dtype = chance.choice(SHAPES), chance.choice(DTYPES[: chance.choice((1, 2, 8))])
    generator = np.random.RandomState(chance.randrange(2**31))
    values = generator.randn(*shape) * chance.choice((1, 1, 3))
    if chance.random() < 0.2 and dtype not in ("int64", "int32", "uint8", "bool"):
        values = np.where(generator.rand(*shape) < 0.3, generator.choice(SPECIAL, shape), values)
    with np.errstate(all="ignore"):
        made = np.asarray(values).astype(dtype)
    layout = chance.random()
    if layout < 0.1 and made.ndim > 1:
        made = made.swapaxes(0, -1)
    elif layout < 0.2 and made.ndim:
        made = spread(made)
    elif layout < 0.25 and made.ndim and made.size:
        made = np.broadcast_to(made[..., :1].copy(), made.shape)
    return made


def spread(array: Any) -> Any:
    """``array`` with a gap after each element; each column of it is one piece of memory less."""
    return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array


def copied(array: Any) -> Any:
    """A copy of the same memory layout, which in-place options may change."""
    owner = array if array.base is None else array.base
    if not array.size:
        return array
    memory = np.array(owner, order="C")
    start = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    return np.ndarray(array.shape, array.dtype, memory, start, array.strides)


def argument(chance: random.Random, name: str, annotation: str) -> Any:
    """A value for a parameter: an array stands for a Tensor."""
    odd = chance.random() < 0.08
    if "Sequence[Tensor]" in annotation or name in ("tensors", "arrays"):
        return [array(chance) for _ in range(chance.randrange(4))]
    if not odd and ("Tensor" in annotation or name in ("input", "other", "index", "target", "x")):
        return array(chance)
    if not odd and "bool" in annotation:
        return chance.random() < 0.5
    if not odd and "str" in annotation and "int" not in annotation:
        return chance.choice(WORDS)
    if not odd and name in ("dim", "axis", "dims", "size", "shape", "kernel_size", "pad"):
        return chance.choice(SIZES)
    if not odd and ("int" in annotation or "float" in annotation):
        return chance.choice(NUMBERS)
    return chance.choice((array(chance), chance.choice(NUMBERS), None, (), (1, 2), "nonsense"))


def calls(seed: int, first: int, count: int) -> Iterator[tuple[int, str, list[Any]]]:
    """Number, operator and positional arguments of each call, which depend on seed and number."""
    known = functions(mg)
    signatures = {name: _parameters(function) for name, function in known.items()}
    names = sorted(known)
    for number in range(first, first + count):
        chance = random.Random(f"{seed}/{number}")
        name = chance.choice(names)
        given = []
        for parameter, annotation, is_needed in signatures[name]:
            if not is_needed and chance.random() < 0.6:
                break
            given.append(argument(chance, parameter, annotation))
        yield number, name, given


def _parameters(function: Any) -> list[tuple[str, str, bool]]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return [("input", "Tensor", True)]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [
        (p.name, str(p.annotation), p.default is p.empty)
        for p in parameters
        if p.kind in positional
    ]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        found += [("input", "Tensor", True), ("input", "Tensor", False)]
    return found


def tensors(library: Any, value: Any, *, grad: bool) -> Any:
    """``value`` with Tensors of the library instead of arrays."""
    if isinstance(value, np.ndarray):
        tensor = library.from_numpy(copied(value))
        return tensor.requires_grad_() if grad and value.dtype.kind in "fc" else tensor
    if isinstance(value, list | tuple):
        return type(value)(tensors(library, item, grad=grad) for item in value)
    return value


def run(library: Any, function: Any, given: list[Any], *, grad: bool) -> Any:
    """Result and gradients as plain data, or the exception."""
    try:
        arguments = tensors(library, given, grad=grad)
        result = function(*arguments)
        found = [arrays_of(result)]
        if grad:
            found.append(gradients(library, result, arguments))
        return tuple(found)
    except Exception as error:
        return error


def gradients(library: Any, result: Any, arguments: list[Any]) -> Any:
    flat = [t for t in _flat(result) if getattr(t, "requires_grad", False)]
    inputs = [t for t in _flat(arguments) if getattr(t, "requires_grad", False)]
    if not flat or not inputs:
        return None
    seeds = [library.ones_like(tensor) for tensor in flat]
    return arrays_of(tuple(library.autograd.grad(flat, inputs, seeds, allow_unused=True)))


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [part for item in value for part in _flat(item)]
    return [value]


def _arrays(given: list[Any]) -> list[Any]:
    return [value for value in _flat(given) if isinstance(value, np.ndarray)]


def words(name: str, given: list[Any]) -> str:
    """A call in the form of source code."""
    parts = [
        f"{v.dtype}{list(v.shape)}" if isinstance(v, np.ndarray) else repr(v)[:60] for v in given
    ]
    return f"{name}({', '.join(parts)})"


def main(seed: int, first: int, count: int) -> None:
    """Perform the calls and print the tally."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    torch: Any = None
    if "--beside-torch" in sys.argv:
        torch = importlib.import_module("torch")

        torch.set_num_threads(1)
    theirs = functions(torch) if torch is not None else {}
    known = functions(mg)
    tally: collections.Counter[str] = collections.Counter()
    notes: dict[str, list[str]] = collections.defaultdict(list)

    def note(what: str, text: str) -> None:
        tally[what] += 1
        notes[what].append(f"call {number}: {text}"[:260])

    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    in_process = "--in-process" in sys.argv
    with mg.Engine("process", cpu_workers=1) if in_process else contextlib.nullcontext():
        for number, name, given in calls(seed, first, count):
            print(number, flush=True)
            signal.alarm(STUCK_S)  # it ends the process
            grad = number % 2 == 0
            with mg.Engine("local"):
                found = run(mg, known[name], given, grad=grad)
            kind = "raised" if isinstance(found, Exception) else "returned"
            tally[kind] += 1
            if isinstance(found, Exception) and any(text in str(found) for text in BARE):
                note("bare", f"{words(name, given)}: {type(found).__name__}: {found}")
            if in_process and grad and kind == "returned" and number % EVERY == 0:
                tally["in process"] += 1
                if _bits(run(mg, known[name], given, grad=True)) != _bits(found):
                    note("other bits", words(name, given))
            # Some of PyTorch's operators count to such a number.
            if name in theirs and not any(repr(huge) in map(repr, given) for huge in HUGE):
                print(number, BESIDE, flush=True)
                text = _beside(found, given, partial(run, torch, theirs[name], grad=grad))
                what, _, difference = text.partition(": ")
                reason = what == "differs" and reason_for(name, difference, given, _arrays(given))
                if not text:
                    tally["agree"] += 1
                elif reason:
                    note("left", f"{words(name, given)}: {difference}: {reason}")
                else:
                    note(what, f"{words(name, given)}: {text}")
    print(json.dumps({"tally": tally, "notes": notes}), flush=True)


def _bits(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, list | tuple):
        return [_bits(item) for item in value]
    return repr(value)


def _beside(found: Any, given: list[Any], run: Callable[[list[Any]], Any]) -> str:
    """The difference between a call and PyTorch's; empty if there is none."""
    beside = run(given)
    if isinstance(beside, Exception):
        if not isinstance(found, Exception):
            return f"accepted here only: PyTorch: {type(beside).__name__}: {beside}"
        kind = next(k for k in type(beside).mro() if k.__module__ == "builtins")
        return "" if isinstance(found, kind) else f"other class: {found!r}, PyTorch {beside!r}"
    if isinstance(found, Exception):
        return f"refused here only: {type(found).__name__}: {found}"
    found, beside = _without_empty(found), _without_empty(beside)
    # A float64 that comes of float32, as of integers, is not more exact.
    dtypes = {str(array.dtype) for array in _arrays(given)}
    close = max((TOLERANCES.get(dtype, TOLERANCES["float32"]) for dtype in dtypes), default=0.0)
    if "float16" in dtypes:
        close *= 5  # of differences of rounded numbers not much is left
    text = difference(found, beside, close=close)
    if not text:
        return ""
    # What elements of a vector register get in PyTorch, those that lie apart may not.
    other = run([_laid_out(value) for value in given])
    if isinstance(other, tuple) and not difference(found, _without_empty(other), close=close):
        return f"of two minds: {text}"
    return f"differs: {text}"


def _without_empty(found: Any) -> Any:
    """Result and gradients, where no gradient is the same as one without elements."""
    result, *gradients = found
    if not gradients or gradients[0] is None:
        return found
    kept = tuple(g if g is not None and g.size else None for g in gradients[0])
    return result, kept if any(g is not None for g in kept) else None


def _laid_out(value: Any) -> Any:
    """Arrays that are in one piece with gaps, others without."""
    if isinstance(value, np.ndarray):
        is_whole = value.flags.c_contiguous
        return spread(value) if is_whole else np.ascontiguousarray(value)
    return type(value)(map(_laid_out, value)) if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:4]))
