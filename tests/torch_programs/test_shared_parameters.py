"""Parameters that lie in shared memory, so that no call copies them."""

from __future__ import annotations

import copy
import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402
from mpgrad.shm.arena import client_arena  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.torch]


@pytest.fixture(scope="module")
def engine() -> Iterator[mg.Engine]:
    with mg.Engine("process", cpu_workers=2) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _current(engine: mg.Engine) -> None:
    mg.set_engine(engine)


def lies_in_arena(tensor: Any) -> bool:
    segment = client_arena().segment
    return 0 <= tensor.data_ptr() - segment.address < segment.nbytes


def layer() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(64, 64)


def step(model: Any) -> Any:
    outs = mt.parallel_map(lambda k, model: (model.weight * k).sum(), [1.0, 2.0], shared=(model,))
    return torch.stack(outs).sum()


def copies(model: Any) -> list[str]:
    gc.collect()
    shape = str(list(model.weight.shape))
    return [line for line in mt.doctor() if shape in line]


def test_a_parameter_moves_once_and_the_optimizer_writes_it(engine: mg.Engine) -> None:
    model, plain = layer(), layer()
    optimizers = [torch.optim.Adam(one.parameters(), lr=0.1) for one in (model, plain)]
    step(model)
    place = model.weight.data_ptr()
    assert lies_in_arena(model.weight)
    assert not lies_in_arena(model.bias)  # a small one travels inside of messages
    assert torch.equal(model.weight, plain.weight)
    for _ in range(3):
        for one, optimizer in zip((model, plain), optimizers, strict=True):
            optimizer.zero_grad()
            loss = step(model) if one is model else (one.weight * 1 + one.weight * 2).sum()
            loss.backward()
            optimizer.step()
        assert model.weight.data_ptr() == place
    assert torch.equal(model.weight, plain.weight)
    assert not copies(model)


def test_it_is_the_same_parameter_as_before(engine: mg.Engine) -> None:
    model = layer()
    weight, seen = model.weight, []
    weight.register_hook(lambda grad: seen.append(grad.shape))
    weight.note = "ours"
    step(model).backward()
    assert model.weight is weight
    assert weight.note == "ours"
    assert seen == [weight.shape]
    other = copy.deepcopy(model)
    assert not lies_in_arena(other.weight)
    model.load_state_dict({"weight": torch.ones(64, 64), "bias": torch.ones(64)})
    assert step(model).item() == 3 * 64 * 64
    model.double()
    assert not lies_in_arena(model.weight)
    assert step(model).item() == 3 * 64 * 64
    assert lies_in_arena(model.weight)


def _views(model: Any) -> Any:
    return model.weight.view(-1)


def _numpy(model: Any) -> Any:
    return model.weight.detach().numpy()


def _storage(model: Any) -> Any:
    return model.weight.untyped_storage()


def _graph(model: Any) -> Any:
    return model(torch.ones(1, 64, requires_grad=True))


def _tied(model: Any) -> Any:
    return torch.nn.Parameter(model.weight.data)


def _of_numpy(model: Any) -> Any:
    model.weight.data = torch.from_numpy(model.weight.detach().numpy().copy())


def _part(model: Any) -> Any:
    model.weight.data = torch.ones(70, 64)[3:67]


def _shared(model: Any) -> Any:
    model.share_memory()


@pytest.mark.parametrize(
    "hold", [_views, _numpy, _storage, _graph, _tied, _of_numpy, _part, _shared]
)
def test_what_others_hold_is_copied_and_named(engine: mg.Engine, hold: Any) -> None:
    model = layer()
    held = hold(model)
    place = model.weight.data_ptr()
    expected = (model.weight.detach() * 1).sum() + (model.weight.detach() * 2).sum()
    assert torch.equal(step(model), expected)
    assert model.weight.data_ptr() == place
    (line,) = copies(model)
    assert "copies a parameter" in line
    del held
    if hold in (_views, _storage, _graph, _tied):
        gc.collect()
        step(model)
        assert lies_in_arena(model.weight)
        assert not copies(model)


def test_it_stays_readable_without_the_engine() -> None:
    model = layer()
    with mg.Engine("process", cpu_workers=1):
        step(model).backward()
    expected = layer().weight
    assert torch.equal(model.weight, expected)
    with torch.no_grad():
        model.weight.add_(1)
    with mg.Engine("process", cpu_workers=1):
        assert torch.equal(step(model), (model.weight * 1).sum() + (model.weight * 2).sum())


def test_a_local_engine_moves_nothing_and_protects_what_has_moved(engine: mg.Engine) -> None:
    model = layer()
    with mg.Engine("local"):
        step(model)
    assert not lies_in_arena(model.weight)
    step(model)
    before = model.weight.detach().clone()

    def writes(k: int, model: Any) -> Any:
        model.weight.data.add_(k)
        return model.weight.sum()

    with mg.Engine("local"), pytest.raises(RuntimeError, match="in place"):
        mt.parallel_map(writes, [1], shared=(model,))
    assert torch.equal(model.weight, before)


def test_one_that_was_saved_and_changed_is_torchs_error(engine: mg.Engine) -> None:
    model, x = layer(), torch.ones(64, requires_grad=True)
    for _ in range(2):
        (out,) = mt.parallel_map(lambda x, model: (model.weight @ x).sum(), [x], shared=(model,))
        with torch.no_grad():
            model.weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()


def test_one_that_was_changed_when_its_branch_was_lost(engine: mg.Engine) -> None:
    model, x = layer(), torch.ones(64, 64, requires_grad=True)
    # Addition saves nothing, so it may change; but a branch that is lost needs it again.
    (out,) = mt.parallel_map(lambda x, model: (model.weight + x).sum(), [x], shared=(model,))
    with torch.no_grad():
        model.weight.add_(1)
    out.backward(retain_graph=True)
    assert torch.equal(x.grad, torch.ones(64, 64))
    for pid in engine.worker_pids():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="has changed since"):
        out.backward()


def test_the_child_of_a_fork_has_its_own(engine: mg.Engine) -> None:
    model = layer()
    step(model)
    before = model.weight.detach().clone()
    pid = os.fork()
    if pid == 0:
        with torch.no_grad():
            model.weight.zero_()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert torch.equal(model.weight, before)
