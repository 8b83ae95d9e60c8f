"""``mg.nn.functional``: PyTorch's names for the operators that layers are made of."""

from __future__ import annotations

from mpgrad.base.missing_names import missing_from as _missing_from
from mpgrad.ops.by_index.selection import pad
from mpgrad.ops.calling.out_argument import publish as _publish
from mpgrad.ops.elementwise.transcendental import sigmoid, tanh
from mpgrad.ops.linear_algebra.matrix_products import linear
from mpgrad.ops.linear_algebra.norms import cosine_similarity, normalize
from mpgrad.ops.linear_algebra.pairwise_products import bilinear, pdist
from mpgrad.ops.neural.activation import elu, gelu, leaky_relu, logsigmoid, relu, silu, softplus
from mpgrad.ops.neural.adaptive_pooling import (
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    max_unpool1d,
    max_unpool2d,
    max_unpool3d,
)
from mpgrad.ops.neural.channel_dropout import (
    alpha_dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    feature_alpha_dropout,
    gumbel_softmax,
    rrelu,
)
from mpgrad.ops.neural.class_loss import (
    ctc_loss,
    linear_cross_entropy,
    multi_margin_loss,
    multilabel_margin_loss,
    triplet_margin_with_distance_loss,
)
from mpgrad.ops.neural.composed_activations import (
    celu,
    glu,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    mish,
    prelu,
    relu6,
    selu,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
)
from mpgrad.ops.neural.convolution import conv2d
from mpgrad.ops.neural.dropout import dropout
from mpgrad.ops.neural.embedding import embedding, one_hot
from mpgrad.ops.neural.embedding_bag import embedding_bag
from mpgrad.ops.neural.fractional_pooling import fractional_max_pool2d, fractional_max_pool3d
from mpgrad.ops.neural.grid_sample import affine_grid, grid_sample
from mpgrad.ops.neural.group_norm import group_norm, instance_norm
from mpgrad.ops.neural.implied_dim import log_softmax, softmax, softmin
from mpgrad.ops.neural.in_place_activations import (
    celu_,
    elu_,
    hardtanh_,
    leaky_relu_,
    relu_,
    rrelu_,
    selu_,
    threshold_,
)
from mpgrad.ops.neural.interpolation import (
    channel_shuffle,
    interpolate,
    pixel_shuffle,
    pixel_unshuffle,
    upsample,
    upsample_bilinear,
    upsample_nearest,
)
from mpgrad.ops.neural.line_convolution import conv1d, conv_transpose1d, conv_transpose2d
from mpgrad.ops.neural.line_pooling import adaptive_avg_pool1d, avg_pool1d, max_pool1d
from mpgrad.ops.neural.loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    kl_div,
    nll_loss,
)
from mpgrad.ops.neural.margin_loss import (
    cosine_embedding_loss,
    hinge_embedding_loss,
    margin_ranking_loss,
    multilabel_soft_margin_loss,
    pairwise_distance,
    soft_margin_loss,
    triplet_margin_loss,
)
from mpgrad.ops.neural.multi_head_attention import multi_head_attention_forward
from mpgrad.ops.neural.normalization import batch_norm, layer_norm
from mpgrad.ops.neural.patches import fold, unfold
from mpgrad.ops.neural.pooling import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from mpgrad.ops.neural.regression_loss import (
    gaussian_nll_loss,
    huber_loss,
    l1_loss,
    mse_loss,
    poisson_nll_loss,
    smooth_l1_loss,
)
from mpgrad.ops.neural.rms_norm import local_response_norm, rms_norm
from mpgrad.ops.neural.scaled_dot_product import scaled_dot_product_attention
from mpgrad.ops.neural.volumes import (
    adaptive_avg_pool3d,
    avg_pool3d,
    conv3d,
    conv_transpose3d,
    max_pool3d,
)

__all__ = [
    "celu_",
    "elu_",
    "hardtanh_",
    "leaky_relu_",
    "relu_",
    "rrelu_",
    "selu_",
    "threshold_",
    "linear",
    "embedding",
    "one_hot",
    "conv1d",
    "conv2d",
    "conv_transpose1d",
    "conv_transpose2d",
    "max_pool1d",
    "max_pool2d",
    "avg_pool1d",
    "adaptive_avg_pool1d",
    "avg_pool2d",
    "adaptive_avg_pool2d",
    "batch_norm",
    "layer_norm",
    "scaled_dot_product_attention",
    "group_norm",
    "instance_norm",
    "interpolate",
    "upsample",
    "upsample_bilinear",
    "upsample_nearest",
    "pixel_shuffle",
    "pixel_unshuffle",
    "normalize",
    "cosine_similarity",
    "pad",
    "dropout",
    "relu",
    "leaky_relu",
    "elu",
    "gelu",
    "silu",
    "softplus",
    "logsigmoid",
    "sigmoid",
    "tanh",
    "celu",
    "glu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "mish",
    "prelu",
    "relu6",
    "selu",
    "softmin",
    "softshrink",
    "softsign",
    "tanhshrink",
    "threshold",
    "softmax",
    "log_softmax",
    "ctc_loss",
    "linear_cross_entropy",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "triplet_margin_with_distance_loss",
    "alpha_dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "feature_alpha_dropout",
    "gumbel_softmax",
    "rrelu",
    "affine_grid",
    "grid_sample",
    "multi_head_attention_forward",
    "local_response_norm",
    "rms_norm",
    "bilinear",
    "channel_shuffle",
    "embedding_bag",
    "pdist",
    "fold",
    "unfold",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "adaptive_avg_pool3d",
    "avg_pool3d",
    "conv3d",
    "conv_transpose3d",
    "max_pool3d",
    "cosine_embedding_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "margin_ranking_loss",
    "multilabel_soft_margin_loss",
    "pairwise_distance",
    "poisson_nll_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "kl_div",
    "smooth_l1_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
]

_TAKE_OUT = (
    *("avg_pool2d", "avg_pool3d", "gelu", "hardshrink", "linear", "logsigmoid", "normalize"),
    *("softplus", "softshrink"),
)
_publish(globals(), __all__, _TAKE_OUT)

__getattr__ = _missing_from(__name__)
