"""checkpoint() and checkpoint_sequential(): both kinds of checkpointing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from mpgrad.autograd.checkpointing import settings
from mpgrad.autograd.checkpointing.debugging import OperatorLogs
from mpgrad.autograd.checkpointing.recomputation import METADATA, Region, run_checkpointed
from mpgrad.autograd.checkpointing.reentrant_checkpoint import CheckpointFunction
from mpgrad.recording.tensors.tensor import Tensor

#: Makes the contexts of the two calls of the function.
ContextFn: TypeAlias = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]


def noop_context_fn() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Two contexts that do nothing."""
    return nullcontext(), nullcontext()


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: ContextFn = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Call ``function(*args, **kwargs)`` without keeping the tensors that its backward needs.

    Backward calls ``function`` again when it needs the first of those tensors: this trades time for
    memory (Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174). The
    function must do the same the second time. The calling process needs its saved tensors, so the
    Nodes that it records run there.

    Args:
        function: any callable.
        args: its arguments; tensors among them are kept and checked for in-place changes.
        use_reentrant: False (recommended) records the function and computes its saved tensors
            when backward needs them. True runs it unrecorded, and differentiates the second run
            in a nested backward: only tensors that are arguments and results themselves take
            part, and ``grad()`` and ``backward(inputs=...)`` cannot be used. Unset: True with a
            warning.
        context_fn: makes two contexts: for the first call and for the second.
        determinism_check: ``"default"`` compares shape, dtype and device of what both calls save;
            ``"none"`` does not.
        debug: log all operators of both calls, and show them when they differ.
        early_stop: end the second call as soon as all needed tensors are there.
        preserve_rng_state: let both calls draw the same random numbers.
        kwargs: keyword arguments for ``function``.

    Returns:
        The result of ``function``.

    Raises:
        ValueError: an option does not go with ``use_reentrant=True``, or has an unknown value.
        CheckpointError: (in backward) the second call saved other tensors than the first.
    """
    if use_reentrant is None:
        _warn_unset("checkpoint")
        use_reentrant = True
    if use_reentrant:
        if kwargs:
            raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
        if context_fn is not noop_context_fn or debug is not False:
            raise ValueError(
                "Passing `context_fn` or `debug` is only supported when use_reentrant=False."
            )
        return CheckpointFunction.apply(function, preserve_rng_state, *args)
    region, forward_context = _region(
        function, kwargs, context_fn, determinism_check, debug, early_stop, preserve_rng_state
    )
    return run_checkpointed(region, args, forward_context)


def _region(
    function: Callable[..., Any],
    kwargs: dict[str, Any],
    context_fn: ContextFn,
    determinism_check: str,
    debug: bool,
    early_stop: bool,
    preserve_rng_state: bool,
) -> tuple[Region, AbstractContextManager[Any]]:
    """The Region for the arguments of :func:`checkpoint` and the settings of the process."""
    if determinism_check not in METADATA:
        raise ValueError(
            f"determinism_check should be one of {list(METADATA)}, but got {determinism_check}"
        )
    logs = None
    if debug if settings.debug_enabled is None else settings.debug_enabled:
        if context_fn is not noop_context_fn:
            raise ValueError("debug=True is incompatible with non-default context_fn")
        logs = OperatorLogs()
        context_fn = logs.contexts
    forward_context, again_context = context_fn()
    region = Region(
        function,
        kwargs,
        again_context,
        preserve_rng_state=preserve_rng_state,
        early_stop=early_stop if settings.early_stop is None else settings.early_stop,
        metadata=METADATA[determinism_check],
        explain=None if logs is None else logs.explain,
    )
    return region, forward_context


def _warn_unset(name: str) -> None:
    warnings.warn(
        f"mpgrad.utils.checkpoint.{name}: the use_reentrant parameter should be passed explicitly. "
        "use_reentrant=False is recommended; unset it means use_reentrant=True, as in older "
        "versions of PyTorch.",
        UserWarning,
        stacklevel=3,
    )


def checkpoint_sequential(
    functions: Any,
    segments: int,
    input: Tensor,
    use_reentrant: bool | None = None,
    *,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Run ``functions`` one after another, checkpointed in ``segments`` pieces.

    The last piece is not checkpointed, because its backward follows at once.

    Args:
        functions: an ``nn.Sequential``, or a sequence of callables of one argument.
        segments: number of pieces of about the same length.
        input: of the first function.
        use_reentrant, preserve_rng_state: as in :func:`checkpoint`.

    Raises:
        ValueError: an unknown keyword.
    """
    if use_reentrant is None:
        _warn_unset("checkpoint_sequential")
        use_reentrant = True
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    steps = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = len(steps) // segments
    last = size * (segments - 1)
    value = input
    for start in range(0, last, size) if size else ():
        value = checkpoint(
            _chain(steps[start : start + size]),
            value,
            use_reentrant=use_reentrant,
            preserve_rng_state=preserve_rng_state,
        )
    return _chain(steps[last:])(value)


def _chain(steps: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        for step in steps:
            value = step(value)
        return value

    return run
