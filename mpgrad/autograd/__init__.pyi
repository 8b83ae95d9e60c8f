"""The public names of mpgrad.autograd, which ``__init__.py`` loads on first use."""

from mpgrad.autograd import function as function
from mpgrad.autograd import functional as functional
from mpgrad.autograd import graph as graph
from mpgrad.autograd import profiler as profiler
from mpgrad.autograd.anomaly_mode import detect_anomaly as detect_anomaly
from mpgrad.autograd.anomaly_mode import set_detect_anomaly as set_detect_anomaly
from mpgrad.autograd.backward import backward as backward
from mpgrad.autograd.backward import grad as grad
from mpgrad.autograd.function import Function as Function
from mpgrad.autograd.grad_mode import enable_grad as enable_grad
from mpgrad.autograd.grad_mode import inference_mode as inference_mode
from mpgrad.autograd.grad_mode import is_multithreading_enabled as is_multithreading_enabled
from mpgrad.autograd.grad_mode import no_grad as no_grad
from mpgrad.autograd.grad_mode import set_grad_enabled as set_grad_enabled
from mpgrad.autograd.grad_mode import set_multithreading_enabled as set_multithreading_enabled
from mpgrad.autograd.gradcheck import gradcheck as gradcheck
from mpgrad.autograd.gradcheck import gradgradcheck as gradgradcheck
from mpgrad.autograd.saved.saved_attributes import SavedTensor as SavedTensor
from mpgrad.autograd.variable import Variable as Variable
