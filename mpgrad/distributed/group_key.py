"""The key of a group: what its members know, and nobody else."""

from __future__ import annotations

import hashlib

from mpgrad.base import config

#: The shortest file that makes a key; ``mpgrad run`` makes one of 32 random bytes.
KEY_BYTES_MIN = 16


def group_key(*, encrypt: bool) -> bytes:
    """32 bytes from the file that MPGRAD_GROUP_KEY_FILE names.

    Without ``encrypt`` no file is needed: then every process that can connect may join.

    Raises:
        ValueError: there is none, though there has to be, or it cannot serve.
    """
    path = config.group_key_file()
    if path is None:
        if encrypt:
            raise ValueError(
                "init_process_group() encrypts, for which all ranks need one key: start them with "
                "`mpgrad run`, or set MPGRAD_GROUP_KEY_FILE to a file of at least "
                f"{KEY_BYTES_MIN} random bytes that is the same for all of them and that nobody "
                "else can read; encrypt=False sends everything in the clear"
            )
        return hashlib.blake2b(digest_size=32).digest()
    try:
        with open(path, "rb") as file:
            secret = file.read()
    except OSError as error:
        raise ValueError(f"MPGRAD_GROUP_KEY_FILE={path!r}: {error.strerror}") from None
    if len(secret) < KEY_BYTES_MIN:
        raise ValueError(
            f"MPGRAD_GROUP_KEY_FILE={path!r} has {len(secret)} bytes; a key has at least "
            f"{KEY_BYTES_MIN}, drawn at random"
        )
    return hashlib.blake2b(secret, digest_size=32, person=b"mpgrad group").digest()
