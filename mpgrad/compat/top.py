"""Names of ``torch`` itself that ``mpgrad`` lacks or defines differently."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import threadpoolctl

import mpgrad
from mpgrad.base.dtype import DType
from mpgrad.base.memory_formats import MemoryFormat
from mpgrad.compat.tensor_type import Tensor as Tensor

#: The version of PyTorch with these names, for programs that read ``torch.__version__``.
__version__ = "2.13.0+mpgrad"


class _MissingDtype:
    """A dtype that programs may name and compare, and that no tensor can have."""

    is_floating_point = is_signed = True
    is_complex = False
    itemsize = 2
    #: What ``isinstance`` asks.
    __class__ = DType  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def dtype(self) -> Any:
        """NumPy asks for it where a dtype is used.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"NumPy has no {self._name}: use torch.float32 or torch.float16")

    def __repr__(self) -> str:
        return f"torch.{self._name}"


def _dense(name: str) -> Callable[..., mpgrad.Tensor]:
    """mpgrad's ``name``, which takes PyTorch's options of where and how memory lies, too."""
    function = getattr(mpgrad, name)

    @functools.wraps(function)
    def make(
        *args: Any,
        layout: Any = None,
        pin_memory: bool = False,
        memory_format: Any = None,
        **options: Any,
    ) -> mpgrad.Tensor:
        return function(*args, **options)  # type: ignore[no-any-return]

    return make


for _name in (
    *("arange", "empty", "eye", "full", "linspace", "logspace", "ones", "range", "zeros"),
    *("rand", "randint", "randn", "randperm", "tensor"),
    *("empty_like", "full_like", "ones_like", "zeros_like"),
    *("rand_like", "randint_like", "randn_like"),
):
    globals()[_name] = _dense(_name)

bfloat16 = _MissingDtype("bfloat16")
memory_format = MemoryFormat


def spmm(input: mpgrad.Tensor, mat2: mpgrad.Tensor) -> mpgrad.Tensor:
    """``mm``: all tensors are dense."""
    return mpgrad.mm(input, mat2)


def compile(model: Any = None, **options: Any) -> Any:  # noqa: A001 (PyTorch's name)
    """``mg.compile``; of PyTorch's options ``fullgraph`` and ``disable`` mean something."""
    known = {name: options[name] for name in ("fullgraph", "disable") if name in options}
    return mpgrad.compile(model, **known)


def set_num_threads(num: int) -> None:
    """Let BLAS use that many threads in this process's forwards.

    Raises:
        RuntimeError: ``num`` is not positive.
    """
    if num < 1:
        raise RuntimeError("set_num_threads expects a positive integer")
    threadpoolctl.threadpool_limits(num)


def get_num_threads() -> int:
    """The number of threads that BLAS may use in this process."""
    return max((pool["num_threads"] for pool in threadpoolctl.threadpool_info()), default=1)


def set_num_interop_threads(num: int) -> None:
    """Do nothing: operators run one after another."""


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Do nothing: all algorithms are deterministic."""


def are_deterministic_algorithms_enabled() -> bool:
    """True."""
    return True


def set_default_tensor_type(kind: Any) -> None:
    """Make the dtype of ``kind`` (``torch.DoubleTensor``, or its name) the default.

    Raises:
        TypeError: it names no floating type.
    """
    name = kind if isinstance(kind, str) else kind.__name__
    dtypes = {"Half": "float16", "Float": "float32", "Double": "float64"}
    dtype = dtypes.get(name.rpartition(".")[2].removesuffix("Tensor"))
    if dtype is None:
        raise TypeError(f"only floating-point types are supported as the default type, not {name}")
    mpgrad.set_default_dtype(getattr(mpgrad, dtype))


def is_storage(obj: object) -> bool:
    """False: storages are not objects here."""
    return False


def typename(obj: Any) -> str:
    """The name of the type of ``obj``: ``"torch.FloatTensor"`` of a tensor."""
    if isinstance(obj, Tensor):
        return str(obj.type())
    kind = obj if isinstance(obj, type) else type(obj)
    return f"{kind.__module__}.{kind.__qualname__}"


def autocast(device_type: str = "cuda", *args: Any, **options: Any) -> Any:
    """See :class:`mpgrad.compat.amp.autocast`."""
    from mpgrad.compat.amp import autocast as made

    return made(device_type, *args, **options)


def GradScaler(device: str = "cuda", **options: Any) -> Any:
    """See :class:`mpgrad.compat.amp.GradScaler`."""
    from mpgrad.compat.amp import GradScaler as made

    return made(device, **options)


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """False: there is no mixed precision."""
    return False
