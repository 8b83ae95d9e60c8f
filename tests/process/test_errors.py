"""Bad input and failing rules in process mode: PyTorch's error, no ``.grad`` changed, and the
engine works on (the ``engine`` fixture tries after each test)."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.errors import EngineClosed, RemoteTraceback, SharedMemoryExhausted
from mpgrad.scheduler import chunks

pytestmark = pytest.mark.process


class WantsArguments(Exception):
    """Cannot be made from its ``args``."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"code {code}: {reason}")
        self.code, self.reason = code, reason


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Refuses every change, also that of its traceback."""

    code: int


class RaisesFrozen(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        raise Frozen(7)


class RaisesFrozenHere(RaisesFrozen):
    run_on = "client"


class RaisesFrozenThere(RaisesFrozen):
    run_on = "worker"


class Holds(mg.Function):
    """Its ctx cannot travel."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        ctx.lock = threading.Lock()
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * 2


class Raises(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, kind: str) -> Any:
        ctx.kind = kind
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        if ctx.kind == "value":
            raise ValueError("wrong value", 42)
        if ctx.kind == "custom":
            raise WantsArguments(7, reason="because")
        if ctx.kind == "chained":
            try:
                {}["missing"]
            except KeyError as error:
                raise RuntimeError("while looking") from error
        if ctx.kind == "local class":

            class Local(ArithmeticError):
                pass

            raise Local("of a function")
        if ctx.kind == "unpicklable":
            error = LookupError("holds a lock")
            error.lock = threading.Lock()  # type: ignore[attr-defined]
            raise error
        if ctx.kind == "exit":
            raise SystemExit(3)
        return np.zeros(7, np.float32), None


class TooMany(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad, grad, grad


@pytest.fixture
def leaf(engine: mg.Engine) -> Any:
    """A leaf with a gradient, which must be the same object with the same values afterwards."""
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    before = x.grad
    yield x
    assert x.grad is before
    assert x.grad.tolist() == [2.0, 4.0]


def failure(tensor: mg.Tensor) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        tensor.sum().backward()
    return caught.value


def test_type_arguments_and_both_tracebacks(leaf: mg.Tensor) -> None:
    error = failure(Raises.apply(leaf, "value"))
    assert type(error) is ValueError
    assert error.args == ("wrong value", 42)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert 'raise ValueError("wrong value", 42)' in str(error.__cause__)
    assert any("Raises" in note and "worker" in note for note in error.__notes__)


def test_an_exception_with_an_init_of_its_own(leaf: mg.Tensor) -> None:
    error = failure(Raises.apply(leaf, "custom"))
    assert type(error) is WantsArguments
    assert (error.code, error.reason, str(error)) == (7, "because", "code 7: because")


def test_what_caused_the_exception(leaf: mg.Tensor) -> None:
    error = failure(Raises.apply(leaf, "chained"))
    assert type(error) is RuntimeError
    assert type(error.__cause__) is KeyError
    assert "KeyError: 'missing'" in str(error.__cause__.__cause__)


def test_a_class_that_exists_in_no_module(leaf: mg.Tensor) -> None:
    error = failure(Raises.apply(leaf, "local class"))
    assert isinstance(error, ArithmeticError)
    assert (type(error).__name__, str(error)) == ("Local", "of a function")


def test_attributes_that_cannot_travel(leaf: mg.Tensor) -> None:
    error = failure(Raises.apply(leaf, "unpicklable"))
    assert type(error) is LookupError
    assert str(error) == "holds a lock"


def test_exiting_is_an_error_like_any_other(leaf: mg.Tensor, engine: mg.Engine) -> None:
    pids = engine.worker_pids()
    error = failure(Raises.apply(leaf, "exit"))
    assert type(error) is SystemExit
    assert error.code == 3
    assert engine.worker_pids() == pids


def test_a_gradient_of_a_wrong_shape(leaf: mg.Tensor) -> None:
    error = failure(Raises.apply(leaf, "shape"))
    assert type(error) is RuntimeError
    assert "RaisesBackward returned an invalid gradient at index 0 - got [7]" in str(error)
    assert "expected shape compatible with [2]" in str(error)


def test_too_many_gradients(leaf: mg.Tensor) -> None:
    error = failure(TooMany.apply(leaf))
    assert type(error) is RuntimeError
    assert str(error) == (
        "function TooManyBackward returned an incorrect number of gradients (expected 1, got 3)"
    )


def test_a_branch_that_fails_takes_the_others_with_it(leaf: mg.Tensor) -> None:
    other = mg.tensor([5.0], requires_grad=True)
    error = failure(Raises.apply(leaf, "value").sum() + (other * leaf.exp()).sum())
    assert type(error) is ValueError
    assert other.grad is None


def test_a_function_that_cannot_be_shipped(leaf: mg.Tensor) -> None:
    lock = threading.Lock()

    class Locked(mg.Function):
        run_on = "worker"

        @staticmethod
        def forward(ctx: Any, x: mg.Tensor) -> Any:
            return x.numpy() * 2

        @staticmethod
        def backward(ctx: Any, grad: mg.Tensor) -> Any:
            with lock:
                return grad * 2

    error = failure(Locked.apply(leaf))
    assert isinstance(error, TypeError | RuntimeError)
    assert "Locked" in str(error)
    assert "worker" in str(error)


def test_a_ctx_that_cannot_be_shipped(leaf: mg.Tensor) -> None:
    error = failure(Holds.apply(leaf))
    assert isinstance(error, TypeError | RuntimeError)
    assert "Holds" in str(error)
    assert "lock" in str(error)


def test_packing_that_fails_after_the_workers_have_begun(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root's task is sent before the others are packed: what has begun must be called back."""
    monkeypatch.setattr(chunks, "SMALL_GRAPH", 0)

    large = mg.ones(50_000, requires_grad=True)
    error = failure((Holds.apply(large) * 3.0).sum())
    assert "Holds" in str(error)
    assert large.grad is None
    arena = engine.statistics().engine_arena
    assert arena is not None
    assert arena.live_blocks == 0


def test_a_seed_of_a_wrong_shape(leaf: mg.Tensor) -> None:
    with pytest.raises(RuntimeError, match=r"Mismatch in shape: .*Size\(\[3\]\).*Size\(\[2\]\)"):
        (leaf * 2).backward(mg.ones(3))


def test_a_root_that_is_no_scalar(leaf: mg.Tensor) -> None:
    with pytest.raises(RuntimeError, match="implicitly created only for scalar outputs"):
        (leaf * 2).backward()


def test_a_root_without_grad(engine: mg.Engine) -> None:
    with pytest.raises(RuntimeError, match="element 0 of tensors does not require grad"):
        mg.tensor([1.0]).sum().backward()


def test_a_graph_used_twice(leaf: mg.Tensor) -> None:
    y = mg.tensor([1.0, 2.0], requires_grad=True)
    z = y.exp().sum()
    z.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        z.backward()


def test_a_saved_tensor_changed_in_place(leaf: mg.Tensor) -> None:
    y = leaf.exp()
    z = (y * leaf).sum()
    with mg.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_an_unknown_device(engine: mg.Engine) -> None:
    with pytest.raises(RuntimeError, match="device"):
        mg.tensor([1.0], device="quantum")


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "remote"},
        {"cpu_workers": 0},
        {"cpu_workers": -1},
        {"cpu_workers": 2.0},
        {"cpu_workers": True},
        {"gpus": "all of them"},
        {"shm_limit": 0},
        {"shm_limit": "much"},
        {"blas_threads": 0},
        {"min_hosts": -1},
        {"max_hosts": 0},
        {"min_hosts": 3, "max_hosts": 2},
        {"recover": "everything"},
    ],
    ids=str,
)
def test_settings_out_of_range(settings: dict[str, Any]) -> None:
    name, *_ = settings
    with pytest.raises(ValueError, match=rf"Engine\({name}="):
        mg.Engine(**settings)


def test_a_limit_with_a_unit() -> None:
    with mg.Engine("process", cpu_workers=1, shm_limit="2M") as engine:
        arena = engine.statistics().engine_arena
    assert arena is not None
    assert arena.limit_bytes == 2 << 20


def test_a_misspelt_setting_is_said_once() -> None:
    code = "import mpgrad as mg\nfor _ in range(2): mg.Engine('local')"
    environment = {**os.environ, "MPGRAD_CPUWORKERS": "1", "MPGRAD_OF_MINE": "1"}
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stderr.splitlines() == [
        "mpgrad: MPGRAD_CPUWORKERS is no setting; did you mean MPGRAD_CPU_WORKERS?"
    ]


def test_a_setting_that_is_none_any_more_is_said() -> None:
    environment = {**os.environ, "MPGRAD_JOURNAL": "off"}
    command = [sys.executable, "-c", "import mpgrad as mg\nmg.Engine('local')"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stderr.startswith("mpgrad: MPGRAD_JOURNAL is no setting any more: an internal")
    with pytest.raises(TypeError, match="unexpected keyword argument 'journal'"):
        mg.Engine(journal="off")


def test_an_engine_used_after_close() -> None:
    engine = mg.Engine("process", cpu_workers=1)
    with engine:
        mg.tensor([1.0], requires_grad=True).exp().sum().backward()
    with pytest.raises(EngineClosed, match="closed"):
        engine.__enter__()
    with pytest.raises(EngineClosed, match="closed"):
        engine.explain(mg.tensor([1.0], requires_grad=True))
    engine.close()


def test_shared_memory_runs_out_and_is_there_again() -> None:
    small = mg.ones(256, 256, requires_grad=True)
    large = mg.ones(512, 512, requires_grad=True)
    with mg.Engine("process", cpu_workers=1, shm_limit=900_000):
        (small * 2).sum().backward()
        before = small.grad
        with pytest.raises(SharedMemoryExhausted) as caught:
            (large.exp().sum() + small.sum()).backward()
        error = caught.value
        assert (error.limit, error.requested >= large.nbytes) == (900_000, True)
        assert "900,000" in str(error)
        assert "shm_limit" in str(error)
        assert large.grad is None
        assert small.grad is before
        assert small.grad.sum().item() == 2 * 256 * 256
        small.exp().sum().backward()
        assert small.grad.max().item() == pytest.approx(2 + np.e)


@pytest.mark.parametrize("mode", ["local", "process"])
@pytest.mark.parametrize("function", [RaisesFrozen, RaisesFrozenHere, RaisesFrozenThere])
def test_an_exception_that_refuses_to_be_changed(mode: str, function: type[mg.Function]) -> None:
    x = mg.tensor([1.0], requires_grad=True)
    with mg.Engine(mode, cpu_workers=1), pytest.raises(Frozen) as caught:
        # Two branches, so that more than one task runs.
        (function.apply(x) + mg.exp(x)).sum().backward()
    assert caught.value.code == 7


def test_a_process_that_has_become_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sessions go on; the kernel would name another user to the engine for a new one."""
    user, errors = os.geteuid(), []

    def backward_of_another_thread(grad: mg.Tensor) -> None:
        thread = threading.Thread(target=fails)
        thread.start()
        thread.join()

    def fails() -> None:
        try:
            (mg.ones(1, requires_grad=True) * 2.0).sum().backward()
        except PermissionError as error:
            errors.append(str(error))

    with mg.Engine("process", cpu_workers=1):
        (mg.ones(1, requires_grad=True) * 2.0).sum().backward()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        x = mg.ones(1, requires_grad=True)
        y = x * 2.0
        y.register_hook(backward_of_another_thread)
        y.sum().backward()
    assert x.grad is not None
    assert x.grad.item() == 2.0
    assert [f"started as user {user} and hears no other one" in error for error in errors] == [True]
