"""Modules as functions of their parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from mpgrad.nn.batch_norm import BatchNorm
from mpgrad.nn.module import Module
from mpgrad.ops.shapes.shape import stack
from mpgrad.recording.tensors.tensor import Tensor


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
        parameter_and_buffer_dicts: Tensors by name, or several such dictionaries. Names may also be
            those of other attributes. What the call assigns to one of the names goes into the
            dictionary, if there is one only.
        args: one argument, or a tuple of them.
        kwargs: arguments by name.
        tie_weights: where one parameter has several names, each may stand for all.
        strict: every parameter and buffer has to be given, and nothing else.

    Raises:
        RuntimeError: ``strict``, and a name is missing or unknown.
        ValueError: a name comes in several dictionaries, or tied names have several values.
        TypeError: a value, or what it replaces, is neither a Tensor nor None.
    """
    given = _merged(parameter_and_buffer_dicts)
    swapped = _with_ties(module, given) if tie_weights else dict(given)
    if strict:
        _check_names(module, swapped)
    for value in swapped.values():
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{value} is not an instance of torch.Tensor")
    places = [(_owner(module, name), name.rpartition(".")[2], name) for name in swapped]
    before: list[Any] = []
    try:
        for owner, last, name in places:
            before.append(_swap(owner, last, swapped[name]))
        given_args = () if args is None else args if isinstance(args, tuple) else (args,)
        return module(*given_args, **(kwargs or {}))
    finally:
        for (owner, last, name), old in reversed([*zip(places, before, strict=False)]):
            now = _swap(owner, last, old)
            if name in given and now is not _MISSING:
                given[name] = now


#: Stands for what is not there.
_MISSING: Any = object()


def _merged(dicts: Any) -> dict[str, Tensor]:
    """The dictionary itself, or one of all that several hold."""
    if isinstance(dicts, dict):
        return dicts
    if not isinstance(dicts, list | tuple) or not all(isinstance(part, dict) for part in dicts):
        raise ValueError(
            "Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts, but got "
            f"{type(dicts)}"
        )
    times = Counter(name for part in dicts for name in part)
    repeated = [name for name, count in times.items() if count > 1]
    if repeated:
        raise ValueError(
            f"{repeated} appeared in multiple dictionaries; behavior of functional call is "
            "ambiguous"
        )
    return {name: value for part in dicts for name, value in part.items()}


def _named(module: Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _with_ties(module: Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """``given``, also under the other names of the same Tensors."""
    tied: dict[int, list[str]] = {}
    for name, value in _named(module):
        tied.setdefault(id(value), []).append(name)
    result = dict(given)
    for names in tied.values():
        values = {id(given[name]): given[name] for name in names if name in given}
        if len(values) > 1:
            several = sorted(name for name in names if name in given)
            raise ValueError(
                f"functional_call got multiple values for keys {several}, which are tied. Consider "
                "using tie_weights=False"
            )
        for value in values.values():
            result |= dict.fromkeys(names, value)
    return result


def _check_names(module: Module, given: dict[str, Tensor]) -> None:
    own = {name for name, _ in _named(module)}
    problems = [
        f"{word} key(s): {', '.join(map(repr, names))}."
        for word, names in (
            ("Unexpected", sorted(set(given).difference(own))),
            ("Missing", sorted(set(own).difference(given))),
        )
        if names
    ]
    if problems:
        text = "\n\t".join(problems)
        raise RuntimeError(f"Error(s) in reparametrizing for {type(module).__name__}:\n\t{text}")


def _owner(module: Module, name: str) -> Module:
    return module.get_submodule(name.rpartition(".")[0])


def _swap(owner: Module, name: str, value: Any) -> Any:
    """Put ``value`` in the place of that name; return what was there."""
    tables: tuple[dict[str, Any], ...] = (owner._parameters, owner._buffers)
    for table in tables:
        if name in table:
            old = table.pop(name) if value is _MISSING else table[name]
            if value is not _MISSING:
                table[name] = value
            return old
    old = getattr(owner, name, _MISSING)
    if old is not _MISSING and old is not None and not isinstance(old, Tensor):
        raise TypeError(f"{old} is not an instance of torch.Tensor")
    if value is not _MISSING:
        setattr(owner, name, value)
    elif old is not _MISSING:
        delattr(owner, name)
    return old


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
