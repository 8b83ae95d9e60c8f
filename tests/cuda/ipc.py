"""Tests on a real GPU where processes cannot open each other's memory, as in some containers.

mpgrad goes through the host there. Tests marked ``ipc`` are about what it does where they can.
"""

from __future__ import annotations

import functools

import pytest

from mpgrad.arrays.cuda.cuda_export import Exporter, NotExportable
from mpgrad.arrays.cuda.device_link import DeviceLink
from mpgrad.arrays.cuda.pair_test import PairTest
from tests.cuda.peer import Peer

_ANSWER = "answer(driver, Importer(driver), 'peer', question).reason"


@functools.cache
def obstacle() -> str:
    """Why CUDA IPC does not work between two processes here; empty if it does, or without a GPU."""
    try:
        from mpgrad.arrays.cuda.cuda_cupy import CupyDriver
    except ImportError:
        return ""
    driver = CupyDriver()
    if not driver.device_count():
        return ""
    try:
        test = PairTest(driver, Exporter(driver, "tests", 0), "peer", seed=1)
    except NotExportable as error:
        return str(error)
    peer = Peer("cupy")
    try:
        for module in ("cuda_export", "cuda_import", "pair_test", "segment_pool"):
            peer(f"from mpgrad.shm.{module} import *")
        return str(peer(_ANSWER, question=test.question))
    finally:
        test.close()
        peer.kill()


def skip_or_be_silent(node: pytest.Item, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CUDA IPC, skip ``node`` if it needs that; else engines do not warn in its midst."""
    why = obstacle()
    if why and node.get_closest_marker("ipc"):
        pytest.skip(f"CUDA IPC does not work here: {why}")
    if why:
        monkeypatch.setattr(DeviceLink, "failures", lambda link: [])
