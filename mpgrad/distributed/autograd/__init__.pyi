"""The public names of mpgrad.distributed.autograd, which ``__init__.py`` loads on first use."""

from mpgrad.distributed.autograd.contexts import DistAutogradContext as DistAutogradContext
from mpgrad.distributed.autograd.dist_backward import _current_context as _current_context
from mpgrad.distributed.autograd.dist_backward import _get_debug_info as _get_debug_info
from mpgrad.distributed.autograd.dist_backward import _get_max_id as _get_max_id
from mpgrad.distributed.autograd.dist_backward import _new_context as _new_context
from mpgrad.distributed.autograd.dist_backward import _release_context as _release_context
from mpgrad.distributed.autograd.dist_backward import _retrieve_context as _retrieve_context
from mpgrad.distributed.autograd.dist_backward import backward as backward
from mpgrad.distributed.autograd.dist_backward import context as context
from mpgrad.distributed.autograd.dist_backward import get_gradients as get_gradients
