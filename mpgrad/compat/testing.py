"""``torch.testing.assert_close``."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.recording.tensors.tensor import Tensor

#: The relative and the absolute tolerance by dtype, as in PyTorch; others have to be equal.
_TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex128": (1e-7, 1e-7),
}


def assert_close(
    actual: Any,
    expected: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_dtype: bool = True,
    msg: str = "",
    **ignored: Any,
) -> None:
    """Raise AssertionError unless both are equal within the tolerances of their dtype.

    Args:
        actual: a Tensor, a number, or sequences or dictionaries of them.
        expected: of the same structure.
        rtol: relative tolerance.
        atol: absolute tolerance.
        equal_nan: whether NaN equals NaN.
        check_dtype: whether the dtypes of Tensors have to agree.
        msg: stands before the differences.
    """
    options: dict[str, Any] = {
        "rtol": rtol,
        "atol": atol,
        "equal_nan": equal_nan,
        "check_dtype": check_dtype,
    }
    if isinstance(actual, dict | list | tuple):
        assert len(actual) == len(expected), f"{msg} {len(actual)} items, not {len(expected)}"
        for key in actual if isinstance(actual, dict) else range(len(actual)):
            assert_close(actual[key], expected[key], msg=f"{msg}[{key!r}]", **options)
        return
    found, wanted = (
        x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
        for x in (actual, expected)
    )
    if isinstance(actual, Tensor) and isinstance(expected, Tensor) and check_dtype:
        assert actual.dtype == expected.dtype, f"{msg} {actual.dtype}, not {expected.dtype}"
    assert found.shape == wanted.shape, f"{msg} shape {found.shape}, not {wanted.shape}"
    tolerances = [_TOLERANCES.get(x.dtype.name, (0.0, 0.0)) for x in (found, wanted)]
    relative, absolute = (max(both) for both in zip(*tolerances, strict=True))
    np.testing.assert_allclose(
        found,
        wanted,
        rtol=relative if rtol is None else rtol,
        atol=absolute if atol is None else atol,
        equal_nan=equal_nan,
        err_msg=msg,
    )
