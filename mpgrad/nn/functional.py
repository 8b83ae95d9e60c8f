"""``mg.nn.functional``: PyTorch's names for the operators that layers are made of."""

from __future__ import annotations

from mpgrad.missing_names import missing_from as _missing_from
from mpgrad.ops.activation import (
    elu,
    gelu,
    leaky_relu,
    log_softmax,
    logsigmoid,
    relu,
    silu,
    softmax,
    softplus,
)
from mpgrad.ops.convolution import conv2d
from mpgrad.ops.dropout import dropout
from mpgrad.ops.embedding import embedding, one_hot
from mpgrad.ops.linalg import linear
from mpgrad.ops.loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from mpgrad.ops.normalization import batch_norm, layer_norm
from mpgrad.ops.norms import cosine_similarity, normalize
from mpgrad.ops.pooling import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from mpgrad.ops.selection import pad
from mpgrad.ops.transcendental import sigmoid, tanh

__all__ = [
    "linear",
    "embedding",
    "one_hot",
    "conv2d",
    "max_pool2d",
    "avg_pool2d",
    "adaptive_avg_pool2d",
    "batch_norm",
    "layer_norm",
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
    "softmax",
    "log_softmax",
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "kl_div",
    "smooth_l1_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
]

__getattr__ = _missing_from(__name__)
