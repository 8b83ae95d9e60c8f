"""One step of sixteen pendulums: as a loop, with pools of processes, and with mpgrad.

Each prints the loss, the gradient and what its step takes on this machine. The pools return the
value and its derivatives by hand; what is around them (here a parameter's exp and a mean) is
differentiated by hand, too.

python examples/or_a_pool.py [steps of time]
"""

import math
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import mpgrad as mg

TIMES = int(sys.argv[1]) if len(sys.argv) > 1 else 40_000
STARTS = [0.1 * k for k in range(1, 17)]
Step = Callable[[], tuple[float, float]]


def swing(start: float, friction: float) -> tuple[float, float]:
    """Where a pendulum is in the end, and the derivative of that by its friction."""
    angle, speed, d_angle, d_speed = start, 0.0, 0.0, 0.0
    dt = 5.0 / TIMES
    for _ in range(TIMES):
        d_speed -= dt * (math.cos(angle) * d_angle + speed + friction * d_speed)
        speed -= dt * (math.sin(angle) + friction * speed)
        d_angle += dt * d_speed
        angle += dt * speed
    return angle, d_angle


# ---------------------------------------------------------------------- mpgrad


class Swing(mg.Function):
    """``swing`` for autograd; what forward has found on the way stays in the worker."""

    @staticmethod
    def forward(ctx: Any, start: float, friction: mg.Tensor) -> mg.Tensor:
        end, ctx.slope = swing(start, friction.item())
        return mg.tensor(end, dtype=mg.float64)

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> tuple[None, mg.Tensor]:
        return None, grad * ctx.slope


def with_autograd(ends_of: Callable[[mg.Tensor], list[mg.Tensor]]) -> tuple[float, float]:
    """Loss and gradient; the chain rule is the library's."""
    log_friction = mg.tensor(-2.0, dtype=mg.float64, requires_grad=True)
    ends = ends_of(log_friction.exp())
    loss = mg.stack(ends).square().mean()
    loss.backward()
    assert log_friction.grad is not None
    return loss.item(), log_friction.grad.item()


def loop() -> tuple[float, float]:
    """As first written."""
    return with_autograd(lambda friction: [Swing.apply(start, friction) for start in STARTS])


def mpgrad_map() -> tuple[float, float]:
    """One line changed."""
    return with_autograd(lambda friction: Swing.map(STARTS, [friction] * len(STARTS)))


# ---------------------------------------------------------------------- pools


def by_hand(found: list[tuple[float, float]], friction: float) -> tuple[float, float]:
    """Loss and gradient from all values and derivatives: the chain rule by hand."""
    loss = sum(end**2 for end, _ in found) / len(found)
    slope = sum(2 * end * d_end for end, d_end in found) / len(found)
    return loss, slope * friction


def with_executor(pool: ProcessPoolExecutor) -> tuple[float, float]:
    """``concurrent.futures``."""
    friction = math.exp(-2.0)
    found = list(pool.map(swing, STARTS, [friction] * len(STARTS)))
    return by_hand(found, friction)


def with_joblib(parallel: Any, delayed: Any) -> tuple[float, float]:
    """joblib, with processes that stay."""
    friction = math.exp(-2.0)
    found = parallel(delayed(swing)(start, friction) for start in STARTS)
    return by_hand(found, friction)


def with_ray(ray: Any, actors: list[Any]) -> tuple[float, float]:
    """Two Ray actors, which take turns."""
    friction = math.exp(-2.0)
    asked = [actors[k % 2].swing.remote(start, friction) for k, start in enumerate(STARTS)]
    return by_hand(ray.get(asked), friction)


# ---------------------------------------------------------------------- the race


def timed(name: str, step: Step) -> None:
    """Print a step's result, and the median of five times, when all processes have started."""
    for _ in range(10):
        step()
    times = []
    for _ in range(5):
        started = time.perf_counter()
        loss, slope = step()
        times.append(time.perf_counter() - started)
    print(f"{name:22} loss {loss:.12f}  gradient {slope:.12f} {sorted(times)[2] * 1e3:8.0f} ms")


def main() -> None:
    """Each way that is installed here."""
    with mg.Engine("process", cpu_workers=2):
        timed("mpgrad, Swing.map", mpgrad_map)
    with mg.Engine("local"):
        timed("loop", loop)
    with ProcessPoolExecutor(2) as pool:
        timed("ProcessPoolExecutor", lambda: with_executor(pool))
    try:
        import joblib
    except ImportError:
        pass
    else:
        with joblib.Parallel(2) as parallel:
            timed("joblib", lambda: with_joblib(parallel, joblib.delayed))
    try:
        import ray
    except ImportError:
        return
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="error")

    class Pendulums:
        def swing(self, start: float, friction: float) -> tuple[float, float]:
            return swing(start, friction)

    actors = [ray.remote(Pendulums).remote() for _ in range(2)]
    timed("Ray actors", lambda: with_ray(ray, actors))
    ray.shutdown()


if __name__ == "__main__":
    main()
