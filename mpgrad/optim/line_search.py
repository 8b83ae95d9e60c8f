"""Line search: a step length along a direction that satisfies the strong Wolfe conditions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mpgrad.recording.tensors.tensor import Tensor

#: The loss must fall by this share of the decrease that the slope predicts,
SUFFICIENT_DECREASE = 1e-4
#: and the slope to this share of the first one.
CURVATURE = 0.9
#: A bracket in which no coordinate moves by more than this is searched no further.
SMALLEST_CHANGE = 1e-9


@dataclass(frozen=True)
class Point:
    """A point on the line: step length ``t``, and the loss, gradient and slope there."""

    t: float
    loss: float
    grad: Tensor
    slope: float


def strong_wolfe(
    evaluate: Callable[[float], Point],
    start: Point,
    t: float,
    largest: float,
    max_steps: int,
) -> tuple[Point, int]:
    """Search for a point with a sufficient decrease of the loss and a small slope.

    Nocedal and Wright, "Numerical optimization", algorithms 3.5 and 3.6, with cubic interpolation.

    Args:
        evaluate: the point at a step length.
        start: the point at 0, whose slope is negative.
        t: the first step length to try.
        largest: largest absolute coordinate of the direction.
        max_steps: how many more points may be evaluated after the first.

    Returns:
        The best point, and how many were evaluated.
    """
    bracket, steps = _bracket(evaluate, start, t, max_steps)
    if len(bracket) == 2:
        steps = _zoom(evaluate, start, bracket, largest, steps, max_steps)
    return bracket[_low(bracket)], steps + 1


def _has_fallen(start: Point, point: Point) -> bool:
    return not point.loss > start.loss + SUFFICIENT_DECREASE * point.t * start.slope


def _is_flat(start: Point, point: Point) -> bool:
    return abs(point.slope) <= -CURVATURE * start.slope


def _low(bracket: list[Point]) -> int:
    """Index of the point with the smaller loss."""
    return 0 if bracket[0].loss <= bracket[-1].loss else 1


def _bracket(
    evaluate: Callable[[float], Point], start: Point, t: float, max_steps: int
) -> tuple[list[Point], int]:
    """Two points between which there is a good one, or a good one alone; and the steps made."""
    before, point = start, evaluate(t)
    for step in range(max_steps):
        if not _has_fallen(start, point) or (step > 1 and point.loss >= before.loss):
            return [before, point], step
        if _is_flat(start, point):
            return [point], step
        if point.slope >= 0:
            return [before, point], step
        bounds = point.t + 0.01 * (point.t - before.t), point.t * 10
        t = _cubic_minimum(before, point, *bounds)
        before, point = point, evaluate(t)
    return [start, point], max_steps


def _zoom(
    evaluate: Callable[[float], Point],
    start: Point,
    bracket: list[Point],
    largest: float,
    steps: int,
    max_steps: int,
) -> int:
    """Make ``bracket`` smaller until its better point is a good one; the steps made."""
    low, was_near_end = _low(bracket), False
    while steps < max_steps:
        left, right = sorted(point.t for point in bracket)
        if (right - left) * largest < SMALLEST_CHANGE:
            break
        t = _cubic_minimum(bracket[0], bracket[1], left, right)
        margin = 0.1 * (right - left)
        is_near_end = min(right - t, t - left) < margin
        if is_near_end and (was_near_end or t >= right or t <= left):
            # A second small step in a row would get nowhere.
            t = right - margin if abs(t - right) < abs(t - left) else left + margin
            is_near_end = False
        was_near_end = is_near_end
        point = evaluate(t)
        steps += 1
        if not _has_fallen(start, point) or point.loss >= bracket[low].loss:
            bracket[1 - low] = point
            low = _low(bracket)
            continue
        is_done = _is_flat(start, point)
        if not is_done and point.slope * (bracket[1 - low].t - bracket[low].t) >= 0:
            bracket[1 - low] = bracket[low]
        bracket[low] = point
        if is_done:
            break
    return steps


def _cubic_minimum(a: Point, b: Point, least: float, most: float) -> float:
    """The minimum, between two bounds, of the cubic with the losses and slopes of two points."""
    a, b = (a, b) if a.t <= b.t else (b, a)
    if a.t == b.t:
        return (least + most) / 2.0
    tilt = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = tilt**2 - a.slope * b.slope
    if square >= 0:
        root = math.sqrt(square)
        below = b.slope - a.slope + 2 * root
        if below != 0:
            t = b.t - (b.t - a.t) * ((b.slope + root - tilt) / below)
            return min(max(t, least), most)
    return (least + most) / 2.0
