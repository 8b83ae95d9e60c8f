"""``mg.save`` and ``mg.load``: tensors and objects that contain them, in files.

A file is a pickle (protocol 5). Since Python's reader of pickles can run any code, ``load`` has one
of its own, which makes only tensors and plain containers, unless the user trusts the file.
"""

from __future__ import annotations

import os
import pickle
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from typing import IO, Any

from mpgrad.base.context_manager import contextmanager
from mpgrad.base.device import Device
from mpgrad.serialization.harmless_reader import HarmlessReader
from mpgrad.tensor_methods.copies import mapped_locations

__all__ = ["load", "save"]

File = str | PathLike[str] | IO[bytes]

#: Of pickles: the first one that writes large arrays without a copy.
PROTOCOL = 5
#: What is raised for bytes that ``save`` did not write.
_DAMAGE = (
    pickle.UnpicklingError,
    EOFError,
    *(IndexError, KeyError, OverflowError, TypeError, UnicodeDecodeError, ValueError),
)
#: How a file of PyTorch begins: as an archive; before PyTorch 1.6, with a pickle of this number.
_ZIP = b"PK\x03\x04"
_MAGIC = 0x1950A86A20F9469CFC6C


def save(
    obj: Any,
    f: File,
    pickle_module: Any = None,
    pickle_protocol: int = PROTOCOL,
    _use_new_zipfile_serialization: bool = True,
) -> None:
    """Write ``obj`` to a file.

    Tensors keep their values, ``requires_grad`` and device; views become independent tensors, and
    computed tensors become leaves. A file that is there stays as it was until all is written.

    Args:
        obj: a tensor, a ``state_dict``, or anything else that can be pickled.
        f: a path, or a file open for writing bytes.
        pickle_module, _use_new_zipfile_serialization: accepted, and without effect.
        pickle_protocol: the version of the pickle.

    Raises:
        OSError: the file cannot be written, for instance on a full disk.
    """
    if isinstance(f, str | PathLike):
        with _replacing(f) as file:
            pickle.dump(obj, file, protocol=pickle_protocol)
    else:
        pickle.dump(obj, f, protocol=pickle_protocol)


@contextmanager
def _replacing(path: str | PathLike[str]) -> Iterator[IO[bytes]]:
    """A file that takes the place of ``path`` when all is written, and vanishes if that fails.

    Devices and pipes are written to directly.
    """
    target = os.path.realpath(path)
    is_regular = not os.path.exists(target) or os.path.isfile(target)
    written = f"{target}.{os.getpid()}.{secrets.token_hex(4)}" if is_regular else target
    try:
        with open(written, "xb" if is_regular else "wb") as file:
            yield file
        if is_regular:
            if os.path.exists(target):
                shutil.copymode(target, written)
            os.replace(written, target)
    except BaseException as error:
        if is_regular and os.path.exists(written):
            os.unlink(written)
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise


def load(
    f: File,
    map_location: Device | str | Mapping[str, Device | str] | Callable[..., Any] | None = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = True,
    mmap: bool | None = None,
) -> Any:
    """Read a file of :func:`save`.

    Args:
        f: a path, or a file open for reading bytes.
        map_location: the device of all tensors, or a dictionary of devices by name; a tensor whose
            device is not in it goes to the device that it was saved from. Or a function that gets
            a storage on the host and the name of that device, and returns the storage, one on
            another device, or None for the device by name.
        pickle_module, mmap: accepted, and without effect.
        weights_only: refuse everything but tensors, arrays of numbers or texts, numbers, strings
            and plain containers. Without it the file may run any code: use it only for files that
            you trust.

    Raises:
        pickle.UnpicklingError: the file is damaged or cut off, or it contains other objects, and
            ``weights_only`` is True.
        RuntimeError: a tensor was saved from a GPU that is not here, and not mapped elsewhere.
    """
    if isinstance(f, str | PathLike):
        with open(f, "rb") as file:
            return _read(file, map_location, weights_only is not False)
    return _read(f, map_location, weights_only is not False)


def _read(file: IO[bytes], map_location: Any, weights_only: bool) -> Any:
    begin = file.tell() if hasattr(file, "seekable") and file.seekable() else None
    reader = HarmlessReader(file) if weights_only else pickle.Unpickler(file)
    with mapped_locations(map_location):
        try:
            found = reader.load()
            if type(found) is int and found == _MAGIC:
                raise pickle.UnpicklingError("persistent ids follow")
            return found
        except _DAMAGE as error:
            name = getattr(file, "name", None)
            where = repr(name) if isinstance(name, str) else "the file"
            said = str(error) or type(error).__name__
            if not said.startswith("Weights only load failed"):
                said = f"it is damaged, cut off, or no file of mg.save: {said}"
            if "persistent" in said or _is_zip(file, begin):
                said = (
                    "it looks like a file of torch.save, which mg.load does not read: write it as "
                    "safetensors with PyTorch, and read it with safetensors.numpy.load_file"
                )
            raise pickle.UnpicklingError(f"{where} cannot be loaded: {said}") from error


def _is_zip(file: IO[bytes], begin: int | None) -> bool:
    """Whether an archive begins there, as torch.save writes them; False for a stream."""
    if begin is None:
        return False
    file.seek(begin)
    return file.read(len(_ZIP)) == _ZIP
