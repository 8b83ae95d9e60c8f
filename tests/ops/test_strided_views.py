"""Views by strides: ``unfold`` and ``as_strided``, where PyTorch has undefined behaviour, too."""

from __future__ import annotations

import pytest

import mpgrad as mg


def test_windows_that_overlap_are_not_written_to() -> None:
    x = mg.zeros(4)
    for view in (x.unfold(0, 2, 1), x.as_strided((3, 2), (1, 1)), x[1:].unfold(0, 3, 2)[:, 1:]):
        if view.shape[0] > 1:
            with pytest.raises(RuntimeError, match="more than one element"):
                view.add_(1.0)
    assert x.tolist() == [0.0] * 4


def test_one_window_of_overlapping_ones_may_be_written_to() -> None:
    x = mg.zeros(4)
    x.unfold(0, 2, 1)[1].add_(1.0)
    assert x.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_memory_outside_of_a_view_has_no_gradient() -> None:
    x = mg.arange(6.0).requires_grad_()
    part = (x * 1.0)[2:]
    with pytest.raises(RuntimeError, match="contiguous"):
        part.as_strided((2,), (1,), 0)
    with mg.no_grad():
        assert part.as_strided((2,), (1,), 0).tolist() == [0.0, 1.0]


def test_views_follow_a_change_of_their_base() -> None:
    x = mg.arange(6.0).requires_grad_()
    base = x * 1.0
    windows, strided = base.unfold(0, 2, 2), base.as_strided((2,), (3,), 1)
    base.mul_(2.0)
    (windows.sum() + strided.sum()).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 4.0, 2.0, 2.0, 4.0, 2.0]
