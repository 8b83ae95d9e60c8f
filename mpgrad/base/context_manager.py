"""contextmanager(): as that of ``contextlib``, for ``with`` blocks that user code runs in.

That one sets ``__traceback__`` of an exception that passes, which a class of the user's may refuse
(a frozen dataclass): the refusal would take its place.
"""

from __future__ import annotations

import contextlib
import functools
from types import TracebackType
from typing import TYPE_CHECKING, Any


class _Passing(contextlib._GeneratorContextManager[Any, None, None]):
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if kind is None:
            return super().__exit__(kind, value, trace)
        value = kind() if value is None else value
        try:
            self.gen.throw(value)
        except StopIteration as error:
            return error is not value
        except BaseException as error:
            # Python makes a RuntimeError of a StopIteration that passes a generator.
            is_wrapped = isinstance(value, StopIteration) and error.__cause__ is value
            if error is not value and not is_wrapped:
                raise
            BaseException.with_traceback(value, trace)
            return False
        self.gen.close()
        raise RuntimeError("generator didn't stop after throw()")


if TYPE_CHECKING:
    contextmanager = contextlib.contextmanager
else:

    def contextmanager(function: Any) -> Any:
        """A function that makes context managers, of a generator function that yields once."""

        @functools.wraps(function)
        def make(*args: Any, **kwargs: Any) -> Any:
            return _Passing(function, args, kwargs)

        return make
