"""retries=... of mpgrad.torch.parallel_map: as for mpgrad's own tensors."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402
from tests.torch_programs.test_both_passes import engine, every_test_is_watched  # noqa: E402

__all__ = ["engine", "every_test_is_watched"]
pytestmark = [pytest.mark.process, pytest.mark.torch]


def flaky(
    x: torch.Tensor, item: int, norm: torch.nn.Module, directory: Path, failures: int
) -> torch.Tensor:
    found = (norm(x) * torch.rand(3)).sum()
    with (directory / str(item)).open("a") as file:
        file.write("x")
    if len((directory / str(item)).read_text()) <= failures:
        raise ConnectionError
    return found


def test_attempts_are_alike(engine: mg.Engine, tmp_path: Path) -> None:
    found = []
    for failures in (0, 2):
        (directory := tmp_path / str(failures)).mkdir()
        torch.manual_seed(3)
        norm, x = torch.nn.BatchNorm1d(3), torch.rand(4, 3, requires_grad=True)
        (out,) = mt.parallel_map(flaky, [x], [0], shared=(norm, directory, failures), retries=2)
        out.backward()
        found.append((out.item(), x.grad.tolist(), norm.running_mean.tolist()))
        assert norm.num_batches_tracked.item() == 1
    assert found[0] == found[1]
    with pytest.raises(ConnectionError) as caught:
        mt.parallel_map(flaky, [x], [1], shared=(norm, tmp_path, 9), retries=1)
    assert "the last of 2 attempts at item 0" in caught.value.__notes__
