"""``torch.nn.utils`` of PyTorch, by its names."""

from mpgrad.base.missing_names import missing_from as _missing_from
from mpgrad.nn import packed_sequences as rnn
from mpgrad.nn import parametrizations, parametrize
from mpgrad.nn.gradient_clipping import (
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)
from mpgrad.nn.parameter_vectors import parameters_to_vector, vector_to_parameters
from mpgrad.nn.weight_norms import (
    remove_spectral_norm,
    remove_weight_norm,
    spectral_norm,
    weight_norm,
)

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "remove_spectral_norm",
    "remove_weight_norm",
    "spectral_norm",
    "rnn",
    "vector_to_parameters",
    "weight_norm",
]

__getattr__ = _missing_from(__name__)
