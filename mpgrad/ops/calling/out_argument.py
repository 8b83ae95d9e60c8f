"""``out=``: a result that is written into a tensor that is there already; never recorded."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, ParamSpec

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on
from mpgrad.ops.calling.argument_types import wrong_argument
from mpgrad.ops.calling.older_forms import OLDER, with_older_form
from mpgrad.ops.calling.promotion import check_cast
from mpgrad.recording.dispatch.in_place import overwrite
from mpgrad.recording.graph.grad_modes import is_grad_enabled
from mpgrad.recording.tensors.storage import empty
from mpgrad.recording.tensors.tensor import Tensor

P = ParamSpec("P")

_NAMES = """
abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr all amax amin aminmax angle any
arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort asin asinh atan
atan2 atanh baddbmm bernoulli bitwise_and bitwise_left_shift bitwise_not
bitwise_or bitwise_right_shift bitwise_xor bmm bucketize cat ceil cholesky cholesky_inverse
cholesky_solve clamp clamp_max clamp_min clip column_stack complex concat concatenate conj_physical
copysign cos cosh cross cummax cummin cumprod cumsum deg2rad det diag diff digamma div divide dot
dstack empty eq erf erfc erfinv exp exp2 expm1 eye fix float_power floor floor_divide fmax fmin
fmod frac frexp full gather gcd ge geqrf ger greater greater_equal gt heaviside
histc histogram hstack hypot i0 igamma igammac index_add index_copy index_reduce index_select inner
inverse isin isneginf isposinf kron kthvalue lcm ldexp le lerp less less_equal lgamma
linspace log log10 log1p log2 log_softmax logaddexp logaddexp2 logcumsumexp logdet logical_and
logical_not logical_or logical_xor logit logspace logsumexp lt lu lu_solve lu_unpack
masked_select matmul matrix_power max maximum mean median min minimum mm mode msort mul multinomial
multiply mv mvlgamma nan_to_num nanmean nanmedian nanquantile nansum ne neg negative nextafter
nonzero norm normal not_equal ones orgqr ormqr outer polar polygamma pow prod qr quantile rad2deg
rand randint randn randperm range reciprocal remainder renorm round row_stack rsqrt scatter
scatter_add scatter_reduce searchsorted sgn sigmoid sign signbit sin sinc sinh slice_scatter
slogdet softmax sort sqrt square stack std sub subtract sum svd take
take_along_dim tan tanh tensordot topk triangular_solve tril triu true_divide trunc var vdot vstack
where xlogy zeros
"""
#: The functions of ``mpgrad`` that take ``out=``, as in PyTorch.
TAKE_OUT = frozenset(_NAMES.split())

#: Functions that pick elements: ``out`` has their dtype, and lies elsewhere.
_PICKING = frozenset({"amax", "amin", "cat", "gather", "index_select", "masked_select", "take"})
#: Others whose ``out`` has their dtype.
_OF_THEIR_DTYPE = frozenset({"aminmax", "complex", "multinomial", "nonzero"})
#: Functions that compute in the dtype of ``out`` if no dtype is given.
_IN_ITS_DTYPE = frozenset(
    {
        "arange",
        "cumprod",
        "cumsum",
        "empty",
        "eye",
        "full",
        "linspace",
        "logspace",
        "mean",
        "nansum",
        "normal",
        "ones",
        "prod",
        "rand",
        "randint",
        "randn",
        "randperm",
        "sum",
        "zeros",
    }
)


#: Functions whose values fill an ``out`` of any shape that holds as many.
_FILLING = frozenset({"arange", "linspace", "logspace", "range"})


def with_out(function: Callable[P, Any], module: str) -> Callable[P, Any]:
    """``function`` with the argument ``out=`` for the results, as a name of ``module``.

    Tensors' methods are the functions themselves: those take no ``out``.
    """

    @functools.wraps(function)
    def public(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        try:
            if out is None:
                return function(*args, **kwargs)
            return _into(out, function, args, kwargs)
        except Exception as error:
            wrong = wrong_argument(function, args, kwargs)
            if wrong is None:
                raise
            raise wrong from error

    # Code that is sent to workers finds it there.
    public.__module__ = module
    return public


def without_out(function: Callable[P, Any], module: str) -> Callable[P, Any]:
    """``function`` as a name of ``module``; a wrong argument raises PyTorch's error."""

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            wrong = wrong_argument(function, args, kwargs)
            if wrong is None:
                raise
            raise wrong from error

    public.__module__ = module
    return public


def publish(namespace: dict[str, Any], names: Iterable[str], take_out: Iterable[str]) -> None:
    """Make the functions of these names in a module its public ones; some take ``out=``."""
    outs = frozenset(take_out)
    for name in names:
        function = namespace[name]
        if isinstance(function, FunctionType):
            made = with_out if name in outs else without_out
            namespace[name] = made(function, namespace["__name__"])


def public(value: Any, name: str) -> Any:
    """The value of ``name`` in ``mpgrad``."""
    if not isinstance(value, FunctionType):
        return value
    function = with_older_form(name, value) if name in OLDER else value
    return (with_out if name in TAKE_OUT else without_out)(function, "mpgrad")


def _into(
    out: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Write what ``function`` gives into ``out``, of several results into a tuple of Tensors.

    Raises:
        RuntimeError: an argument or ``out`` requires grad, or the dtype of ``out`` is too small;
            of functions that pick elements also: it is another one, or shares their memory.
        TypeError: ``out`` is no Tensor, or not as many as there are results.
    """
    name = function.__name__
    several = isinstance(out, tuple | list)
    outs = list(out) if several else [out]
    for tensor in outs:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}(): argument 'out' must be Tensor, not {type(tensor).__name__}")
    if is_grad_enabled() and any(_requires_grad(value) for value in (outs, *args)):
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic differentiation, "
            "but one of the arguments requires grad. Leave out= away, or use no_grad()."
        )
    if name in _IN_ITS_DTYPE and kwargs.get("dtype") is None:
        kwargs = {**kwargs, "dtype": outs[0].dtype}
    result = function(*args, **kwargs)
    results = list(result) if isinstance(result, tuple | list) else [result]
    if several != isinstance(result, tuple | list) or len(results) != len(outs):
        raise TypeError(
            f"{name}(): argument 'out' must be "
            + (f"a tuple of {len(results)} Tensors" if len(results) > 1 else "Tensor")
            + f", not {type(out).__name__}"
        )
    for tensor, value in zip(outs, results, strict=True):
        _write(name, tensor, value, args)
    if not several:
        return out
    return type(result)(*outs) if hasattr(result, "_fields") else tuple(outs)


def _write(name: str, out: Tensor, result: Any, args: tuple[Any, ...]) -> None:
    if not isinstance(result, Tensor):  # a bool, of equal()
        result = Tensor(np.asarray(result))
    check_cast(result.dtype, out)
    is_exact = name in _OF_THEIR_DTYPE or (name in _PICKING and name != "cat")
    if is_exact and out.dtype != result.dtype:
        raise RuntimeError(
            f"{name}(): Expected out tensor to have dtype {result.dtype}, but got {out.dtype}"
        )
    if name in _PICKING and any(_overlap(value, out) for value in args):
        raise RuntimeError(
            f"{name}(): unsupported operation: some elements of the input tensor and the "
            "written-to tensor refer to a single memory location. Please clone() the tensor "
            "before performing the operation."
        )
    if name in _FILLING and out._array.size == result._array.size:
        result = Tensor(result._array.reshape(out._array.shape))
    if out._array.shape != result._array.shape:
        _resize(out, result._array.shape)
    with on(out.device):
        overwrite(out, (result,), lambda array, new: np.copyto(array, new, casting="unsafe"))


def _overlap(value: Any, out: Tensor) -> bool:
    if isinstance(value, list | tuple):
        return any(_overlap(item, out) for item in value)
    if not isinstance(value, Tensor) or value.device != out.device:
        return False
    if isinstance(value._array, np.ndarray):
        return np.may_share_memory(value._array, out._array)
    return value is out


def _requires_grad(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_requires_grad(item) for item in value)
    return isinstance(value, Tensor) and value.requires_grad


def _resize(out: Tensor, shape: tuple[int, ...]) -> None:
    if out._array.size:
        warnings.warn(
            "An output with one or more elements was resized since it had shape "
            f"{list(out.shape)}, which does not match the required output shape {list(shape)}. "
            "Pass an empty tensor, or one of the right shape, as out=.",
            UserWarning,
            stacklevel=4,
        )
    out._array = empty(shape, out.dtype, out.device)
