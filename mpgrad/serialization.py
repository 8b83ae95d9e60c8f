"""``mg.save`` and ``mg.load``: tensors and objects that contain them, in files.

A file is a pickle (protocol 5). Since a pickle can run any code, ``load`` makes only tensors and
plain containers from it, unless the user trusts the file.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from os import PathLike
from typing import IO, Any

from mpgrad.base.device import Device
from mpgrad.tensor_methods.copies import mapped_locations

__all__ = ["load", "save"]

File = str | PathLike[str] | IO[bytes]

#: All names that a file of tensors needs, by module. NumPy's core has had two names.
_HARMLESS = {
    "mpgrad": "Tensor Device Size",
    "mpgrad.nn.parameter": "Parameter",
    "mpgrad.tensor_methods.copies": "_rebuild",
    "mpgrad.base.dtype": "DType",
    "numpy": "ndarray dtype",
    **{
        f"numpy.{core}.{module}": names
        for core in ("_core", "core")
        for module, names in (("multiarray", "_reconstruct scalar"), ("numeric", "_frombuffer"))
    },
    "collections": "OrderedDict",
    "builtins": "set frozenset slice complex bytearray",
}


def save(obj: Any, f: File) -> None:
    """Write ``obj`` to a file.

    Tensors keep their values, ``requires_grad`` and device; views become independent tensors, and
    computed tensors become leaves.

    Args:
        obj: a tensor, a ``state_dict``, or anything else that can be pickled.
        f: a path, or a file open for writing bytes.
    """
    if isinstance(f, str | PathLike):
        with open(f, "wb") as file:
            pickle.dump(obj, file, protocol=5)
    else:
        pickle.dump(obj, f, protocol=5)


def load(
    f: File,
    map_location: Device | str | Mapping[str, Device | str] | None = None,
    *,
    weights_only: bool = True,
) -> Any:
    """Read a file of :func:`save`.

    Args:
        f: a path, or a file open for reading bytes.
        map_location: the device of all tensors, or a dictionary of devices by name. A tensor whose
            device is not in it goes to the device that it was saved from.
        weights_only: refuse everything but tensors, numbers, strings and plain containers. Without
            it the file may run any code: use it only for files that you trust.

    Raises:
        pickle.UnpicklingError: the file contains other objects, and ``weights_only`` is True.
        RuntimeError: a tensor was saved from a GPU that is not here, and not mapped elsewhere.
    """
    if isinstance(f, str | PathLike):
        with open(f, "rb") as file:
            return _read(file, map_location, weights_only)
    return _read(f, map_location, weights_only)


def _read(file: IO[bytes], map_location: Any, weights_only: bool) -> Any:
    reader = _Harmless(file) if weights_only else pickle.Unpickler(file)
    with mapped_locations(map_location):
        return reader.load()


class _Harmless(pickle.Unpickler):
    """Finds only the classes of tensors and plain containers."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _HARMLESS.get(module, "").split():
            raise pickle.UnpicklingError(
                f"Weights only load failed: the file asks for {module}.{name}, and loading it could"
                " run any code. If you trust the file, use mg.load(..., weights_only=False)."
            )
        return super().find_class(module, name)
