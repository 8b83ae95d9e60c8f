"""The names of ``torch.hub`` and ``torch.utils.model_zoo``: mpgrad reads no files of PyTorch's."""

from __future__ import annotations

from typing import Any, NoReturn


def load_state_dict_from_url(url: str, *args: Any, **kwargs: Any) -> NoReturn:
    """Say how weights come here.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        f"{url}: mpgrad reads no files of torch.save; save the weights as safetensors, with "
        "PyTorch, and load them as docs/interchange.md shows"
    )


load = load_url = load_state_dict_from_url
