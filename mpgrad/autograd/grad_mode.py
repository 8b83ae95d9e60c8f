"""mpgrad.autograd.grad_mode: recording on and off, under PyTorch's names."""

from mpgrad.recording.graph.grad_modes import enable_grad as enable_grad
from mpgrad.recording.graph.grad_modes import inference_mode as inference_mode
from mpgrad.recording.graph.grad_modes import no_grad as no_grad
from mpgrad.recording.graph.grad_modes import set_grad_enabled as set_grad_enabled
from mpgrad.recording.graph.grad_modes import (
    set_multithreading_enabled as set_multithreading_enabled,
)
