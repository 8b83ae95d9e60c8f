"""Peers run in interpreters of their own and compute what mpgrad computes; nothing is timed."""

from __future__ import annotations

import importlib.util

import numpy as np
import psutil
import pytest

import mpgrad as mg
from benchmarks.gil_work import branch_input, spin
from benchmarks.peers.process import NOT_INSTALLED, PeerFailed, PeerProcess
from benchmarks.perceptron_arrays import Perceptrons
from benchmarks.workloads import overhead, perceptrons

SHAPE = Perceptrons(2, 2, 8)
LOOPS = 50


def installed(module):
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None, reason=f"{module} is not installed"
    )


def gradients_of(program):
    program.forward().backward()
    return [leaf.grad.numpy() for leaf in program.leaves]


@pytest.mark.slow
def test_a_program_runs_elsewhere_and_ends_with_its_peer():
    before = set(psutil.Process().children())
    with PeerProcess("pool", "concurrent.futures") as peer:
        for elements in (4, 8):
            contender = peer.contender("task_systems.process_pool", 4, LOOPS, elements)
            assert contender.sample() > 0.0
            expected = [
                branch_input(branch, elements) * np.float32(spin(LOOPS)) for branch in range(4)
            ]
            assert np.array_equal(contender.gradients(), expected)
        (child,) = set(psutil.Process().children()) - before
    assert not child.is_running()


@pytest.mark.slow
def test_a_renewed_peer_is_another_process_with_the_same_program():
    with PeerProcess("pool", "concurrent.futures") as peer:
        contender = peer.contender("task_systems.process_pool", 4, LOOPS, 4)
        contender.sample()
        first, found = peer._child, contender.gradients()
        contender.renew()
        assert first.returncode is not None
        contender.sample()
        assert peer._child.pid != first.pid
        assert np.array_equal(contender.gradients(), found)


@pytest.mark.slow
def test_a_peer_that_cannot_start_says_why():
    with PeerProcess("pool", "concurrent.futures") as peer:
        contender = peer.contender("task_systems.no_such_program")
        assert contender.sample is None
        assert "no_such_program" in contender.remark()
        working = peer.contender("task_systems.process_pool", 4, LOOPS, 4)
        peer._child.kill()
        with pytest.raises(PeerFailed, match="the process of pool has ended"):
            working.sample()


def test_a_missing_peer_is_named():
    with PeerProcess("Nobody", "no_such_module_anywhere") as peer:
        contender = peer.contender("nobody.program")
    assert (contender.sample, contender.remark()) == (None, NOT_INSTALLED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "program", "arguments"),
    [
        pytest.param(*case, marks=installed(case[0]), id=case[1])
        for case in [
            ("autograd", "hips_autograd.perceptrons", (SHAPE, 1, False)),
            ("autograd", "hips_autograd.perceptrons", (SHAPE, 1, True)),
            ("jax", "jax_jit.perceptrons", (SHAPE, False)),
            ("jax", "jax_jit.perceptrons", (SHAPE, True)),
            ("tensorflow", "tensorflow_graph.perceptrons", (SHAPE, 2)),
        ]
    ],
)
def test_perceptrons_have_the_gradients_of_mpgrad(module, program, arguments):
    with mg.Engine(mode="local"):
        expected = gradients_of(perceptrons.program(SHAPE, mg))
    with PeerProcess(program, module) as peer:
        contender = peer.contender(program, *arguments)
        assert contender.sample() > 0.0
        found = contender.gradients()
    for mine, theirs in zip(expected, found, strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=1e-4, atol=1e-6)


@installed("autograd")
@pytest.mark.slow
def test_hips_builds_the_same_small_graphs():
    with PeerProcess("HIPS autograd", "autograd") as peer, mg.Engine(mode="local"):
        for shape, make in overhead.SHAPES.items():
            contender = peer.contender(f"hips_autograd.{shape}", 20)
            contender.sample()
            np.testing.assert_allclose(contender.gradients(), gradients_of(make(20, mg)), rtol=1e-5)
        contender = peer.contender("hips_autograd.digits")
        contender.sample()
        for mine, theirs in zip(
            gradients_of(overhead._digits(mg)), contender.gradients(), strict=True
        ):
            np.testing.assert_allclose(theirs, mine, rtol=1e-4, atol=1e-6)
