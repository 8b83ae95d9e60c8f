"""What is around a call and what user code in its backward changes; and tensors of torch where
mpgrad's are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils import parametrize, prune  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402
from tests.torch_programs.test_both_passes import engine, every_test_is_watched  # noqa: E402

__all__ = ["engine", "every_test_is_watched"]
pytestmark = [pytest.mark.process, pytest.mark.torch]

SEEN: list[Any] = []


def with_a_hook_of_a_module(x: torch.Tensor, net: torch.nn.Module) -> Any:
    return net(x).sum()


def with_a_list(x: torch.Tensor, net: torch.nn.Module) -> Any:
    seen: list[Any] = []
    hidden = net[0](x)
    hidden.register_hook(seen.append)
    return net[1](hidden).sum(), seen


@pytest.mark.parametrize(
    ("fn", "path"), [(with_a_hook_of_a_module, "SEEN"), (with_a_list, r"its result\[1\]")]
)
def test_what_it_changes_is_an_error(engine: mg.Engine, fn: Callable[..., Any], path: str) -> None:
    """It was so: the caller's own stayed as it was, without a word."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
    if fn is with_a_hook_of_a_module:
        net[0].register_full_backward_hook(lambda module, inner, outer: SEEN.append(1))
    x = torch.ones(2, 3, requires_grad=True)
    (out,) = mt.parallel_map(fn, [x], shared=(net,))
    with pytest.raises(RuntimeError, match=rf"{path}.* in its backward, which would be lost"):
        (out[0] if isinstance(out, tuple) else out).backward()
    assert SEEN == []


@pytest.mark.parametrize("run", [mg.parallel_map, lambda fn, items: mg.fork(fn, *items)])
@pytest.mark.parametrize("kind", ["tensor", "module", "closure"])
def test_mpgrads_map_refuses_tensors_of_torch_that_require_grad(
    engine: mg.Engine, run: Callable[..., Any], kind: str
) -> None:
    """It was so: they got no gradient, without a word."""
    w, net = torch.ones(2, requires_grad=True), torch.nn.Linear(2, 1)
    given: Any = {"tensor": w, "module": net, "closure": 2.0}[kind]

    def fn(one: Any) -> Any:
        return (w * one).sum() if kind == "closure" else one

    with pytest.raises(TypeError, match=r"would get no gradient.*mpgrad\.torch"):
        run(fn, [given])


def test_it_takes_those_that_do_not(engine: mg.Engine) -> None:
    found = mg.parallel_map(lambda x: (x * 2, torch.nn.Linear(2, 1)), [torch.ones(2)])
    assert found[0][0].tolist() == [2.0, 2.0]
    assert isinstance(found[0][1].weight, torch.nn.Parameter)


class Done(Exception):
    def __init__(self, x: torch.Tensor) -> None:
        super().__init__("done")
        self.x = x


def test_a_tensor_in_an_exception_has_no_history(engine: mg.Engine) -> None:
    """It was so: a backward of it ended at a copy, and the caller's leaf had no gradient."""

    def raises(k: float, w: torch.Tensor) -> None:
        raise Done(w * k)

    w = torch.ones(1, requires_grad=True)
    with pytest.raises(Done) as caught:
        mt.parallel_map(raises, [2.0], shared=(w,))
    assert caught.value.x.tolist() == [2.0]
    with pytest.raises(RuntimeError, match="does not require grad"):
        (caught.value.x * 2).sum().backward()


class Doubles(TorchFunctionMode):
    def __torch_function__(self, fn: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = fn(*args, **(kwargs or {}))
        return found * 2 if fn is torch.tanh else found


@contextmanager
def a_hook_of_all_modules() -> Iterator[None]:
    hook = torch.nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 2)
    try:
        yield
    finally:
        hook.remove()


@pytest.mark.parametrize(
    ("around", "words"),
    [
        (Doubles, "inside of Doubles"),
        (partial(FlopCounterMode, display=False), "inside of _?FlopCounterMode"),
        (a_hook_of_all_modules, "hooks of all Modules"),
    ],
)
def test_what_no_worker_has_is_refused(
    engine: mg.Engine, around: Callable[[], Any], words: str
) -> None:
    """It was so: the results were others than in a loop."""
    with around(), pytest.raises(RuntimeError, match=words):
        mt.parallel_map(torch.tanh, [torch.ones(2)])
    with torch.device("cpu"):
        assert len(mt.parallel_map(torch.tanh, [torch.ones(2)])) == 1


class Symmetric(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).T


def test_cached_parametrizations(engine: mg.Engine) -> None:
    """It was so: an error in this process alone."""
    net = torch.nn.Linear(3, 3)
    parametrize.register_parametrization(net, "weight", Symmetric())
    with parametrize.cached():
        assert net.weight is net.weight
        outs = mt.parallel_map(lambda x: net(x).sum(), [torch.ones(3)] * 2)
        assert net.weight is net.weight
    torch.stack(outs).sum().backward()
    assert net.parametrizations.weight.original.grad.tolist() == [[2, 4, 4], [0, 2, 4], [0, 0, 2]]


class Noisy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand_like(x)


@pytest.mark.parametrize("is_around", [True, False])
def test_a_parametrization_is_computed_once_where_it_is_cached(
    engine: mg.Engine, is_around: bool
) -> None:
    """It was so: calls got copies of the globals of torch's own closures, and no ``cached()``."""
    net = torch.nn.Linear(3, 3)
    parametrize.register_parametrization(net, "weight", Noisy())

    def differs(x: torch.Tensor) -> torch.Tensor:
        with nullcontext() if is_around else parametrize.cached():
            return (net(x) - net(x)).abs().sum()

    with parametrize.cached() if is_around else nullcontext():
        outs = mt.parallel_map(differs, [torch.ones(3)] * 2)
    assert [one.item() for one in outs] == [0, 0]
    assert mt.parallel_map(lambda x: (net(x) - net(x)).abs().sum(), [torch.ones(3)])[0] > 0


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm", "prune"])
def test_norms_by_hooks(engine: mg.Engine, norm: str) -> None:
    """It was so: the weight that they compute counted as a lost change."""
    net = torch.nn.Linear(3, 2)
    if norm == "prune":
        net = prune.random_unstructured(prune.l1_unstructured(net, "weight", 1), "weight", 1)
    else:
        net = getattr(torch.nn.utils, norm)(net).eval()
    (out,) = mt.parallel_map(lambda x: net(x).sum(), [torch.ones(3)])
    out.backward()
    original = net.weight_v if norm == "weight_norm" else net.weight_orig
    assert original.grad is not None


@pytest.mark.filterwarnings("ignore")  # those of torch.compile
def test_compiled_code(engine: mg.Engine) -> None:
    """It was so: a NameError in the second item, because torch.compile names what it has made in
    globals, and each item has its own."""

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).tanh()

    made, net = torch.compile(inner, backend="eager"), torch.compile(Net(), backend="eager")
    for _ in range(2):
        for fn in (lambda x: torch.compile(inner, backend="eager")(x), made, net):
            xs = [torch.ones(3, requires_grad=True) for _ in range(3)]
            outs = mt.parallel_map(lambda x, fn=fn: fn(x).sum(), xs)
            torch.stack(outs).sum().backward()
            assert torch.equal(torch.stack(outs), torch.stack([fn(x).sum() for x in xs]))
            assert all(x.grad is not None for x in xs)


SCALE = 1.0


def scaled_behind_a_break(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y * SCALE


@pytest.mark.filterwarnings("ignore")  # those of torch.compile
def test_compiled_code_reads_globals_as_they_are(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a graph break torch.compile keeps the globals of the function that it has compiled."""
    for scale in (1.0, 5.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        compiled = torch.compile(scaled_behind_a_break, backend="eager")
        outs = mt.parallel_map(lambda x, fn=compiled: fn(x).sum(), [torch.ones(2)] * 3)
        assert [one.item() for one in outs] == [4 * scale] * 3


@pytest.mark.filterwarnings("ignore")  # torch.backends says what this PyTorch does not have
def test_modules_of_a_class_of_their_own(engine: mg.Engine) -> None:
    """It was so: `torch.backends` and `torch.ops` in a function were errors about pickle."""
    packet, overload = torch.ops.aten.sin, torch.ops.aten.sin.default

    def asks(x: torch.Tensor) -> Any:
        with torch.backends.mkldnn.flags(enabled=False):
            y = torch.ops.aten.sin(x) + packet(x) + overload(x)
        return y * torch.backends.cpu.get_cpu_capability().count(""), torch.channels_last

    x = torch.ones(3)
    ((y, kind),) = mt.parallel_map(asks, [x])
    assert torch.equal(y, asks(x)[0])
    assert kind is torch.channels_last


def test_hooks_of_saved_tensors_around_a_map(engine: mg.Engine) -> None:
    """It was so: in local alone they saw what the items save."""
    x, seen = torch.ones(3, requires_grad=True), list[torch.Tensor]()

    def pack(saved: torch.Tensor) -> torch.Tensor:
        seen.append(saved)
        return saved * 2

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        (out,) = mt.parallel_map(lambda x: x.square().sum(), [x])
        plain = x.square().sum()
    assert len(seen) == 1
    out.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]
    plain.backward()
    assert x.grad.tolist() == [6, 6, 6]
