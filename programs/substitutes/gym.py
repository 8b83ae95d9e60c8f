"""Gymnasium under the name of its predecessor; every environment starts from the same seed."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import *  # noqa: F403


def make(name: str, **options: Any) -> Any:
    """An environment; ``options`` that gymnasium no longer has are dropped."""
    options.pop("autoreset", None)
    environment = gymnasium.make(name, **options)
    environment.reset(seed=0)
    environment.action_space.seed(0)
    return environment
