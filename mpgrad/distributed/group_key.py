"""The key of a group: what its members know, and nobody else."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat

from mpgrad.base import config

#: The shortest file that makes a key; ``mpgrad run`` makes one of 32 random bytes.
KEY_BYTES_MIN = 16

#: Where rank 0 listens if all ranks are on this host.
_THIS_HOST = ("localhost", "127.0.0.1", "::1")


def group_key(*, encrypt: bool, host: str = "") -> bytes:
    """32 bytes from the file that MPGRAD_GROUP_KEY_FILE names.

    Without that, ranks that are all on this host have the key of their user. Without ``encrypt`` no
    file is needed: then every process that can connect may join.

    Args:
        encrypt: whether the ranks encrypt what they send.
        host: where rank 0 listens.

    Raises:
        ValueError: there is none, though there has to be, or it cannot serve.
    """
    path = config.group_key_file()
    if path is None and encrypt and host in _THIS_HOST:
        return _derived(_key_of_user())
    if path is None:
        if encrypt:
            raise ValueError(
                "init_process_group() encrypts, for which ranks on several hosts need one key: "
                "start them with `mpgrad run`, or set MPGRAD_GROUP_KEY_FILE to a file of at least "
                f"{KEY_BYTES_MIN} random bytes that is the same for all of them and that nobody "
                "else can read; encrypt=False sends everything in the clear"
            )
        return hashlib.blake2b(digest_size=32).digest()
    try:
        with open(path, "rb") as file:
            about, secret = os.fstat(file.fileno()), file.read()
    except OSError as error:
        raise ValueError(f"MPGRAD_GROUP_KEY_FILE={path!r}: {error.strerror}") from None
    if _is_open_to_others(about):
        raise ValueError(
            f"MPGRAD_GROUP_KEY_FILE={path!r} can be read or written by others (mode "
            f"{stat.S_IMODE(about.st_mode):04o}), so that they could join the group: draw a new "
            "key, and `chmod 600` its file"
        )
    if len(secret) < KEY_BYTES_MIN:
        raise ValueError(
            f"MPGRAD_GROUP_KEY_FILE={path!r} has {len(secret)} bytes; a key has at least "
            f"{KEY_BYTES_MIN}, drawn at random"
        )
    return _derived(secret)


def _is_open_to_others(about: os.stat_result) -> bool:
    """Whether other users have access; what root gives to a group of this user's is meant so."""
    own = about.st_uid == os.getuid()
    is_named = about.st_nlink > 0 and stat.S_ISREG(about.st_mode)
    return is_named and bool(about.st_mode & (0o077 if own else 0o007))


def _derived(secret: bytes) -> bytes:
    return hashlib.blake2b(secret, digest_size=32, person=b"mpgrad group").digest()


def _key_of_user() -> bytes:
    """From a file that only this user can read; the first process that asks makes it."""
    path = os.path.join(config.state_directory(), "group-key")
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ValueError(
            f"the key of this host's ranks cannot be kept in {path!r}: {error.strerror}. Set "
            "MPGRAD_GROUP_KEY_FILE, or start the ranks with `mpgrad run`"
        ) from None
    with open(descriptor, "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        about = os.fstat(descriptor)
        if about.st_uid != os.getuid() or about.st_mode & 0o077:
            raise ValueError(f"{path!r} is not this user's alone: remove it, and it is made anew")
        key = file.read()
        if len(key) < KEY_BYTES_MIN:
            key = secrets.token_bytes(32)
            file.seek(0)
            file.write(key)
        return key
