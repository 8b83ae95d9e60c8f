"""TracedBackward: a backward inside a function that is traced, in the place of the engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.arrays.cpu.array_program import plain
from mpgrad.arrays.cpu.array_proxies import ArrayProxy
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.engine.blas import blas_limit
from mpgrad.engine.engine import current_engine
from mpgrad.engine.local import gradients_of_nodes
from mpgrad.func.compilation.traced_call import CallProgram
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad
from mpgrad.recording.tensors.tensor import Tensor


class TracedBackward:
    """Stands in for the engine: runs a backward's Nodes on ArrayProxies."""

    mode = "local"

    def __init__(self, program: CallProgram, first_sequence_nr: int) -> None:
        self._program, self._first = program, first_sequence_nr

    def execute(self, frozen: FrozenGraph) -> list[tuple[Any, bool]]:
        program = self._program
        for node, runs in zip(frozen.nodes, frozen.runs, strict=True):
            if node.hooks is not None or getattr(node, "has_packed", False):
                program.give_up("hooks of gradients and of saved tensors are not compiled")
            elif runs and node.sequence_nr < self._first and not isinstance(node, AccumulateGrad):
                program.give_up("the backward goes on into a graph that was recorded before")
        if program.is_given_up:
            return current_engine().execute(_with_plain_seeds(frozen))
        program.has_backward = True
        threads = current_engine()._options.blas_threads
        program.known.update(blas_limit=blas_limit)
        program.write(f"with blas_limit({threads}):")
        program.indent += "    "
        try:
            with blas_limit(threads):
                seeds = tuple([_seed(program, seed) for seed in frozen.seeds])
                found = gradients_of_nodes(frozen._replace(seeds=seeds), program.namespace)
        finally:
            program.write("pass")
            program.indent = program.indent[4:]
        if not frozen.keep_graph:
            program.used_up.update(frozen.nodes)
        counts: dict[str, int] = {}
        for array in found:
            if type(array) is ArrayProxy:
                counts[array._name] = counts.get(array._name, 0) + 1
        given = {seed._name for seed in seeds if type(seed) is ArrayProxy}
        return [
            (array, _is_exclusive(array) and counts[array._name] == 1 and array._name not in given)
            for array in found
        ]

    def execute_recorded(self, frozen: FrozenGraph, seeds: Any) -> list[Tensor | None]:
        self._program.give_up("create_graph=True is not compiled")
        return current_engine().execute_recorded(_with_plain_seeds(frozen), seeds)


def _with_plain_seeds(frozen: FrozenGraph) -> FrozenGraph:
    return frozen._replace(seeds=tuple([plain(seed) for seed in frozen.seeds]))


def _seed(program: CallProgram, seed: Any) -> Any:
    if type(seed) is not np.ndarray:
        return seed
    name = program.fresh()
    program.write(f"{name} = {program.bound(seed.copy(), 'seed')}.copy()")
    return program.named(seed, name)


def _is_exclusive(array: Any) -> bool:
    if type(array) is not ArrayProxy or array._program.is_given_up:
        return False
    value = array._value
    return type(value) is np.ndarray and value.base is None and value.flags.writeable
