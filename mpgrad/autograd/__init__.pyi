"""The public names of mpgrad.autograd, which ``__init__.py`` loads on first use."""

from mpgrad.autograd import function as function
from mpgrad.autograd import functional as functional
from mpgrad.autograd import graph as graph
from mpgrad.autograd import profiler as profiler
from mpgrad.autograd.backward import backward as backward
from mpgrad.autograd.backward import grad as grad
from mpgrad.autograd.function import Function as Function
from mpgrad.autograd.gradcheck import gradcheck as gradcheck
from mpgrad.autograd.gradcheck import gradgradcheck as gradgradcheck
from mpgrad.autograd.variable import Variable as Variable
from mpgrad.recording.dispatch.saved_attributes import SavedTensor as SavedTensor
from mpgrad.recording.graph.anomaly import detect_anomaly as detect_anomaly
from mpgrad.recording.graph.anomaly import set_detect_anomaly as set_detect_anomaly
from mpgrad.recording.graph.grad_modes import enable_grad as enable_grad
from mpgrad.recording.graph.grad_modes import inference_mode as inference_mode
from mpgrad.recording.graph.grad_modes import is_multithreading_enabled as is_multithreading_enabled
from mpgrad.recording.graph.grad_modes import no_grad as no_grad
from mpgrad.recording.graph.grad_modes import set_grad_enabled as set_grad_enabled
from mpgrad.recording.graph.grad_modes import (
    set_multithreading_enabled as set_multithreading_enabled,
)
