"""Modules as functions of their parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpgrad.nn.batch_norm import BatchNorm
from mpgrad.nn.module import Module
from mpgrad.ops.shape import stack
from mpgrad.tensors.tensor import Tensor


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Any,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """``module(*args, **kwargs)`` with other Tensors for some of its parameters and buffers.

    Args:
        module: the Module, which is as before afterwards.
        parameter_and_buffer_dicts: Tensors by name, or several such dictionaries.
        args: one argument, or a tuple of them.
        kwargs: arguments by name.
        tie_weights: where one parameter has several names, each may stand for all.
        strict: every parameter and buffer has to be given.

    Raises:
        RuntimeError: ``strict``, and a name is missing or unknown.
    """
    given: dict[str, Tensor] = {}
    several = isinstance(parameter_and_buffer_dicts, list | tuple)
    for part in parameter_and_buffer_dicts if several else [parameter_and_buffer_dicts]:
        given |= part
    places = {
        f"{path}.{name}" if path else name: (table, name)
        for path, inner in module.named_modules(remove_duplicate=False)
        for table in (inner._parameters, inner._buffers)
        for name, value in table.items()
        if value is not None
    }
    unknown, absent = set(given) - set(places), set(places) - set(given)
    if strict and (unknown or absent):
        raise RuntimeError(
            f"functional_call: unexpected names {sorted(unknown)}, missing {sorted(absent)}"
        )
    held: dict[str, Any] = {name: table[last] for name, (table, last) in places.items()}
    by_id = {id(held[name]): value for name, value in given.items() if name in held}
    try:
        for name, (table, last) in places.items():
            tied = by_id.get(id(held[name]), held[name]) if tie_weights else held[name]
            table[last] = given.get(name, tied)  # type: ignore[index]
        given_args = () if args is None else args if isinstance(args, tuple) else (args,)
        return module(*given_args, **(kwargs or {}))
    finally:
        for name, (table, last) in places.items():
            table[last] = held[name]  # type: ignore[index]


def stack_module_state(models: list[Module]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of Modules of one kind, stacked, and their buffers.

    ``vmap`` of :func:`functional_call` runs all of the Modules on them.

    Args:
        models: with parameters of equal names and shapes.

    Returns:
        (parameters, buffers): by name a Tensor whose first dimension is ``len(models)``. The
        parameters are leaves of their own.

    Raises:
        RuntimeError: there is no model, or they are of several classes or modes.
    """
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({model.training for model in models}) > 1:
        raise RuntimeError(
            "stack_module_state: Expected all models to have the same training/eval mode."
        )
    if len({type(model) for model in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    parameters, buffers = (
        {name: stack([t.detach() for t in same]) for name, *same in _by_name(models, kind)}
        for kind in ("named_parameters", "named_buffers")
    )
    return {name: value.requires_grad_() for name, value in parameters.items()}, buffers


def _by_name(models: list[Module], kind: str) -> Iterator[list[Any]]:
    for entries in zip(*(getattr(model, kind)() for model in models), strict=True):
        yield [entries[0][0], *(tensor for _, tensor in entries)]


def replace_all_batch_norm_modules_(root: Module) -> Module:
    """Let the batch norms of ``root`` use the statistics of their batch, and keep none.

    Their running statistics change in place, which ``vmap`` and other derivatives cannot follow.

    Returns:
        ``root``.
    """
    for module in root.modules():
        if isinstance(module, BatchNorm):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return root
