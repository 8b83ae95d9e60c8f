"""``mg.compile``: what is compiled anew, what is refused, and what runs as without it."""

from __future__ import annotations

import gc
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.arrays.cpu.array_program import ArrayProgram
from mpgrad.base.generated_code import compiled
from mpgrad.errors import CompilationError, PerformanceWarning
from mpgrad.func.compilation import compile as compilation
from mpgrad.func.compilation.compile import VARIANTS_MAX
from mpgrad.func.compilation.traced_call import OperatorTracer
from mpgrad.nn import functional as F


@pytest.fixture(autouse=True)
def local() -> Iterator[None]:
    with mg.Engine("local"):
        yield


def _x(*shape: int) -> mg.Tensor:
    return mg.tensor(np.random.default_rng(0).standard_normal(shape or (3, 4)).astype(np.float32))


def _variants(function: Any) -> int:
    return len(function.compilation.variants)


# ---------------------------------------------------------------------- forms


def test_as_a_decorator_with_and_without_arguments() -> None:
    @mg.compile
    def one(x: mg.Tensor) -> mg.Tensor:
        """Doubles."""
        return x * 2

    @mg.compile(fullgraph=True)
    def two(x: mg.Tensor, *, by: float = 3.0) -> mg.Tensor:
        return x * by

    assert one.__doc__ == "Doubles."
    for _ in range(3):
        assert (one(_x()) == _x() * 2).all()
        assert (two(_x(), by=4.0) == _x() * 4).all()
        assert (two(x=_x()) == _x() * 3).all()
    assert (_variants(one), _variants(two)) == (1, 2)


def test_a_module_is_compiled_and_shares_all_it_has() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    compiled = mg.compile(model)
    assert isinstance(compiled, nn.Module)
    assert [*compiled.parameters()] == [*model.parameters()]
    assert compiled[0] is model[0] if hasattr(type(compiled), "__getitem__") else True
    compiled.eval()
    assert not model.training
    assert compiled(_x()).detach().numpy().tobytes() == model(_x()).detach().numpy().tobytes()


def test_a_compiled_module_records_the_graph_that_it_would_record() -> None:
    mg.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    )
    compiled, x = mg.compile(model), _x(2, 1, 4, 4)
    target = mg.tensor([0, 2])
    for _ in range(3):
        graphs, grads = [], []
        for run in (compiled, model):
            model.zero_grad()
            model[1].reset_running_stats() if hasattr(model[1], "reset_running_stats") else None
            loss = F.cross_entropy(run(x), target)
            graphs.append(_names(loss.grad_fn))
            loss.backward()
            grads.append([p.grad.numpy().tobytes() for p in model.parameters()])
        assert graphs[0] == graphs[1]
        assert grads[0] == grads[1]
    assert len(compiled.compilation.variants) >= 1, compiled.compilation.reason


def test_a_graph_of_an_operator_with_several_results() -> None:
    run = mg.compile(lambda x: x.max(0))
    for _ in range(3):
        x = _x().requires_grad_()
        values, places = run(x)
        values.sum().backward()
        assert x.grad.sum() == 4
        assert (places == x.argmax(0)).all()


def _names(node: Any) -> Any:
    return (node.name(), [None if f is None else _names(f) for f, _ in node.next_functions])


def test_a_method_and_its_object() -> None:
    class Model:
        scale = 2.0

        def __init__(self) -> None:
            self.calls = 0
            self.shift = 1.0

        def step(self, x: mg.Tensor) -> mg.Tensor:
            return x * self.scale + self.shift

    model = Model()
    run = mg.compile(model.step)
    for shift in (1.0, 1.0, 5.0):
        model.calls += 1  # nothing that the code reads
        model.shift = shift
        assert (run(_x()) == _x() * 2 + shift).all()
    assert _variants(run) == 2
    Model.scale = 3.0
    assert (run(_x()) == _x() * 3 + 5.0).all()


# ---------------------------------------------------------------------- what is compiled anew


SCALE = 2.0


def test_what_the_code_reads_is_compared() -> None:
    settings = {"shift": 1.0, "list": [1.0]}

    @mg.compile
    def step(x: mg.Tensor) -> mg.Tensor:
        return x * SCALE + settings["shift"] + settings["list"][-1]

    global SCALE
    before = SCALE
    try:
        for scale, shift, items in ((2.0, 1.0, [1.0]), (3.0, 1.0, [1.0]), (3.0, 2.0, [1.0, 5.0])):
            SCALE, settings["shift"], settings["list"][:] = scale, shift, items
            for _ in range(2):
                expected = _x() * scale + shift + items[-1]
                assert (step(_x()) == expected).all()
    finally:
        SCALE = before
    assert _variants(step) == 3


def test_modes_and_flags() -> None:
    layer = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.9))
    run = mg.compile(layer)
    assert run(_x()).requires_grad
    with mg.no_grad():
        assert not run(_x()).requires_grad
    layer.eval()
    assert (run(_x()) == layer(_x())).all()
    layer[0].weight.requires_grad_(False)
    layer[0].bias.requires_grad_(False)
    assert not run(_x()).requires_grad
    layer[1].p = 0.5
    with mg.inference_mode():
        assert run(_x()).is_inference()
    assert run(_x().double()[:, :0].sum() + _x()).dtype == mg.float32


def test_other_memory_of_a_parameter() -> None:
    weight = nn.Parameter(_x())
    run = mg.compile(lambda: weight * 2)
    for value in (1.0, 2.0):
        weight.data = mg.full((3, 4), value)
        for _ in range(2):
            assert (run() == 2 * value).all()


def test_the_learning_rate_may_change_in_each_step() -> None:
    weight = nn.Parameter(mg.zeros(3))
    steps = mg.optim.SGD([weight], lr=1.0)

    @mg.compile
    def step() -> None:
        steps.zero_grad()
        weight.sum().backward()
        steps.step()

    schedule = mg.optim.lr_scheduler.StepLR(steps, 1, gamma=0.5)
    for _ in range(12):
        step()
        schedule.step()
    assert _variants(step) <= 2
    assert weight[0].item() == -sum(0.5**k for k in range(12))


def test_hooks_that_come_later_are_called() -> None:
    weight = nn.Parameter(_x())
    seen = []

    @mg.compile
    def step() -> None:
        weight.grad = None
        (weight * 2).sum().backward()

    step()
    step()
    handle = weight.register_hook(seen.append)
    with pytest.warns(PerformanceWarning, match="hooks"):
        step()
    assert len(seen) == 1
    handle.remove()


def test_hooks_of_modules_and_attributes_that_come_later() -> None:
    class Scaled(nn.Module):
        scale = 2.0

        def forward(self, x: mg.Tensor) -> mg.Tensor:
            return x * self.scale

    model, seen = Scaled(), []
    run = mg.compile(model)
    assert (run(_x()) == _x() * 2).all()
    model.scale = 3.0
    assert (run(_x()) == _x() * 3).all()
    model.register_forward_hook(lambda *given: seen.append(given))
    with pytest.warns(PerformanceWarning, match="_hooks"):
        run(_x())
    run(_x())
    assert len(seen) == 2


def test_shapes_up_to_a_limit_then_as_without_it_said_once() -> None:
    run = mg.compile(lambda x: x * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for length in range(1, VARIANTS_MAX + 1):
            assert run(mg.ones(length)).sum() == 2 * length
    with pytest.warns(PerformanceWarning, match="more than 8 ways"):
        run(mg.ones(20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for length in range(21, 25):
            assert run(mg.ones(length)).sum() == 2 * length
    assert _variants(run) == VARIANTS_MAX
    assert run(mg.ones(3)).sum() == 6


def test_a_view_of_another_batch_is_another_batch() -> None:
    data = _x(12, 4)
    run = mg.compile(lambda x: x.sum(0))
    for at in range(0, 12, 4):
        assert (run(data[at : at + 4]) == data[at : at + 4].sum(0)).all()
    assert _variants(run) == 1


def test_arguments_that_share_memory() -> None:
    data = _x(4, 4)
    run = mg.compile(lambda a, b: a.clone().add_(b).matmul(b))
    for a, b in ((data[:2], data[2:]), (data, data), (data, data.t()), (_x(4, 4), data)):
        if a.shape[1] == b.shape[0]:
            assert (run(a, b) == a.clone().add_(b).matmul(b)).all()


# ---------------------------------------------------------------------- what is not compiled

READS: dict[str, Callable[[mg.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "if": lambda x: x * 2 if x.sum() > 0 else x,
    "float": lambda x: float(x.sum()),
    "numpy": lambda x: x.detach().numpy() * 2,
    "tolist": lambda x: x.tolist(),
    "repr": lambda x: repr(x),
    "format": lambda x: f"{x.sum():.1f}",
    "index": lambda x: x[(x.sum() * 0).long().item()],
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "print": lambda x: print("a line", end=""),
    "seed": lambda x: mg.manual_seed(3) and x,
    "np.random": lambda x: x * np.random.rand(),
    "create_graph": lambda x: mg.autograd.grad((W * x).sum(), [W], create_graph=True)[0],
    "array": lambda x: x * ARRAY,
}
W = nn.Parameter(_x())
ARRAY = np.ones(4, np.float32)


@pytest.mark.parametrize("name", READS)
def test_what_a_program_cannot_know_is_said(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    function, x = READS[name], _x()
    strict = mg.compile(function, fullgraph=True)
    with pytest.raises(CompilationError, match="fullgraph=True") as raised:
        strict(x)
    if name not in ("array", "np.random"):
        assert "test_compile.py" in str(raised.value)
    expected = str(function(x))
    run = mg.compile(function)
    with pytest.warns(PerformanceWarning, match="runs as without it"):
        found = [str(run(x))]
    with warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)
        found += [str(run(x)), str(run(x))]
    assert found == [expected] * 3 or name == "np.random"
    assert _variants(run) == 0
    assert run.compilation.reason in run.compilation.source()


def test_values_that_python_changes_are_noticed() -> None:
    seen: list[Any] = []
    counter = {"calls": 0}

    @mg.compile
    def step(x: mg.Tensor) -> mg.Tensor:
        counter["calls"] += 1
        seen.append(x.shape)
        return x * 2

    with pytest.warns(PerformanceWarning, match=r"it changes .*(seen|counter)"):
        step(_x())
    for _ in range(3):
        step(_x())
    assert counter["calls"] == len(seen) == 4


def test_a_method_that_is_called_as_a_function_of_numpy_is() -> None:
    def rows(x: mg.Tensor) -> mg.Tensor:
        found = [x[0] * np.float32(2)]
        found.append(x[1] * 2)
        return mg.stack(found)

    run = mg.compile(rows)
    for _ in range(2):
        assert (run(_x()) == _x()[:2] * 2).all()
    assert _variants(run) == 1, run.compilation.reason


def test_an_unknown_object_is_named() -> None:
    numbers = iter(range(100))
    run = mg.compile(lambda x: x * next(numbers))
    with pytest.warns(PerformanceWarning, match="numbers, a range_iterator"):
        found = [run(mg.ones(1)).item() for _ in range(3)]
    assert found == [0, 1, 2]


def test_a_step_that_breaks_in_the_middle_is_done_once() -> None:
    weight = nn.Parameter(mg.ones(3))
    steps = mg.optim.SGD([weight], lr=1.0)

    @mg.compile
    def step() -> float:
        steps.zero_grad()
        loss = (weight * weight).sum()
        loss.backward()
        steps.step()
        return loss.item()

    with pytest.warns(PerformanceWarning, match=r"\.item"):
        assert [step() for _ in range(3)] == [3.0, 3.0, 3.0]
    assert weight.tolist() == [-1.0, -1.0, -1.0]
    assert type(weight._array) is np.ndarray


def test_an_error_in_the_function_leaves_real_arrays() -> None:
    weight = nn.Parameter(_x())

    @mg.compile
    def step(x: mg.Tensor) -> mg.Tensor:
        return weight @ x

    for _ in range(2):
        with pytest.raises(RuntimeError):
            step(_x(3, 3))
    assert (step(_x(4, 2)) == weight @ _x(4, 2)).all()
    assert type(weight._array) is np.ndarray


def test_an_index_out_of_bounds_is_refused_in_each_run() -> None:
    run = mg.compile(lambda x, y: F.cross_entropy(x, y))
    run(_x(), mg.tensor([0, 1, 2]))
    for _ in range(2):
        with pytest.raises(IndexError, match="Target 4 is out of bounds"):
            run(_x(), mg.tensor([0, 4, 2]))
    assert _variants(run) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dynamic": True}, "dynamic=True"),
        ({"backend": "nvfuser"}, "nvfuser"),
        ({"mode": "max-autotune"}, "max-autotune"),
        ({"options": {"a": 1}}, "options"),
    ],
)
def test_options_that_are_not_offered(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        mg.compile(lambda x: x, **options)


def test_what_cannot_be_compiled_at_all() -> None:
    with pytest.raises(TypeError, match="int"):
        mg.compile(3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="class"):
        mg.compile(nn.Linear)

    def same(x: Any) -> Any:
        return x

    assert mg.compile(same, disable=True) is same
    assert mg.compile(same, dynamic=False, backend="inductor", mode="default")(3) == 3


def test_one_compiled_function_calls_another() -> None:
    inner = mg.compile(lambda x: x * 2)
    outer = mg.compile(lambda x: inner(x) + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            assert (outer(_x()) == _x() * 2 + 1).all()


def test_inside_other_modes_it_runs_as_without_it() -> None:
    run = mg.compile(lambda x: x * 2)
    x = _x()
    x.requires_grad_()
    packed = []

    def pack(tensor: mg.Tensor) -> mg.Tensor:
        packed.append(tensor)
        return tensor

    run(x)
    with mg.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        (run(x) * x).sum().backward()
    assert packed
    with pytest.warns(UserWarning, match="Anomaly"), mg.autograd.detect_anomaly():
        run(x).sum().backward()


def test_what_was_computed_while_tracing_is_let_go() -> None:
    weight = nn.Parameter(_x(7, 123))

    @mg.compile
    def step(x: mg.Tensor) -> mg.Tensor:
        weight.grad = None
        loss = (x @ weight).exp().square().sum()
        loss.backward()
        return loss.detach()

    step(_x(5, 7))
    step(_x(5, 7))
    gc.collect()
    assert _variants(step) > 0
    tensors = [t for t in gc.get_objects() if type(t) is mg.Tensor]
    assert [t.shape for t in tensors if tuple(t.shape) == (5, 123)] == []


def test_from_several_threads() -> None:
    model = nn.Linear(4, 3)
    run = mg.compile(model)
    expected = model(_x()).detach().numpy().tobytes()
    found: list[bytes] = []

    def work() -> None:
        found.extend([run(_x()).detach().numpy().tobytes() for _ in range(20)])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 60


def test_a_trace_that_another_thread_disturbs_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = nn.Parameter(_x())
    expected = (weight * 2).detach().numpy().tobytes()
    found: list[bytes] = []

    def work() -> None:
        found.append((weight * 2).detach().numpy().tobytes())

    # In a file of the package's: the test's own code would be watched as the user's.
    known = {"done": OperatorTracer.done, "Thread": threading.Thread, "work": work, "found": found}
    source = (
        "def disturbed(self, *given):\n"
        "    if not found:\n"
        "        thread = Thread(target=work)\n"
        "        thread.start()\n"
        "        thread.join()\n"
        "    done(self, *given)\n"
    )
    monkeypatch.setattr(
        OperatorTracer, "done", compiled("disturbed", source, known, "call disturbed")
    )
    run = mg.compile(lambda: weight.detach() + 1 + weight)
    for _ in range(3):
        assert (run() == weight.detach() + 1 + weight).all()
    assert found == [expected]
    assert _variants(run) == 1, run.compilation.reason
    assert "multiply(" not in run.compilation.source()  # the other thread's


def test_ctrl_c_while_a_call_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it comes, Tensors have their arrays again."""

    def interrupted(program: ArrayProgram) -> None:
        signal.raise_signal(signal.SIGINT)
        release(program)

    weight = nn.Parameter(_x())
    run = mg.compile(lambda: (weight * 2).sum().backward())
    release = compilation.release
    with monkeypatch.context() as patch:
        patch.setattr(compilation, "release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert weight.grad is not None
    assert type(weight.grad._array) is np.ndarray
    run()
    assert (weight.grad == 4).all()


def test_results_are_new_tensors_in_each_run() -> None:
    @mg.compile
    def step(x: mg.Tensor) -> tuple[mg.Tensor, mg.Tensor, mg.Tensor]:
        h = x * 2
        return h, h.reshape(-1), mg.ones(2)

    kept = [step(_x() * k) for k in range(3)]
    for k, (h, flat, ones) in enumerate(kept):
        assert (h == _x() * k * 2).all()
        assert flat._base is h
        ones.add_(1)
        flat.zero_()
        assert (h == 0).all()
        assert h._version == flat._version == 1
    assert (kept[2][2] == 2).all()


def test_a_loss_that_was_used_up_stays_so() -> None:
    weight = nn.Parameter(_x())

    @mg.compile
    def step() -> mg.Tensor:
        loss = (weight * weight).sum()
        loss.backward()
        return loss

    for _ in range(3):
        with pytest.raises(RuntimeError, match="second time"):
            step().backward()
