"""Context managers that change how tensors are saved for backward: packed, on the CPU, or not.

They are public as ``mg.autograd.graph.saved_tensors_hooks`` and so on. ``hooks_in_force.HOOKS`` has
the pairs in force. Nodes with packed tensors run in the calling process (see ``engine.placement``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mpgrad.base.context_manager import contextmanager
from mpgrad.recording.tensors.hooks_in_force import HOOKS, HookPair
from mpgrad.recording.tensors.tensor import Tensor


class saved_tensors_hooks:
    """Pack every tensor that is saved inside, and unpack it when backward needs it.

    Example::

        def pack(x):
            path = new_file()
            np.save(path, x.numpy(force=True))
            return path

        with mg.autograd.graph.saved_tensors_hooks(pack, lambda path: mg.tensor(np.load(path))):
            y = model(x)

    Of nested pairs only the innermost packs. ``unpack_hook`` runs in the calling process, on the
    thread that called ``backward()``, each time the tensor is needed; the order of the tensors is
    not specified. Versions are not checked: if a hook keeps a tensor that is later changed in
    place, it unpacks the changed values.

    Args:
        pack_hook: gets the tensor to be saved, with recording off, and returns any object. It may
            not change the tensor, and should not keep it: a Node's own output that is kept keeps
            its Node alive (keep ``x.detach()``).
        unpack_hook: gets the result of ``pack_hook`` and returns a Tensor with the same values.
    """

    def __init__(
        self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]
    ) -> None:
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook

    def __enter__(self) -> None:
        """
        Raises:
            TypeError: a hook cannot be called.
            RuntimeError: hooks are disabled (:func:`disable_saved_tensors_hooks`).
        """
        if not callable(self.pack_hook) or not callable(self.unpack_hook):
            raise TypeError("saved_tensors_hooks: pack_hook and unpack_hook must be callable")
        HOOKS.push(HookPair(self.pack_hook, self.unpack_hook))

    def __exit__(self, *exc: object) -> None:
        HOOKS.pop()


class save_on_cpu(saved_tensors_hooks):
    """Keep tensors saved inside in the CPU's memory, and copy them back for backward.

    A tensor that is on the CPU already is kept as it is, without a copy.

    Args:
        pin_memory: copy each tensor to memory of its own, also one that is on the CPU already.
        device_type: of the other devices; kept for PyTorch's callers.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        def pack(tensor: Tensor) -> tuple[Any, Tensor]:
            kept = tensor.detach().to("cpu")
            return tensor.device, kept.clone() if pin_memory else kept

        def unpack(packed: tuple[Any, Tensor]) -> Tensor:
            device, tensor = packed
            return tensor.to(device)

        super().__init__(pack, unpack)


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """Inside, entering a pair of saved-tensor hooks raises ``RuntimeError(error_message)``.

    Raises:
        RuntimeError: with ``error_message``, too, if a pair is in force already.
    """
    before = HOOKS.thread.state
    if before.pairs:
        raise RuntimeError(error_message)
    HOOKS.thread.state = before._replace(forbidden=error_message)
    try:
        yield
    finally:
        HOOKS.thread.state = HOOKS.thread.state._replace(forbidden=before.forbidden)
