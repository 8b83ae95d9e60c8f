"""context(), backward() and get_gradients(): a backward over all hosts that a graph spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.autograd.profiling.ranges import span
from mpgrad.autograd.roots import check_roots, seed_tuple
from mpgrad.distributed.autograd.contexts import CURRENT, DistAutogradContext, recording_in
from mpgrad.distributed.rpc.current_service import service
from mpgrad.distributed.states.upstream import NUMBER_BITS
from mpgrad.recording.tensors.tensor import Tensor

#: Gradients are awaited where the roots lead to; or (FAST) for everything that was sent.
MODES = ("smart", "fast")


class context:
    """The block in which calls of other hosts belong to one graph; it gives the context's id.

    At its end the context is left on all hosts: its gradients are gone.

    Raises:
        RuntimeError: this thread is in a context already, or RPC has not been initialized.
    """

    def __enter__(self) -> int:
        self._context = _new_context()
        return self._context.id

    def __exit__(self, *_: object) -> None:
        _release_context(self._context.id)


def backward(
    context_id: int,
    roots: Sequence[Any],
    retain_graph: bool = False,
    *,
    grad_tensors: Sequence[Tensor | None] | None = None,
    inputs: Tensor | Sequence[Tensor] | None = None,
    mode: str | None = None,
    create_graph: bool = False,
) -> None:
    """Add the gradients of ``roots`` to the context, on each host those of its leaves.

    No ``.grad`` is touched. Either all hosts get their gradients, or none does.

    Args:
        context_id: of the context in which the graph was recorded.
        roots: Tensors, or RRefs to such, of one element each unless there are ``grad_tensors``.
        retain_graph: keep saved tensors, so that the graph can be used again.
        grad_tensors: a seed or None for each root.
        inputs: only these tensors of this process get a gradient; by default all leaves.
        mode: "smart" (the default) or "fast". With the second, every tensor that was sent has to
            be a part of the graph.
        create_graph: gradients of such a graph have no history, so True is refused.

    Raises:
        RuntimeError: there is no such context, a root or seed does not fit, a rule has raised
            ("Error on Node <rank>: ...", with the error as its cause), or a gradient is awaited
            that nobody will send.
        HostLost: a host that the graph spans has died.
        TypeError, ValueError: an argument is none of these.
    """
    if type(context_id) is not int or not isinstance(roots, list | tuple):
        raise TypeError(
            "backward(): incompatible function arguments: context_id has to be an int and roots a "
            f"list of Tensors, not {type(context_id).__name__} and {type(roots).__name__}"
        )
    if create_graph:
        raise RuntimeError(
            "create_graph=True: the gradients of a graph that spans hosts have no history. Compute "
            "higher derivatives inside the functions that other hosts call."
        )
    is_smart = _is_smart(mode)
    here = service().autograd
    found = here.contexts.find(context_id)
    with recording_in(found):
        tensors = [root.to_here() if hasattr(root, "to_here") else root for root in roots]
    seeds = seed_tuple(grad_tensors, len(tensors))
    _check_roots(tensors, seeds)
    edges, given = check_roots(tensors, seeds)
    wanted = None if inputs is None else _checked_inputs(inputs)
    with span("torch::distributed::autograd::backward"):
        here.backward(found, edges, given, wanted, keep_graph=bool(retain_graph), is_smart=is_smart)


def _is_smart(mode: str | None) -> bool:
    if mode is None:
        return True
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: it is one of {', '.join(MODES)}")
    return mode == "smart"


def _check_roots(roots: Sequence[Any], seeds: Sequence[Any]) -> None:
    if not roots:
        raise RuntimeError("No tensors provided for gradient computation.")
    for index, (root, seed) in enumerate(zip(roots, seeds, strict=True)):
        if not isinstance(root, Tensor):
            raise TypeError(
                f"backward(): incompatible function arguments: root {index} is no Tensor, but "
                f"{type(root).__name__}"
            )
        if not root.requires_grad:
            raise RuntimeError(f"requires_grad not set on root {index}")
        if root.numel() != 1 and seed is None:
            raise RuntimeError(
                f"root {index} is not a scalar, all roots need to be scalar, or have a seed in "
                "grad_tensors"
            )
        if root.grad_fn is None:
            raise RuntimeError(f"root {index} does not have a valid gradient function.")


def _checked_inputs(inputs: Any) -> list[Tensor]:
    found = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    if not found:
        raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    for index, value in enumerate(found):
        if not isinstance(value, Tensor):
            raise TypeError(
                f"input {index} is no Tensor of this process, but {type(value).__name__}"
            )
        if not value.requires_grad:
            raise RuntimeError("One of the differentiated Tensors does not require grad")
    return found


def get_gradients(context_id: int) -> dict[Tensor, Tensor]:
    """The gradients that the backwards of a context have given in this process, by tensor.

    Args:
        context_id: what ``context()`` gives.

    Returns:
        For each leaf of this process its gradient, of its shape.

    Raises:
        RuntimeError: there is no such context.
        HostLost: a host that it spans has died.
    """
    return service().autograd.contexts.find(context_id).gradients()


# ---------------------------------------------------------------------- PyTorch's private names


def _new_context() -> DistAutogradContext:
    """A context, which is this thread's from now on."""
    contexts = service().autograd.contexts
    if contexts.of_this_thread() is not None:
        raise RuntimeError("Already have an autograd context id for this thread.")
    CURRENT.context = contexts.new()
    return CURRENT.context


def _release_context(context_id: int) -> None:
    """Leave a context on all hosts."""
    if CURRENT.context is not None and CURRENT.context.id == context_id:
        CURRENT.context = None
    service().autograd.release(context_id)


def _current_context() -> DistAutogradContext:
    """That of this thread.

    Raises:
        RuntimeError: it has none.
    """
    found = service().autograd.contexts.of_this_thread()
    if found is None:
        raise RuntimeError(
            "Current thread doesn't have a valid autograd context. Please wrap your code using: "
            "`with mpgrad.distributed.autograd.context() as context_id` to generate a valid context"
        )
    return found


def _retrieve_context(context_id: int) -> DistAutogradContext:
    """The context of that id.

    Raises:
        RuntimeError: there is none.
    """
    return service().autograd.contexts.find(context_id)


def _get_max_id() -> int:
    """The highest id of a context of this process."""
    rank = service().rank
    return (rank << NUMBER_BITS) + (1 << NUMBER_BITS) - 1


def _get_debug_info() -> dict[str, int]:
    """How many backwards run in this process, and how many contexts it knows."""
    here = service().autograd
    return {
        "num_current_backward_passes": here.backwards,
        "num_autograd_contexts": len(here.contexts.all()),
    }
