"""Programs of random Functions that read and change state of every kind, as source.

Each kind of state has a line at the top of the module, lines that read it, and lines that change
it, in a backward or between two (``State``).
"""

from __future__ import annotations

import itertools
import random
import re
import tomllib
from pathlib import Path

from stress.natural_states import TOP, State, natural_states

STATES: dict[str, State] = {
    kind: State(**parts)
    for kind, parts in tomllib.loads((Path(__file__).parent / "states.toml").read_text()).items()
} | natural_states()

_HEAD = (
    """
import collections, concurrent.futures, contextlib, contextvars, dataclasses, datetime, decimal
import enum, functools, gc, importlib, itertools, json, locale, logging, math, os, pathlib, queue
import random, re, resource, signal, subprocess, sys, threading, time, types, warnings, weakref
import numpy as np
import mpgrad as mg
import settings_for_fuzz as lib
"""
    + TOP
)


def program(seed: int, number: int) -> tuple[str, list[str]]:
    """Program ``number`` of a run.

    Returns:
        Its source, which defines ``loss(x)`` and ``change(step)``, and the kinds of state in it.
    """
    chance = random.Random(f"{seed}:{number}")
    names = itertools.count(1)
    lines, between, classes = [], [], []
    used: list[tuple[str, State]] = []
    for _ in range(chance.choice((1, 2, 2, 3))):
        body, forward = [], []
        for _ in range(chance.choice((1, 1, 2))):
            if used and chance.random() < 0.3:
                state = chance.choice(used)[1]
            else:
                kind, state = _new_state(chance, f"{number}_{next(names)}")
                used.append((kind, state))
                lines.append(state.top)
                if state.between and chance.random() < 0.7:
                    between.append(state.between)
            forward.append(state.forward)
            parts = [state.read]
            if state.write and chance.random() < 0.4:
                parts.insert(chance.randrange(2), state.write)
            body += parts
        classes.append(f"F{number}_{next(names)}")
        lines.append(_function(classes[-1], forward, body))
    hooked = [state for _, state in used if state.between and not state.forward]
    hook = chance.choice(hooked).between if hooked and chance.random() < 0.3 else ""
    lines.append(_called("hook", "grad", [hook and f"step = 1\n{hook}"], "None"))
    lines.append(_loss(classes, chance, has_hook=bool(hook)))
    lines.append(_called("change", "step", between, "step"))
    if chance.random() < 0.3:
        lines = _inside_a_function(lines)
    return "\n".join([_HEAD, *lines]), [kind for kind, _ in used]


def _inside_a_function(lines: list[str]) -> list[str]:
    """The same program with variables of a function in place of globals."""
    body = re.sub(r"\bglobal (?=\w+$)", "nonlocal ", "\n".join(lines), flags=re.MULTILINE)
    called = ["return loss, change"]
    return ["def made():", *_indented([body, *called], 4), "loss, change = made()"]


def _new_state(chance: random.Random, own: str) -> tuple[str, State]:
    kind = chance.choice(list(STATES))
    return kind, State(*[part.replace("§", own) for part in STATES[kind]])


def _function(name: str, forward: list[str], body: list[str]) -> str:
    return "\n".join(
        [
            f"class {name}(mg.Function):",
            "    @staticmethod",
            "    def forward(ctx, x):",
            "        ctx.save_for_backward(x)",
            *_indented(forward),
            "        return x.detach() * 2.0",
            "",
            "    @staticmethod",
            "    def backward(ctx, grad):",
            *_indented(_declared(body)),
            "        return grad * float(value)",
        ]
    )


def _loss(classes: list[str], chance: random.Random, *, has_hook: bool) -> str:
    """Functions one after another, or beside each other, some twice; a hook on one of them."""
    lines, ends = [], []
    is_chain = chance.random() < 0.4
    for at, name in enumerate(classes):
        given = f"y{at - 1}" if is_chain and at else f"x * {at + 1}"
        lines.append(f"y{at} = {name}.apply({given})")
        ends.append(f"y{at}.sum()")
    if has_hook:
        lines.append(f"y{chance.randrange(len(classes))}.register_hook(hook)")
    if is_chain:
        ends = ends[-1:]
    elif chance.random() < 0.3:
        ends += [f"{name}.apply(x).sum()" for name in classes]
    lines.append(f"return mg.stack([{', '.join(ends)}]).sum()")
    return "\n".join(["def loss(x):", *_indented(lines, 4)])


def _called(name: str, parameter: str, body: list[str], returned: str) -> str:
    parts = _indented([*_declared(body), f"return {returned}"], 4)
    return "\n".join([f"def {name}({parameter}):", *parts])


def _declared(body: list[str]) -> list[str]:
    """``body`` with its declarations of globals in front, each once, and a value to begin with."""
    text = "\n".join(body)
    found = dict.fromkeys(re.findall(r"global (\w+); ", text))
    text = re.sub(r"global \w+; ", "", text)
    return [*[f"global {name}" for name in found], "value = 1.0", text]


def _indented(parts: list[str], columns: int = 8) -> list[str]:
    return [" " * columns + line for part in parts for line in part.splitlines()]
