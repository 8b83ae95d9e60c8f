"""``torch.nn.utils`` of PyTorch, by its names."""

from mpgrad.nn.gradient_clipping import clip_grad_norm_, clip_grad_value_, get_total_norm
from mpgrad.nn.parameter_vectors import parameters_to_vector, vector_to_parameters

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "get_total_norm",
    "parameters_to_vector",
    "vector_to_parameters",
]
