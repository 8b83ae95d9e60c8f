"""Code that is the same in every process, and the parts of it whose state is not: random numbers,
the environment, identities. Tables and lookups only; it knows no Function.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import site
import sys
import sysconfig
from functools import lru_cache
from typing import Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_EVERYTHING = frozenset({"*"})

#: Module -> attributes whose value or effect belongs to one process ("*": all but _HARMLESS).
_BELONGS_TO_PROCESS = {
    "random": _EVERYTHING,
    "numpy.random": _EVERYTHING,
    "numpy.random.mtrand": _EVERYTHING,
    "secrets": _EVERYTHING,
    "threading": _EVERYTHING,
    "multiprocessing": _EVERYTHING,
    "inspect": _EVERYTHING,
    "importlib": _EVERYTHING,
    "gc": _EVERYTHING,
    "contextvars": _EVERYTHING,
    "builtins": _EVERYTHING,
    "uuid": frozenset({"uuid1", "uuid4"}),
    "numpy": frozenset({"seterr", "seterrcall", "set_printoptions"}),
    "os": _words(
        "environ environb getenv getenvb putenv unsetenv getpid getppid getcwd chdir urandom"
    ),
    "sys": _words(
        "modules argv path stdin _getframe setrecursionlimit getrefcount gettrace settrace "
        "getprofile setprofile"
    ),
}

#: These have their own state, which the caller seeds.
_HARMLESS = _words(
    "Random Generator RandomState SeedSequence BitGenerator PCG64 PCG64DXSM Philox MT19937 SFC64 "
    "default_rng"
)

#: mpgrad's functions that use the process's random generator.
_MPGRAD_RANDOM = _words(
    "rand randn randint randperm rand_like randn_like randint_like normal bernoulli multinomial "
    "poisson dropout Dropout manual_seed seed get_rng_state set_rng_state"
)
#: mpgrad's names for state that only the client has: ``.grad`` of its leaves, its running backward.
_MPGRAD_CLIENT = _words(
    "backward queue_callback Variable detect_anomaly set_detect_anomaly register_multi_grad_hook "
    "current_autograd_node current_graph_task_id current_graph_task_keep_graph "
    "current_graph_task_execution_order will_engine_execute_node record_function "
    "set_default_device get_default_device set_device current_device memory_allocated "
    "set_default_dtype get_default_dtype"
)

#: Attributes of objects that could not be followed, and that nearly always mean randomness,
#: introspection, or a change of state that only the client has.
SUSPECT_ATTRIBUTES = _words(
    "random rvs random_ uniform_ normal_ bernoulli_ exponential_ __dict__ __globals__ __class__ "
    "__code__ __closure__ __bases__ __mro__ __subclasses__ __builtins__ f_globals f_locals "
    "f_back backward queue_callback next_functions grad_fn is_leaf metadata"
)

#: Attributes that code sets on arrays and tensors that it has just made.
HARMLESS_STORES = frozenset({"requires_grad", "grad", "shape", "writeable"})

#: Builtins with effects that the analysis cannot see, or with results that depend on the process.
DYNAMIC_BUILTINS = _words(
    "globals locals vars eval exec compile __import__ setattr delattr dir id hash input breakpoint"
)


def process_state(module: str, attribute: str | None) -> bool:
    """Whether ``module.attribute`` (None: the module itself) differs between processes."""
    if module == "mpgrad" or module.startswith("mpgrad."):
        return attribute in _MPGRAD_RANDOM or attribute in _MPGRAD_CLIENT
    listed = _BELONGS_TO_PROCESS.get(module)
    if listed is None:
        return False
    if listed is _EVERYTHING:
        return attribute not in _HARMLESS
    return attribute in listed


@lru_cache(maxsize=1)
def _installed_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib") if key in paths]
    roots += [*site.getsitepackages(), site.getusersitepackages()]
    # Not pathlib, which would take as long to load as this whole folder.
    roots.append(os.path.dirname(str(sys.modules["mpgrad"].__file__)))
    return tuple(sorted({os.path.realpath(root) + os.sep for root in roots}))


@lru_cache(maxsize=4096)
def _is_installed_file(path: str) -> bool:
    return os.path.realpath(path).startswith(_installed_roots())


def is_installed_namespace(namespace: Any) -> bool:
    """Whether a module's dictionary belongs to installed code: the same file in every process."""
    name = namespace.get("__name__")
    if name == "__main__":
        return False
    path = namespace.get("__file__")
    if isinstance(path, str):
        return _is_installed_file(path)
    spec = namespace.get("__spec__")
    return name in sys.builtin_module_names or getattr(spec, "origin", None) in (
        "built-in",
        "frozen",
    )


def is_installed_module(name: str) -> bool:
    """The same for a module's name, loaded or not; False for a module that mpgrad has replaced."""
    module = sys.modules.get(name)
    if module is not None:
        is_alias = module.__name__.startswith("mpgrad.") and not name.startswith("mpgrad.")
        return is_installed_namespace(vars(module)) and not is_alias
    try:
        # Only the package is looked up: finding a submodule would import its parents.
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None:
        return False
    return spec.origin in ("built-in", "frozen") or _is_installed_file(spec.origin)
