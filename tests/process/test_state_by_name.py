"""State that a backward reads by name: mpgrad's own, that of saved tensors, and constants of known
classes. Workers give what the calling process gives, also where user code catches every error."""

from __future__ import annotations

import bz2
import json
import keyword
import lzma
import socket
import string
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.constants
import scipy.stats

import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad.calls.custom_functions.run_on import decide
from mpgrad.distributions import Distribution, Normal, Uniform, kl_divergence, register_kl
from mpgrad.nn.module_hooks import register_module_forward_hook

pytestmark = pytest.mark.process

Backward = Callable[[Any], float]


def tried(read: Callable[[], Any]) -> float:
    """What user code makes of a read that may fail."""
    try:
        return float(read())
    except Exception:
        return 100.0


def function_of(factor: Backward) -> type[mg.Function]:
    class Scales(mg.Function):
        @staticmethod
        def forward(ctx: Any, x: mg.Tensor) -> mg.Tensor:
            ctx.save_for_backward(x)
            return x.detach() * 2.0

        @staticmethod
        def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
            return grad * float(factor(ctx))

    return Scales


def gradient(factor: Backward) -> list[float]:
    """In the current engine, of a view of a tensor."""
    x = mg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x.grad = mg.tensor([0.0, 5.0, 5.0])
    function_of(factor).apply((x * 1.5)[1:]).sum().backward()
    assert x.grad is not None
    return x.grad.tolist()


def same_everywhere(engine: mg.Engine, factor: Backward, *, differs: float | None = None) -> None:
    """``differs``: the factor that a worker would find."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mg.Engine("local"):
            expected = gradient(factor)
        assert gradient(factor) == expected
    assert differs is None or expected[1] != 5 + 1.5 * differs


# ---------------------------------------------------------------------- saved tensors

OF_SAVED: dict[str, Callable[[mg.Tensor], Any]] = {
    "storage_offset": lambda x: x.storage_offset(),
    "is_view": lambda x: x._is_view(),
    "base": lambda x: x._base is not None and x._base.numel(),
    "as_strided": lambda x: x.as_strided((1,), (1,), 0).item(),
    "as_strided_scatter": lambda x: x.as_strided_scatter(mg.ones(1), (1,), (1,), 1).sum().item(),
    "untyped_storage": lambda x: x.untyped_storage().nbytes(),
    "storage": lambda x: len(x.storage()),
    "retains_grad": lambda x: x.retains_grad,
}


@pytest.mark.parametrize("name", OF_SAVED)
def test_where_a_saved_tensor_lies(engine: mg.Engine, name: str) -> None:
    read = OF_SAVED[name]
    same_everywhere(engine, lambda ctx: tried(lambda: read(ctx.saved_tensors[0])) + 1)


def test_a_gradient_of_a_saved_tensor_whose_error_is_caught(engine: mg.Engine) -> None:
    class Reads(mg.Function):
        @staticmethod
        def forward(ctx: Any, x: mg.Tensor) -> mg.Tensor:
            ctx.save_for_backward(x)
            return x.detach() * 2.0

        @staticmethod
        def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
            (x,) = ctx.saved_tensors
            try:
                return grad * (1.0 if x.grad is None else 3.0)
            except Exception:
                return grad * 7.0

    x = mg.tensor([1.0, 2.0], requires_grad=True)
    x.grad = mg.tensor([0.0, 0.0])
    with pytest.warns(mg.errors.PerformanceWarning, match=r"the \.grad of a tensor"):
        Reads.apply(x).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_a_promise_does_not_hide_it(engine: mg.Engine) -> None:
    scales = function_of(lambda ctx: tried(lambda: ctx.saved_tensors[0].storage_offset()))
    scales.run_on = "worker"
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(RuntimeError, match=r"the storage_offset\(\) of a tensor"):
        scales.apply(x[1:]).sum().backward()
    assert x.grad is None


# ---------------------------------------------------------------------- mpgrad's own


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    named = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    for name, value in (named | {"MASTER_PORT": port}).items():
        monkeypatch.setenv(name, value)
    dist.init_process_group()
    yield
    dist.destroy_process_group()


is_initialized = dist.is_initialized


def test_whether_there_is_a_process_group(engine: mg.Engine, group: None) -> None:
    same_everywhere(engine, lambda ctx: 10 if dist.is_initialized() else 20, differs=20)
    same_everywhere(engine, lambda ctx: 10 if is_initialized() else 20, differs=20)
    same_everywhere(engine, lambda ctx: tried(dist.get_world_size), differs=100)


def test_divergences_that_were_registered(engine: mg.Engine) -> None:
    from mpgrad.distributions.divergence import _TABLE

    before = _TABLE[Normal, Normal]

    @register_kl(Normal, Normal)
    def mine(p: Any, q: Any) -> mg.Tensor:
        return mg.tensor(77.0)

    def factor(ctx: Any) -> Any:
        unit = Normal(mg.tensor(0.0), mg.tensor(1.0))
        return kl_divergence(unit, unit)

    try:
        same_everywhere(engine, factor, differs=0)
    finally:
        register_kl(Normal, Normal)(before)


def test_hooks_of_all_modules(engine: mg.Engine) -> None:
    handle = register_module_forward_hook(lambda module, given, out: out * 5)
    try:
        same_everywhere(engine, lambda ctx: mg.nn.ReLU()(mg.tensor(1.0)), differs=1)
    finally:
        handle.remove()


def test_whether_arguments_of_distributions_are_checked(engine: mg.Engine) -> None:
    def factor(ctx: Any) -> float:
        return tried(lambda: Uniform(0.0, 1.0).log_prob(mg.tensor(5.0)).isinf())

    same_everywhere(engine, factor, differs=1)
    Distribution.set_default_validate_args(False)
    try:
        same_everywhere(engine, factor, differs=100)
    finally:
        Distribution.set_default_validate_args(True)


# ---------------------------------------------------------------------- known classes


def test_constants_of_known_classes(engine: mg.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    polynomial = np.polynomial.Polynomial

    def limit(ctx: Any) -> Any:
        return np.polynomial.Polynomial.maxpower

    same_everywhere(engine, limit)
    with monkeypatch.context() as patch:  # after it was read once, and back again
        patch.setattr(polynomial, "maxpower", 7)
        same_everywhere(engine, limit, differs=100)
        patch.setattr(string.Template, "delimiter", "&&&")
        same_everywhere(engine, lambda ctx: len(string.Template.delimiter), differs=1)
        patch.setattr(json.JSONEncoder, "item_separator", ";")
        same_everywhere(engine, lambda ctx: len(json.JSONEncoder().encode([1, 2, 3])), differs=9)
        patch.setattr(mg.nn.Linear, "scale", 6.0, raising=False)
        same_everywhere(engine, lambda ctx: getattr(mg.nn.Linear, "scale", 1.0), differs=1)
    same_everywhere(engine, limit, differs=7)


def test_containers_in_known_modules(engine: mg.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Natural units, say."""
    monkeypatch.setitem(scipy.constants.physical_constants, "electron mass", (7.0, "kg", 0.0))
    monkeypatch.setitem(np.typecodes, "All", np.typecodes["All"] + "xyz")
    monkeypatch.setattr(keyword, "kwlist", [*keyword.kwlist, "mp"])
    same_everywhere(engine, lambda ctx: scipy.constants.physical_constants["electron mass"][0])
    same_everywhere(engine, lambda ctx: len(np.typecodes["All"]))
    same_everywhere(engine, lambda ctx: len(keyword.kwlist))
    monkeypatch.setattr(np.polynomial.Polynomial, "domain", np.array([-5.0, 5.0]))
    same_everywhere(engine, lambda ctx: np.polynomial.Polynomial.domain[0], differs=-1)


# ---------------------------------------------------------------------- sets, and files

distinct = set


def test_sets_under_another_name_and_compressed_files(engine: mg.Engine) -> None:
    def why(factor: Backward) -> str:
        x = mg.tensor([1.0], requires_grad=True)
        return str(engine.explain(function_of(factor).apply(x).sum()))

    held = frozenset
    assert "makes a set" in why(lambda ctx: len(next(iter(distinct("ab")))))
    assert "makes a set" in why(lambda ctx: len(next(iter(held("ab")))))
    one_process = "whose state belongs to one process"
    assert one_process in why(lambda ctx: len(lzma.open("x").read()))  # noqa: SIM115
    assert one_process in why(lambda ctx: len(bz2.BZ2File("x").read()))
    assert one_process in why(lambda ctx: np.rec.fromfile("x", "f8").size)
    assert one_process not in why(lambda ctx: len(lzma.compress(b"x")) + len(bz2.compress(b"x")))


# ---------------------------------------------------------------------- objects of known modules


def test_a_table_that_a_function_of_scipy_reads(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def factor(ctx: Any) -> float:
        return scipy.constants.value("electron mass") * 1e30

    assert decide(function_of(factor)).run_on == "worker"
    table = scipy.constants.physical_constants
    monkeypatch.setitem(table, "electron mass", (7e-30, "kg", 0.0))
    same_everywhere(engine, factor, differs=9.1093837139e-01)
    monkeypatch.undo()
    same_everywhere(engine, factor)


def test_a_method_of_an_object_in_scipy(engine: mg.Engine) -> None:
    read = function_of(lambda ctx: scipy.stats.norm.pdf(0.0))
    assert decide(read).run_on == "worker"
    with mock.patch.object(scipy.stats.norm, "pdf", return_value=5.0):
        assert "which was replaced here" in decide(read).reason
        same_everywhere(engine, lambda ctx: scipy.stats.norm.pdf(0.0), differs=0.3989)
    assert decide(read).run_on == "worker"
