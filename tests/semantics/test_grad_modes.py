"""Group K: what is recorded where, inference mode, and on which thread a backward runs."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.recording.graph.grad_modes import is_multithreading_enabled
from tests.semantics.paired import error_of, leaf, paired, row, values

# ---------------------------------------------------------------------- no_grad and its like


@paired("K1", "K5")
def test_modes_nest(lib: Any) -> Any:
    x, seen = leaf(lib, 3), []
    with lib.no_grad():
        seen += [lib.is_grad_enabled(), (x * 2).requires_grad]
        with lib.enable_grad():
            seen += [lib.is_grad_enabled(), (x * 2).requires_grad]
            with lib.set_grad_enabled(False):
                seen += [lib.is_grad_enabled(), (x * 2).is_leaf]
        seen.append(lib.is_grad_enabled())
    return seen, lib.is_grad_enabled(), x.requires_grad


@paired("K1")
def test_what_no_grad_leaves_alone(lib: Any) -> Any:
    with lib.no_grad():
        x = lib.ones(3, dtype=lib.float64, requires_grad=True)
        x.add_(1)  # a leaf may be changed here
        y = lib.ones(3).requires_grad_()
    return x, x.is_leaf, y.requires_grad


@paired("K1")
def test_modes_decorate_functions(lib: Any) -> Any:
    x = leaf(lib, 3)

    @lib.no_grad
    def bare() -> bool:
        return (x * 2).requires_grad

    @lib.no_grad()
    def called() -> bool:
        """What it does."""
        return (x * 2).requires_grad

    @lib.enable_grad()
    def enabled() -> bool:
        return (x * 2).requires_grad

    @lib.set_grad_enabled(False)
    def valued() -> bool:
        return (x * 2).requires_grad

    defined = lib.is_grad_enabled()
    with lib.no_grad():
        inside = enabled()
    return defined, bare(), called(), inside, valued(), called.__doc__, lib.is_grad_enabled()


@paired("K1")
def test_a_decorated_function_may_call_itself(lib: Any) -> Any:
    seen = []

    @lib.no_grad()
    def descend(depth: int) -> None:
        if depth:
            with lib.enable_grad():
                descend(depth - 1)
                seen.append(lib.is_grad_enabled())
        seen.append(lib.is_grad_enabled())

    descend(2)
    return seen, lib.is_grad_enabled()


@paired("K1")
def test_set_grad_enabled_acts_at_once(lib: Any) -> Any:
    seen = []
    try:
        lib.set_grad_enabled(False)
        seen.append(lib.is_grad_enabled())
        block = lib.set_grad_enabled(True)
        seen.append(lib.is_grad_enabled())
        with block:
            seen.append(lib.is_grad_enabled())
        seen.append(lib.is_grad_enabled())
    finally:
        lib.set_grad_enabled(True)
    return seen, error_of(lambda: lib.set_grad_enabled(1), "must be bool, not int")


@paired("K1")
def test_a_generator_gets_its_mode_back_at_each_step(lib: Any) -> Any:
    seen: list[Any] = []

    @lib.no_grad()
    def steps() -> Iterator[Any]:
        try:
            sent = yield lib.is_grad_enabled()
            seen.append((sent, lib.is_grad_enabled()))
            yield "second"
        except ValueError:
            yield "caught", lib.is_grad_enabled()
        finally:
            seen.append(("finally", lib.is_grad_enabled()))
        return lib.is_grad_enabled()

    generator = steps()
    seen += [next(generator), lib.is_grad_enabled(), generator.send(7), lib.is_grad_enabled()]
    seen += [generator.throw(ValueError), lib.is_grad_enabled()]
    try:
        next(generator)
    except StopIteration as stop:
        seen.append(stop.value)
    closed = steps()
    next(closed)
    closed.close()
    failing = steps()
    next(failing)
    seen.append(error_of(lambda: failing.throw(KeyError("x"))))
    return seen, lib.is_grad_enabled()


@row("K1")
def test_a_coroutine_gets_its_mode_back_at_each_step() -> None:
    # PyTorch leaves coroutines alone, so that their bodies run in the caller's mode.
    seen: list[bool] = []

    @mg.no_grad()
    async def body(name: str) -> str:
        for _ in range(2):
            seen.append(mg.is_grad_enabled())
            await asyncio.sleep(0)
        return name

    async def other() -> None:
        for _ in range(3):
            seen.append(mg.is_grad_enabled())
            await asyncio.sleep(0)

    async def main() -> list[Any]:
        return await asyncio.gather(body("a"), other(), body("b"))

    assert asyncio.run(main()) == ["a", None, "b"]
    assert seen == [False, True, False, False, True, False, True]
    assert asyncio.iscoroutinefunction(body)


@row("K1")
def test_an_asynchronous_generator_gets_its_mode_back_at_each_step() -> None:
    seen: list[Any] = []

    @mg.no_grad()
    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(3):
                seen.append(mg.is_grad_enabled())
                await asyncio.sleep(0)
                yield number
        except ValueError:
            seen.append("thrown")
            yield 99
        finally:
            seen.append(("finally", mg.is_grad_enabled()))

    def look(number: int) -> None:
        seen.append((number, mg.is_grad_enabled()))

    async def main() -> None:
        async for number in numbers():
            look(number)
        thrown: Any = numbers()
        await anext(thrown)
        assert await thrown.athrow(ValueError) == 99
        await thrown.aclose()

    asyncio.run(main())
    loop = [entry for number in range(3) for entry in (False, (number, True))]
    assert seen == [*loop, ("finally", False), False, "thrown", ("finally", False)]


@paired("K1")
def test_decorating_a_class_warns(lib: Any) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        @lib.no_grad()
        class Made:
            def __init__(self) -> None:
                self.mode = lib.is_grad_enabled()

    assert "Decorating classes is deprecated" in str(caught[0].message)
    return [entry.category.__name__ for entry in caught], Made().mode


# ---------------------------------------------------------------------- threads and backwards


@paired("K2")
def test_a_new_thread_starts_in_the_default_mode(lib: Any) -> Any:
    seen: list[Any] = []

    def look() -> None:
        seen.append((lib.is_grad_enabled(), lib.is_inference_mode_enabled()))
        lib.set_grad_enabled(False)

    with lib.no_grad(), lib.inference_mode():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    return seen, lib.is_grad_enabled()


@paired("K2")
def test_backward_itself_records_nothing(lib: Any) -> Any:
    x, seen = leaf(lib, 3), []
    y = x * 2

    def hook(grad: Any) -> None:
        seen.append((lib.is_grad_enabled(), (grad * x).requires_grad))
        with lib.enable_grad():
            seen.append((grad * x).requires_grad)

    y.register_hook(hook)
    with lib.no_grad():
        (result,) = lib.autograd.grad(y, x, lib.ones(3, dtype=lib.float64), retain_graph=True)
    y.sum().backward()
    return seen, result, x.grad, lib.is_grad_enabled()


@paired("K4")
def test_the_mode_survives_errors_and_inner_backwards(lib: Any) -> Any:
    x, seen = leaf(lib, 3), []
    y = x * 2

    def failing(grad: Any) -> None:
        with lib.enable_grad():
            (x * x).sum().backward()
            raise ValueError("on purpose")

    handle = y.register_hook(failing)
    loss = y.sum()
    for mode in (True, False):
        with lib.set_grad_enabled(mode):
            seen.append(error_of(lambda: loss.backward(retain_graph=True), "on purpose"))
            seen.append(lib.is_grad_enabled())
    handle.remove()
    seen.append(lib.is_grad_enabled())
    with lib.no_grad():
        seen.append(error_of(lambda: x.unknown))
    return seen, lib.is_grad_enabled()


@row("K6")
@pytest.mark.process
def test_multithreading_can_be_switched_off(process_engine: mg.Engine) -> None:
    x = leaf(mg, 3)

    def tasks() -> int:
        before = sum(process_engine.statistics().tasks.values())
        (x * x).sum().backward()
        return sum(process_engine.statistics().tasks.values()) - before

    assert tasks() > 0
    with mg.autograd.set_multithreading_enabled(False):
        assert not is_multithreading_enabled()
        assert tasks() == 0

        @mg.autograd.set_multithreading_enabled(True)
        def with_workers() -> int:
            return tasks()

        assert with_workers() > 0
        assert tasks() == 0
    assert tasks() > 0
    x.grad = None


@paired("K6")
def test_without_multithreading_hooks_run_on_the_calling_thread(lib: Any) -> Any:
    x, threads = leaf(lib, 3), []
    y = x.exp()
    y.register_hook(lambda grad: threads.append(threading.get_ident()))
    lib.autograd.set_multithreading_enabled(False)
    try:
        y.sum().backward()
    finally:
        lib.autograd.set_multithreading_enabled(True)
    return x.grad, threads == [threading.get_ident()]


# ---------------------------------------------------------------------- inference mode


def made_in_inference_mode(lib: Any) -> Any:
    with lib.inference_mode():
        return lib.tensor(values(3))


@paired("K3", "K5")
def test_inference_mode_makes_inference_tensors(lib: Any) -> Any:
    x = leaf(lib, 3)
    with lib.inference_mode():
        y, view, created = x * 2, x.view(3), lib.ones(3, requires_grad=True)
        inside = [lib.is_inference_mode_enabled(), lib.is_grad_enabled(), x.is_inference()]
    facts = [(t.requires_grad, t.is_leaf, t.is_inference()) for t in (y, view, created)]
    return facts, inside, lib.is_inference_mode_enabled(), lib.is_grad_enabled(), y


@paired("K3")
def test_what_an_inference_tensor_cannot_do_outside(lib: Any) -> Any:
    x, made = leaf(lib, 3), made_in_inference_mode(lib)
    in_place = "Inplace update to inference tensor outside InferenceMode is not allowed"
    saved = "Inference tensors cannot be saved for backward"
    return (
        error_of(lambda: made._version, "Inference tensors do not track version counter"),
        error_of(lambda: made.add_(1), in_place),
        error_of(lambda: made.__setitem__(0, 1.0), in_place),
        error_of(lambda: made.view(3).mul_(2), in_place),
        error_of(lib.no_grad()(lambda: made.zero_()), in_place),
        error_of(lambda: made * x, saved),
        error_of(lambda: x * made, saved),
        error_of(made.requires_grad_, "Setting requires_grad=True on inference tensor outside"),
    )


@paired("K3")
def test_what_an_inference_tensor_can_do_outside(lib: Any) -> Any:
    x, made = leaf(lib, 3), made_in_inference_mode(lib)
    (x + made).sum().backward()  # an addition saves nothing
    kinds = [
        t.is_inference()
        for t in (made.clone(), made + 1, made.view(3), made[0], made.detach(), made.data)
    ]
    copied = made.clone().requires_grad_()
    (copied * x).sum().backward()
    return x.grad, copied.grad, kinds, made.requires_grad_(False).requires_grad


@paired("K3")
def test_inside_an_inference_tensor_may_change(lib: Any) -> Any:
    made = made_in_inference_mode(lib)
    with lib.inference_mode():
        made.add_(1)
        made[0] = 5.0
        other = lib.ones(3).requires_grad_()
    return made, other.requires_grad, other.is_inference()


@paired("K3")
def test_changes_of_ordinary_tensors_are_counted_inside(lib: Any) -> Any:
    x, plain = leaf(lib, 3), lib.tensor(values(3, seed=1))
    y = x * plain
    before = plain._version
    with lib.inference_mode():
        plain.add_(1)
        x.add_(1)
    stale = error_of(y.sum().backward, "modified by an inplace operation")
    return plain._version - before, plain.is_inference(), stale, x


@paired("K3")
def test_inference_mode_nests(lib: Any) -> Any:
    x, seen = leaf(lib, 3), []

    @lib.inference_mode
    def bare() -> bool:
        return lib.is_inference_mode_enabled()

    @lib.inference_mode(False)
    def never() -> bool:
        return lib.is_inference_mode_enabled()

    with lib.inference_mode():
        with lib.inference_mode(False):
            y = x * 2
            seen += [lib.is_grad_enabled(), y.requires_grad, y.is_inference()]
        seen += [lib.is_inference_mode_enabled(), never()]
        with lib.enable_grad():
            seen.append((x * x).grad_fn is None)
    with lib.no_grad(), lib.inference_mode(False):
        seen.append(lib.is_grad_enabled())
    return seen, bare(), never(), lib.is_inference_mode_enabled(), lib.is_grad_enabled()


@paired("K3")
def test_backward_works_in_inference_mode(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    w.grad = lib.zeros(3, dtype=lib.float64)
    y = (x * w * x).sum()
    with lib.inference_mode():
        (result,) = lib.autograd.grad(y, x, retain_graph=True)
        y.backward()
    first = x.grad.clone()
    again = error_of((x * 2).sum().backward, "Inplace update to inference tensor outside")
    return first, x.grad.is_inference(), w.grad, w.grad.is_inference(), result, again


# ---------------------------------------------------------------------- Variable


@paired("K7")
def test_variable_is_an_old_name_of_the_tensor(lib: Any) -> Any:
    Variable = lib.autograd.Variable
    data = lib.tensor(values(3))
    variable = Variable(data, requires_grad=True)
    (variable * 2).sum().backward()
    with lib.no_grad():
        variable.zero_()
    return (
        variable.grad,
        isinstance(data, Variable),
        isinstance(3.0, Variable),
        variable is data,
        data,
        Variable(leaf(lib, 3) * 2).is_leaf,
        error_of(lambda: Variable([1.0]), "Variable data has to be a tensor, but got list"),
    )


@paired("K7")
def test_volatile_is_accepted_with_a_warning(lib: Any) -> Any:
    x = lib.ones(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = lib.autograd.Variable(x, volatile=True)
        x.volatile = True
        value = x.volatile
    assert all("volatile was removed" in str(entry.message) for entry in caught)
    return made.requires_grad, value, [entry.category.__name__ for entry in caught]


@row("K3")
def test_inference_tensors_are_made_on_the_thread_of_the_mode_only() -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with mg.inference_mode():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    x = mg.ones(3)
    leave.set()
    thread.join()
    assert not x.is_inference()
    with pytest.raises(RuntimeError, match="do not track"):
        made_in_inference_mode(mg)._version  # noqa: B018
