"""mpgrad: autograd on NumPy with PyTorch's API, whose slow parts run on all cores.

    import mpgrad as mg

    x = mg.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    x.grad

``mg.parallel_map`` runs the forward and the backward of independent items in worker processes, and
``mpgrad.torch`` does so inside a PyTorch program.

Public names are loaded on first use (see ``mpgrad.base.lazy``): importing any part of the package
runs this file, and the coordinator process must not load NumPy. ``python -m tests.stubs`` writes
``__init__.pyi``, which gives editors and type checkers the same names.
"""

from __future__ import annotations

import os as _os
import sys as _sys

from mpgrad.base.lazy import attach as _attach

if "numpy" not in _sys.modules:
    # After a product on several threads, OpenBLAS's idle threads spin for 2**26 cycles (tens of
    # milliseconds), which takes a core from the workers. OpenBLAS reads this when it is loaded.
    _os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")

__version__ = "0.1.0"

#: Public names by the module that defines them.
_NAMES_OF = {
    "mpgrad.recording.tensors.tensor": "Tensor is_inference",
    "mpgrad.base.device": "Device device",
    "mpgrad.arrays.cuda.device_arrays": "set_default_device get_default_device",
    "mpgrad.base.dtype": "dtype set_default_dtype get_default_dtype",
    "mpgrad.base.dtypes": (
        "float16 half float32 float float64 double complex64 cfloat complex128 cdouble "
        "uint8 uint16 uint32 uint64 int8 int16 short int32 int int64 long bool"
    ),
    "mpgrad.base.limits": "finfo iinfo",
    "mpgrad.base.size": "Size",
    "mpgrad.base.memory_formats": (
        "preserve_format contiguous_format channels_last channels_last_3d strided"
    ),
    "mpgrad.autograd.function": "Function",
    "mpgrad.autograd.backward": "backward grad",
    "mpgrad.recording.graph.anomaly": "is_anomaly_enabled is_anomaly_check_nan_enabled",
    "mpgrad.recording.graph.grad_modes": (
        "no_grad enable_grad set_grad_enabled is_grad_enabled "
        "inference_mode is_inference_mode_enabled"
    ),
    "mpgrad.engine.engine": "Engine current_engine set_engine",
    "mpgrad.parallel.maps": "parallel_map",
    "mpgrad.parallel.forks": "fork wait",
    "mpgrad.func.compilation.compile": "compile",
    "mpgrad.tensor_methods.array_text": "set_printoptions",
    "mpgrad.ops.new_tensors.creation": (
        "tensor as_tensor from_numpy empty zeros ones full "
        "empty_like zeros_like ones_like full_like arange linspace logspace eye "
        "tril_indices triu_indices is_tensor numel"
    ),
    "mpgrad.ops.generators": (
        "Generator manual_seed seed initial_seed get_rng_state set_rng_state"
    ),
    "mpgrad.ops.random": (
        "rand randn rand_like randn_like randint randint_like randperm bernoulli normal "
        "multinomial poisson"
    ),
    "mpgrad.ops.new_tensors.typed_tensors": (
        "HalfTensor FloatTensor DoubleTensor ByteTensor CharTensor ShortTensor IntTensor "
        "LongTensor BoolTensor"
    ),
    "mpgrad.ops.elementwise.arithmetic": (
        "add sub mul div pow neg abs addcmul addcdiv lerp sqrt rsqrt reciprocal square "
        "absolute negative multiply subtract divide true_divide"
    ),
    "mpgrad.ops.calling.result_types": (
        "result_type promote_types can_cast is_floating_point is_signed"
    ),
    "mpgrad.ops.new_tensors.interchange": "from_dlpack frombuffer to_dlpack",
    "mpgrad.ops.elementwise.minimum_maximum": (
        "maximum minimum clamp clamp_min clamp_max clip where nonzero"
    ),
    "mpgrad.ops.elementwise.rounding": "floor ceil trunc round sign floor_divide remainder",
    "mpgrad.ops.elementwise.comparison": (
        "eq ne gt ge lt le not_equal greater greater_equal less less_equal "
        "equal isclose allclose logical_and logical_or logical_xor logical_not "
        "bitwise_and bitwise_or bitwise_xor bitwise_not isnan isinf isfinite"
    ),
    "mpgrad.ops.elementwise.transcendental": (
        "exp exp2 expm1 log log2 log10 log1p logaddexp sin cos tan asin acos atan atan2 "
        "arcsin arccos arctan arctan2 sinh cosh tanh asinh acosh atanh arcsinh arccosh arctanh "
        "erf sigmoid relu xlogy"
    ),
    "mpgrad.ops.reductions.reduction": "sum mean var var_mean std any all cumsum logsumexp",
    "mpgrad.ops.reductions.extrema": "max min amax amin argmax argmin",
    "mpgrad.ops.reductions.products": "prod cumprod",
    "mpgrad.ops.shapes.shape": (
        "reshape flatten unflatten ravel squeeze unsqueeze permute transpose t swapaxes swapdims "
        "movedim moveaxis broadcast_to flip clone cat stack"
    ),
    "mpgrad.ops.by_index.indexing": (
        "split split_with_sizes tensor_split chunk unbind select narrow diagonal gather "
        "index_select"
    ),
    "mpgrad.ops.by_index.overwriting": "fill masked_fill index_put",
    "mpgrad.ops.by_index.selection": (
        "constant_pad_nd masked_select tril triu diag trace roll diff repeat_interleave take"
    ),
    "mpgrad.ops.by_index.scattering": (
        "scatter scatter_add index_add index_copy index_fill masked_scatter"
    ),
    "mpgrad.ops.by_index.scatter_reductions": "index_reduce scatter_reduce",
    "mpgrad.ops.reductions.ordering": "sort argsort topk",
    "mpgrad.ops.linear_algebra.matrix_products": (
        "matmul mm bmm dot inner vdot mv outer ger tensordot addmm baddbmm"
    ),
    "mpgrad.ops.shapes.joining": (
        "broadcast_tensors concat concatenate hstack meshgrid row_stack vstack"
    ),
    "mpgrad.ops.linear_algebra.einsum": "einsum",
    "mpgrad.ops.calling.aliases": (
        "asarray chain_matmul fix is_conj is_neg is_nonzero is_same_size narrow_copy range vander"
    ),
    "mpgrad.ops.shapes.tiles_and_pairs": (
        "atleast_1d atleast_2d atleast_3d cartesian_prod combinations diag_embed fliplr flipud "
        "take_along_dim tile"
    ),
    "mpgrad.ops.linear_algebra.pairwise_products": "cdist cross kron",
    "mpgrad.ops.reductions.counting": (
        "bincount bucketize count_nonzero histc isin nonzero_static searchsorted unique "
        "unique_consecutive unravel_index"
    ),
    "mpgrad.ops.elementwise.piecewise": (
        "deg2rad erfc float_power frac hypot logaddexp2 logit nan_to_num rad2deg"
    ),
    "mpgrad.ops.reductions.order_statistics": (
        "aminmax cummax cummin kthvalue median nanmean nansum std_mean"
    ),
    "math": "e inf nan pi",
    "mpgrad.ops.linear_algebra.matrices": "cholesky det inverse logdet matrix_power slogdet",
    "mpgrad.ops.linear_algebra.linear_systems": (
        "cholesky_inverse cholesky_solve pinverse triangular_solve"
    ),
    "mpgrad.ops.elementwise.special": (
        "digamma erfinv i0 igamma igammac lgamma mvlgamma polygamma sinc"
    ),
    "mpgrad.ops.linear_algebra.lu": "lu_unpack",
    "mpgrad.ops.linear_algebra.packed_factors": "geqrf lu lu_solve ormqr",
    "mpgrad.ops.elementwise.bit_patterns": "bitwise_left_shift bitwise_right_shift frexp nextafter",
    "mpgrad.ops.reductions.histograms": "histogram histogramdd",
    "mpgrad.ops.shapes.memory_layouts": (
        "as_strided_scatter empty_permuted empty_strided scalar_tensor"
    ),
    "mpgrad.ops.neural.grid_sample": "grid_sampler_2d grid_sampler_3d",
    "mpgrad.ops.reductions.running_logarithms": "logcumsumexp",
    "mpgrad.ops.reductions.sampled_slopes": "gradient",
    "mpgrad.ops.signals.short_time_fourier": "istft stft",
    "mpgrad.ops.signals.windows": (
        "bartlett_window blackman_window hamming_window hann_window kaiser_window"
    ),
    "mpgrad.ops.elementwise.signs_and_remainders": (
        "addbmm addmv addr copysign fmax fmin fmod gcd heaviside isneginf isposinf isreal lcm "
        "ldexp positive rsub signbit"
    ),
    "mpgrad.ops.shapes.windows_and_slices": (
        "argwhere as_strided block_diag broadcast_shapes column_stack diagflat diagonal_scatter "
        "dsplit dstack hsplit msort put rot90 select_scatter slice_scatter vsplit"
    ),
    "mpgrad.ops.reductions.quantiles": (
        "corrcoef cov cumulative_trapezoid mode nanmedian nanquantile quantile trapezoid trapz"
    ),
    "mpgrad.ops.linear_algebra.matrix_functions": "matrix_exp pca_lowrank qr svd svd_lowrank",
    "mpgrad.ops.linear_algebra.norms": "norm dist cosine_similarity renorm",
    "mpgrad.ops.neural.activation": "softmax log_softmax",
    "mpgrad.ops.elementwise.complex_numbers": (
        "angle complex conj conj_physical resolve_conj resolve_neg adjoint imag is_complex polar "
        "real sgn view_as_complex view_as_real"
    ),
    "mpgrad.ops.neural.convolution": "conv2d",
    "mpgrad.ops.neural.pooling": "max_pool2d",
    "mpgrad.ops.neural.dropout": "dropout",
    "mpgrad.nn.functional": (
        "adaptive_avg_pool1d avg_pool1d bilinear celu channel_shuffle conv1d conv3d "
        "conv_transpose1d conv_transpose2d conv_transpose3d group_norm hardshrink layer_norm "
        "max_pool1d max_pool3d pairwise_distance pdist pixel_shuffle pixel_unshuffle prelu "
        "rms_norm rrelu selu threshold celu_ rrelu_ selu_ threshold_"
    ),
    "mpgrad.tensor_methods.in_place_functions": (
        "abs_ acos_ acosh_ addmv_ arccos_ arccosh_ arcsin_ arcsinh_ arctan_ arctanh_ "
        "as_strided_ asin_ asinh_ atan_ atanh_ ceil_ clamp_ clamp_max_ clamp_min_ clip_ "
        "conj_physical_ cos_ cosh_ deg2rad_ detach_ erf_ erfc_ exp2_ exp_ expm1_ fill_ fix_ floor_ "
        "frac_ gcd_ i0_ index_put_ lcm_ ldexp_ log10_ log1p_ log2_ log_ logit_ nan_to_num_ neg_ "
        "negative_ rad2deg_ reciprocal_ relu_ resize_as_ round_ rsqrt_ sigmoid_ sin_ sinc_ "
        "sinh_ sqrt_ square_ tan_ tanh_ trunc_ xlogy_ zero_"
    ),
    "mpgrad.serialization": "save load",
    "mpgrad.func": "vmap",
    "mpgrad.arrays.cpu.matmul_precision": (
        "set_float32_matmul_precision get_float32_matmul_precision"
    ),
}

#: Public names that are modules.
_SUBMODULES = (
    "autograd",
    "backends",
    "cuda",
    "data",
    "distributed",
    "distributions",
    "errors",
    "fft",
    "func",
    "linalg",
    "masked",
    "multiprocessing",
    "nn",
    "optim",
    "profiler",
    "signal",
    "special",
    "utils",
)

#: Modules that know no Tensor; before any other module, Tensor's methods must be loaded.
_WITHOUT_TENSOR = (
    "mpgrad.autograd",
    "mpgrad.recording.graph.grad_modes",
    "mpgrad.backends",
    "mpgrad.arrays.cpu.matmul_precision",
    "mpgrad.cuda",
    "mpgrad.base.device",
    "mpgrad.arrays.cuda.device_arrays",
    "mpgrad.base.dtype",
    "mpgrad.base.dtypes",
    "mpgrad.errors",
    "mpgrad.base.limits",
    "mpgrad.base.memory_formats",
    "mpgrad.base.size",
    "math",
)

_HOME = {name: module for module, names in _NAMES_OF.items() for name in names.split()}

__all__ = ["__version__", *_HOME, *_SUBMODULES]

__getattr__, __dir__ = _attach(
    __name__,
    _HOME,
    submodules=(*_SUBMODULES, "_C"),
    first="mpgrad.tensor_methods",
    not_for=_WITHOUT_TENSOR,
    finish="mpgrad.ops.calling.out_argument",
)
