"""The public names of mpgrad.utils, which ``__init__.py`` loads on first use."""

from mpgrad.utils import checkpoint as checkpoint
from mpgrad.utils import data as data
from mpgrad.utils import dlpack as dlpack
