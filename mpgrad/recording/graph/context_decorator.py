"""ContextDecorator: a context manager that also decorates functions, generators and coroutines.

A generator is suspended at each ``yield`` and a coroutine at each ``await``: the context holds
while the body runs, and not for code that runs in between. (PyTorch does this for generators only.)
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

#: Makes a fresh context manager for each entry.
MakeContext = Callable[[], AbstractContextManager[Any]]


class ContextDecorator:
    """Base class of context managers that can be used as ``@context()``."""

    def factory(self) -> MakeContext:
        """A function that makes context managers like this one.

        It is not a bound method: a decorated function may be sent to a worker with all that it
        reads.
        """
        return type(self)  # type: ignore[return-value]

    def __call__(self, function: F) -> F:
        """``function`` inside this context, entered anew for every call."""
        if inspect.isclass(function):
            warnings.warn(
                "Decorating classes is deprecated and will be disabled in future versions. You "
                "should only decorate functions or methods. To preserve the current behavior of "
                "class decoration, you can directly decorate the `__init__` method and nothing "
                "else.",
                FutureWarning,
                stacklevel=2,
            )
        return _wrapped(self.factory(), function)  # type: ignore[return-value]


def _wrapped(make: MakeContext, function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Iterator[Any]:
            return (yield from _Steps(make, function(*args, **kwargs)))

        return generator
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            return await _Steps(make, function(*args, **kwargs))

        return coroutine
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            return _async_steps(make, function(*args, **kwargs))

        return async_generator

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with make():
            return function(*args, **kwargs)

    return plain


class _Steps(Generator[Any, Any, Any]):
    """A generator or coroutine, each step of which runs in a context of its own."""

    def __init__(self, make: MakeContext, inner: Any) -> None:
        self._make, self._inner = make, inner

    def send(self, value: Any) -> Any:
        with self._make():
            return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        with self._make():
            return self._inner.throw(*error)

    def close(self) -> None:
        with self._make():
            self._inner.close()

    def __await__(self) -> _Steps:
        return self


async def _async_steps(make: MakeContext, inner: Any) -> AsyncGenerator[Any, Any]:
    step = inner.asend(None)
    try:
        while True:
            value = await _Steps(make, step)
            try:
                step = inner.asend((yield value))
            except GeneratorExit:
                await _Steps(make, inner.aclose())
                raise
            except BaseException as error:
                step = inner.athrow(error)
    except StopAsyncIteration:
        return
