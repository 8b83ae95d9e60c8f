"""Array namespaces: the functions that an operator's forward and formulas use.

A namespace ``xp`` offers NumPy's names with NumPy's meaning, and a few of its own. An operator may
call **only** the functions of this list, because each of them exists three times: for NumPy
(``arrays.cpu.cpu_backend``), for mpgrad's own differentiable operators (``ops.differentiable``,
which serves ``create_graph``; what only forwards use is missing there), and for CuPy
(``arrays.cuda.cuda_backend``).

=============  ===================================================================================
elementwise    add subtract multiply divide power maximum minimum remainder floor_divide negative
               absolute sqrt square reciprocal exp exp2 expm1 log log2 log10 log1p logaddexp sin
               cos tan arcsin arccos arctan arctan2 hypot sinh cosh tanh arcsinh arccosh arctanh
               sigmoid erf sign floor ceil rint trunc where(condition, a, b) astype(x, dtype)
               copy(x)
complex        conj real imag complex(real, imag) angle view_as_real view_as_complex
comparison     equal not_equal greater greater_equal less less_equal logical_and logical_or
               logical_xor logical_not isnan isinf isfinite invert (of integers and booleans)
reduction      sum(x, axis, keepdims) prod max min argmax argmin any all cumsum(x, axis)
               cumprod(x, axis)
               sum_to(x, shape): the reverse of broadcasting
shape          reshape transpose(x, axes) broadcast_to concatenate(arrays, axis)
               stack(arrays, axis) flip(x, axis) zeros(shape, dtype)
               zeros_beside(x, shape): of the dtype and on the device of x
indexing       getitem(x, key, indices)             scatter_index(x, key, indices, shape)
               put_index(x, value, key, indices)
               take_along_axis(x, indices, axis)    scatter_along_axis(x, indices, axis, size)
               diagonal(x, offset, axis1, axis2)
               diagonal_scatter(x, shape, offset, axis1, axis2)
               unfold(x, axis, size, step)          as_strided(x, shape, steps, offset)
views          take_view(x, steps): follow a chain of view functions
               put_view(x, value, steps): a copy of x with value written there
places         argsort(x, axis) (stable) argwhere(x) arange(n) isclose array_equal
linear         matmul(a, b) conv2d conv2d_input_grad conv2d_weight_grad
               constant_beside(x, array): an array of the CPU on the device of x
matrices       inv solve(a, b) det cholesky logabsdet detsign eigh eig svd(x, full_matrices)
               cofactors cofactors_slope(x, grad) qr(x, mode)
               eliminated (both triangles of LU): of the last two dimensions
Fourier        fourier(x, axes, forward, scale) real_fourier(x, axes, scale)
               fourier_of_real(x, axes, length, scale)
signs          copysign fmod gcd lcm signbit
bits           nextafter(a, b) frexp(x): mantissa and exponent; left_shift right_shift
special        special(name, *operands): SciPy's function of that name
pooling        max_pool2d max_pool2d_input_grad avg_pool2d avg_pool2d_input_grad
recurrence     recurrence(kind, rows, ...) recurrence_grads: all steps of a recurrent layer
several        blockwise(formula, *operands, axes): a formula of elementwise functions, and of sums
               and maxima over axes, on pieces that fit into the cache
=============  ===================================================================================

Axes are None, an int or a tuple of ints. Every function returns an array (0-d where NumPy would
return a scalar), C-contiguous unless it is a view of its input, and the same bits for the same
inputs.
"""

from __future__ import annotations

from mpgrad.base.lazy import attach as _attach

__getattr__, __dir__ = _attach(__name__, {}, submodules=("cuda",))
