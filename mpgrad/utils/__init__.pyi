"""The public names of mpgrad.utils, for editors and type checkers."""

from mpgrad.utils import checkpoint as checkpoint
from mpgrad.utils import data as data
