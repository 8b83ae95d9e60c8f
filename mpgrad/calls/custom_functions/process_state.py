"""Code that is the same in every process, and the parts of it whose state is not: random numbers,
the environment, identities. Tables and lookups only; it knows no Function.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import site
import sys
import sysconfig
import types
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

from mpgrad.calls.custom_functions.constants import MISSING, is_importable


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_EVERYTHING = frozenset({"*"})

#: Modules of the standard library in which a result depends on the arguments alone.
_PURE = _words(
    "__future__ _collections_abc abc array base64 binascii bisect bz2 cmath collections colorsys "
    "contextlib copy dataclasses datetime decimal difflib enum fractions functools graphlib "
    "hashlib heapq hmac html itertools json keyword locale lzma math numbers operator pprint re "
    "statistics string struct textwrap token types typing unicodedata uuid zlib"
)
#: Other modules of the standard library -> attributes for which the same holds, or whose effect the
#: client shows. The rest of the standard library depends on the process: files, threads, signals,
#: the time zone.
_PURE_PARTS = {
    "io": _words("BytesIO StringIO TextIOWrapper SEEK_SET SEEK_CUR SEEK_END"),
    "logging": _words(
        "getLogger debug info warning warn error critical exception log DEBUG INFO WARNING WARN "
        "ERROR CRITICAL FATAL NOTSET Logger"
    ),
    "os": _words(
        "path sep linesep name fspath curdir pardir extsep altsep pathsep devnull fsencode "
        "fsdecode PathLike strerror cpu_count"
    ),
    "reprlib": _words("Repr recursive_repr"),
    "posixpath": _words(
        "join split splitext basename dirname normpath normcase isabs splitdrive commonpath "
        "commonprefix sep curdir pardir extsep altsep pathsep"
    ),
    "sys": _words(
        "float_info float_repr_style int_info hash_info maxsize maxunicode byteorder platform "
        "version version_info hexversion implementation exc_info exception exit intern "
        "getrecursionlimit get_int_max_str_digits stdout stderr"
    ),
    # What is written there, the client shows.
    "sys.stdout": _words("write writelines flush"),
    "sys.stderr": _words("write writelines flush"),
    "time": _words(
        "sleep time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time "
        "process_time_ns thread_time thread_time_ns gmtime struct_time"
    ),
    "warnings": _words("warn warn_explicit"),
}

#: Why what ``process_state`` finds keeps a Function in the client.
OF_ONE_PROCESS = "whose state belongs to one process"

#: Module -> attributes whose value or effect belongs to one process ("*": all but _HARMLESS).
_BELONGS_TO_PROCESS = {
    "random": _EVERYTHING,
    "numpy.random": _EVERYTHING,
    "numpy.random.mtrand": _EVERYTHING,
    "builtins": _EVERYTHING,
    "datetime.date": _words("today fromtimestamp"),
    "datetime.datetime": _words("now today fromtimestamp"),
    "decimal": _words("getcontext setcontext DefaultContext BasicContext ExtendedContext"),
    "locale": _words("setlocale"),
    # Registers of the process, identities, and functions that change their argument.
    # They read and write files.
    "bz2": _words("open BZ2File"),
    "lzma": _words("open LZMAFile"),
    "contextlib": _words("chdir"),
    "numpy.rec": _words("fromfile"),
    "scipy.datasets": _EVERYTHING,
    "abc": _words("get_cache_token update_abstractmethods"),
    "dataclasses": _words("dataclass"),
    "functools": _words("total_ordering update_wrapper wraps"),
    "operator": _words("attrgetter is_ is_not methodcaller"),
    # Workers get no annotations.
    "typing": _words(
        "clear_overloads final get_overloads get_type_hints no_type_check overload "
        "runtime_checkable"
    ),
    "uuid": _words("uuid1 uuid4 uuid6 uuid7 getnode"),
    "numpy": _words(
        "seterr seterrcall geterrcall setbufsize set_printoptions set_string_function load save "
        "savez savez_compressed loadtxt savetxt genfromtxt fromfile fromregex memmap DataSource "
        "may_share_memory shares_memory"
    ),
    "numpy.ctypeslib": _EVERYTHING,
    "numpy.lib.format": _EVERYTHING,
    # Functions that draw random numbers without a seed, and settings of C code.
    "scipy.cluster.vq": _words("kmeans kmeans2"),
    "scipy.fft": _words("set_global_backend set_workers register_backend"),
    "scipy.integrate": _words("qmc_quad"),
    "scipy.io": _EVERYTHING,
    "scipy.linalg": _words("clarkson_woodruff_transform"),
    "scipy.linalg.interpolative": _EVERYTHING,
    "scipy.optimize": _words("basinhopping dual_annealing differential_evolution"),
    "scipy.sparse": _words("rand random random_array load_npz save_npz"),
    "scipy.sparse.linalg": _words("eigs eigsh svds onenormest expm expm_multiply use_solver"),
    "scipy.special": _words("seterr geterr errstate"),
    "scipy.stats": _words(
        "bootstrap permutation_test monte_carlo_test power qmc multivariate_normal multivariate_t "
        "ortho_group special_ortho_group unitary_group random_correlation random_table "
        "uniform_direction"
    ),
}

#: Modules of debuggers, which stop where the user's terminal is.
DEBUGGERS = _words("bdb pdb IPython ipdb pudb debugpy pydevd remote_pdb web_pdb wdb")

#: These have their own state, which the caller seeds.
_HARMLESS = _words(
    "Random Generator RandomState SeedSequence BitGenerator PCG64 PCG64DXSM Philox MT19937 SFC64 "
    "default_rng"
)

#: mpgrad's functions that use the process's random generator.
_MPGRAD_RANDOM = _words(
    "rand randn randint randperm rand_like randn_like randint_like normal bernoulli multinomial "
    "poisson dropout Dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout "
    "rrelu gumbel_softmax svd_lowrank pca_lowrank manual_seed seed initial_seed default_generator "
    "get_rng_state set_rng_state fork_rng uniform_ normal_ trunc_normal_ sparse_ orthogonal_ "
    "xavier_uniform_ xavier_normal_ kaiming_uniform_ kaiming_normal_"
)
#: mpgrad's names for state that only the client has: ``.grad`` of its leaves, its running backward.
_MPGRAD_CLIENT = _words(
    "backward queue_callback Variable detect_anomaly set_detect_anomaly register_multi_grad_hook "
    "is_anomaly_enabled is_anomaly_check_nan_enabled set_anomaly_enabled current_engine set_engine "
    "get_worker_info distributed checkpoint checkpoint_sequential "
    "current_autograd_node current_graph_task_id current_graph_task_keep_graph "
    "current_graph_task_execution_order will_engine_execute_node record_function "
    "set_default_device get_default_device set_device current_device memory_allocated "
    "set_default_dtype get_default_dtype Parameter get_float32_matmul_precision "
    "set_float32_matmul_precision allow_tf32 is_inference is_inference_mode_enabled "
    "is_multithreading_enabled set_multithreading_enabled kl_divergence register_kl"
)

#: Attributes of objects that could not be followed, and that nearly always mean randomness,
#: introspection, or a change of state that only the client has.
SUSPECT_ATTRIBUTES = _words(
    "rvs random_ uniform_ normal_ bernoulli_ exponential_ __class__ __code__ __closure__ "
    "__bases__ __mro__ f_globals f_locals f_back __enter__ __exit__ enter_context backward "
    "queue_callback next_functions grad_fn grad_dtype is_leaf output_nr retains_grad "
    "metadata tofile dump setLevel "
    "addHandler removeHandler addFilter isEnabledFor getEffectiveLevel handlers astimezone "
    "timestamp sample rsample samples resample"
)
#: Those of them that draw random numbers, and those that change something.
DRAWING_ATTRIBUTES = _words(
    "rvs random_ uniform_ normal_ bernoulli_ exponential_ sample rsample samples resample"
)
CHANGING_ATTRIBUTES = _words(
    "__enter__ __exit__ enter_context backward queue_callback tofile dump setLevel addHandler "
    "removeHandler addFilter __setattr__ __delattr__ writeable"
)
#: Attributes of functions and classes that are no code, and can be set.
NAMES_AND_WORDS = _words("__name__ __qualname__ __module__ __doc__")
#: Attributes of any object that belong to that very object, or change it unseen.
OF_ONE_OBJECT = _words(
    "__annotations__ __hash__ __sizeof__ __setattr__ __delattr__ __getattribute__ __dict__ "
    "__globals__ __builtins__ __defaults__ __kwdefaults__ __subclasses__ __array_interface__ "
    "ctypes data_ptr aligned behaved carray farray owndata writeable _version"
)

#: Methods that change a container, a count or an array.
CHANGING_METHODS = _words(
    "append appendleft extend extendleft insert remove pop popleft popitem clear update setdefault "
    "add discard push sort reverse rotate subtract difference_update intersection_update "
    "symmetric_difference_update __setitem__ __delitem__ __iadd__ __ior__ fill put resize setdiag"
)
#: Types of Python's whose objects have no state but what is in them.
CONTAINERS = _words(
    "list dict set bytearray tuple frozenset mappingproxy deque OrderedDict Counter "
    "SimpleNamespace array ChainMap UserDict UserList"
)
#: Attributes of loggers: what is told there, the client shows.
TOLD_TO_LOGGERS = _words("debug info warning warn error critical fatal exception log name")

#: Attributes of loggers that say how this process is set up.
STATE_OF_LOGGERS = _words(
    "level disabled propagate filters parent root manager hasHandlers getChild getChildren"
)

#: Builtins that look up a name that they are given.
LOOKUPS = _words("getattr hasattr")
#: Builtins with effects that the analysis cannot see, or with results that depend on the process.
DYNAMIC_BUILTINS = _words(
    "globals locals vars eval exec compile __import__ setattr delattr dir id hash input breakpoint "
    "open"
)


#: Those of them that change something.
CHANGING_BUILTINS = _words("setattr delattr globals vars locals exec input breakpoint")


_BUILTIN_ALIASES = frozenset({"IOError", "EnvironmentError"})


def process_state(module: str, attribute: str | None) -> bool:
    """Whether ``module.attribute`` differs between processes, or changes something in one of them.

    Args:
        module: its name, or that of a class with the module's in front.
        attribute: None: the module itself, as a value; "*": it is only imported.
    """
    module = _public(module)
    root = module.partition(".")[0]
    if root == "mpgrad":
        if attribute in _MPGRAD_RANDOM or attribute in _MPGRAD_CLIENT:
            return True
        return attribute is not None and module.startswith("mpgrad.distributed")
    if root in DEBUGGERS:
        return True
    listed = _BELONGS_TO_PROCESS.get(module)
    if listed is not None:
        return attribute not in _HARMLESS if listed is _EVERYTHING else attribute in listed
    pure = _PURE_PARTS.get(module)
    if pure is not None:
        return attribute not in pure and attribute not in (None, "*")
    is_known = root in _PURE or root in _PURE_PARTS or root in _BELONGS_TO_PROCESS
    return root in sys.stdlib_module_names and not is_known


def draws_numbers(module: str, attribute: str | None) -> bool:
    """Whether ``module.attribute`` draws random numbers, or seeds what does."""
    module = _public(module)
    if module.partition(".")[0] == "mpgrad":
        return attribute in _MPGRAD_RANDOM
    return module in ("random", "numpy.random", "numpy.random.mtrand") or (
        module == "numpy" and attribute == "random"
    )


def is_own_builtin(name: str, value: Any) -> bool:
    """Whether ``builtins.name`` is what Python put there: nothing, or the same in each process."""
    kind = type(value)
    if value is MISSING or kind.__module__ == "_sitebuiltins" or name.startswith("__"):
        return True
    if name in _BUILTIN_ALIASES or value is Ellipsis or value is NotImplemented:
        return True
    is_function = issubclass(kind, type | types.BuiltinFunctionType)
    return is_function and (value.__module__, value.__name__) == ("builtins", name)


def is_mixed(module: str) -> bool:
    """Whether some attributes of ``module`` depend on the process and others do not, so that the
    answer depends on what the code reads from the module."""
    return _public(module) in _PURE_PARTS


def _public(module: str) -> str:
    """The public module of a private one: `operator` for `_operator`, `scipy.io` for
    `scipy.io._netcdf`."""
    if module.startswith("_"):
        public = module.lstrip("_")
        return public if module not in _PURE and public in sys.stdlib_module_names else module
    return "os" if module == "posix" else module.partition("._")[0]


#: Packages whose state these tables know; the last one is pytest's replacement for ``assert``.
_TRUSTED = frozenset({"numpy", "scipy", "mpgrad", "cupy", "_pytest"}) | sys.stdlib_module_names


def _is_trusted(name: str, path: str) -> bool:
    """Whether the state of a module is known, or cannot be looked into because it is compiled."""
    return name.partition(".")[0] in _TRUSTED or path.endswith(tuple(EXTENSION_SUFFIXES))


#: What is installed wherever it stands.
_OWN = ("mpgrad", "numpy", "cloudpickle", "msgspec", "zmq")


@lru_cache(maxsize=1)
def _installed_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib") if key in paths]
    roots += [*site.getsitepackages(), site.getusersitepackages()]
    # Not pathlib, which would take as long to load as this whole folder.
    own = [str(sys.modules[name].__file__) for name in _OWN if name in sys.modules]
    roots += map(os.path.dirname, own)
    return tuple(sorted({os.path.realpath(root) + os.sep for root in roots}))


@lru_cache(maxsize=4096)
def _is_installed_file(path: str) -> bool:
    found = os.path.realpath(path)
    return found.startswith(_installed_roots()) or _is_of_distribution(found)


def _is_of_distribution(path: str) -> bool:
    """Whether an installer has put a file where it is: `pip install --target`, overlays of `uv`,
    another environment on ``PYTHONPATH``."""
    folder, name = os.path.split(path)
    while name:
        if name in _distributed(folder):
            return True
        folder, name = os.path.split(folder)
    return False


@lru_cache(maxsize=4096)
def _distributed(folder: str) -> frozenset[str]:
    """The files and folders in ``folder`` that belong to distributions."""
    entries, names = list[str](), set[str]()
    with contextlib.suppress(OSError):
        entries += [entry for entry in os.listdir(folder) if entry.endswith(".dist-info")]
    for entry in entries:
        path = os.path.join(folder, entry, "RECORD")
        with contextlib.suppress(OSError), open(path, errors="replace") as record:
            names.update([line.split(",")[0].split("/")[0] for line in record])
    return frozenset(names)


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


def is_known_namespace(namespace: Any) -> bool:
    """Whether it is installed and its state is known; of other packages the code is looked through
    like the user's."""
    name, path = namespace.get("__name__") or "", namespace.get("__file__") or ""
    return is_installed_namespace(namespace) and _is_trusted(name, path)


def is_known_module(name: str) -> bool:
    """The same for a module's name, loaded or not; False for a module that mpgrad has replaced."""
    module = sys.modules.get(name)
    if module is not None:
        is_alias = module.__name__.startswith("mpgrad.") and not name.startswith("mpgrad.")
        return is_known_namespace(vars(module)) and not is_alias
    try:
        # Only the package is looked up: finding a submodule would import its parents.
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None:
        return False
    is_installed = spec.origin in ("built-in", "frozen") or _is_installed_file(spec.origin)
    return is_installed and _is_trusted(name, spec.origin)


# ---------------------------------------------------------------------- objects in such code

_DESCRIPTORS = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)


def is_known_name(value: Any) -> bool:
    """True if ``value`` is found under its name in such a module.

    ``functools.wraps`` gives an installed function the name of the user's that it wraps; such a
    function is not one.
    """
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    named = module is not None and is_known_namespace(vars(module))
    return named and is_importable(value)


def is_known_object(value: Any) -> bool:
    """Whether every process has an equal object: a logger, a descriptor, or a callable made by
    installed code."""
    if isinstance(value, (*_DESCRIPTORS, logging.Logger)):
        return True
    kind = type(value)
    if kind.__module__ == "dataclasses" or kind.__name__ == "_tuplegetter":
        return True  # the marker of a missing default; a field of a namedtuple
    module = sys.modules.get(getattr(kind, "__module__", ""))
    if module is None or not is_known_namespace(vars(module)) or not callable(value):
        return False
    home = getattr(value, "__module__", None)
    # numpy's ufuncs have no __module__, but pickle by name.
    return kind.__name__ == "ufunc" or (
        isinstance(home, str) and is_known_module(home) and is_importable(value)
    )


def is_of_a_package(value: types.FunctionType | type) -> bool:
    """Whether a function or class belongs to an installed package whose state is not known."""
    if isinstance(value, types.FunctionType):
        namespace: Any = value.__globals__
    else:
        namespace = getattr(sys.modules.get(value.__module__), "__dict__", {})
    return is_installed_namespace(namespace) and not is_known_namespace(namespace)
