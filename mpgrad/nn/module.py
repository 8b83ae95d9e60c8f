"""Module: a tree of layers with their parameters and buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from mpgrad.base.html_text import html_table
from mpgrad.nn.module_hooks import OF_ALL, HasHooks, HookedCall
from mpgrad.nn.parameter import Buffer, Parameter
from mpgrad.nn.state_dicts import HasStateDict
from mpgrad.ops.new_tensors.creation import empty, empty_like
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.of_pytorch import kind_of
from mpgrad.recording.tensors.tensor import Tensor

Self = TypeVar("Self", bound="Module")


class Module(HasHooks, HasStateDict):
    """Base class of layers and networks.

    A subclass calls ``super().__init__()`` first, assigns Parameters, Modules and (with
    ``register_buffer``) buffers as attributes, and defines ``forward``. Names are paths of
    attributes, as in ``"features.0.weight"``.
    """

    training: bool

    def __init__(self) -> None:
        vars(self).update(
            training=True, _parameters={}, _buffers={}, _modules={}, _non_persistent=set()
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._hooks is not None or OF_ALL:
            return HookedCall(self).run(args, kwargs)
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output; subclasses define it."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function'
        )

    # ------------------------------------------------------------------ attributes

    def _tables(self) -> tuple[dict[str, Any], ...]:
        return self._parameters, self._modules, self._buffers

    def __setattr__(self, name: str, value: Any) -> None:
        if "_parameters" not in vars(self):
            if isinstance(value, Parameter | Module):
                raise AttributeError(
                    f"cannot assign {name!r} before Module.__init__() call; call "
                    "super().__init__() first"
                )
            object.__setattr__(self, name, value)
            return
        table = self._table_for(name, value)
        if table is None:
            object.__setattr__(self, name, value)
            return
        vars(self).pop(name, None)
        for other in self._tables():
            if other is not table:
                other.pop(name, None)
        table[name] = value
        if table is not self._buffers:
            self._non_persistent.discard(name)
        if isinstance(value, Buffer):
            (self._non_persistent.discard if value.persistent else self._non_persistent.add)(name)

    def _table_for(self, name: str, value: Any) -> dict[str, Any] | None:
        """Where ``value`` is registered under ``name``; None for a plain attribute."""
        if isinstance(value, Parameter):
            return self._parameters
        if isinstance(value, Module):
            return self._modules
        if isinstance(value, Buffer):
            return self._buffers
        for table, kind in (
            (self._parameters, Parameter),
            (self._modules, Module),
            (self._buffers, Tensor),
        ):
            if name in table:
                if value is not None and not isinstance(value, kind):
                    word = _WORDS[kind]
                    raise TypeError(
                        f"cannot assign {type(value).__name__!r} as {word} {name!r} "
                        f"({kind.__name__} or None expected)"
                    )
                return table
        return None

    def __getattr__(self, name: str) -> Any:
        # Only called where normal lookup failed; pickle and copy ask before __init__ has run.
        own = self.__dict__
        for table in ("_parameters", "_buffers", "_modules"):
            if table in own and name in own[table]:
                return own[table][name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for table in self._tables():
            if name in table:
                del table[name]
                self._non_persistent.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for table in self._tables() for name in table)})

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a Parameter; None reserves the name (as for ``bias=False``).

        Raises:
            TypeError: ``param`` is neither a Parameter nor None.
            KeyError: as ``add_module``.
        """
        if not isinstance(param, Parameter) and param is not None:
            raise TypeError(
                f"cannot assign {type(param).__name__!r} object to parameter {name!r} "
                "(Parameter or None required)"
            )
        self._check_name(name, self._parameters)
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a Tensor that is state but not trained; ``state_dict`` holds persistent ones.

        Raises:
            TypeError: ``tensor`` is neither a Tensor nor None.
            KeyError: as ``add_module``.
        """
        if not isinstance(tensor, Tensor) and tensor is not None:
            raise TypeError(
                f"cannot assign {type(tensor).__name__!r} object to buffer {name!r} "
                "(Tensor or None required)"
            )
        self._check_name(name, self._buffers)
        self._buffers[name] = tensor
        (self._non_persistent.discard if persistent else self._non_persistent.add)(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a child.

        Raises:
            TypeError: ``module`` is neither a Module nor None.
            KeyError: ``name`` is taken, is empty, or has a point.
        """
        if not isinstance(module, Module) and module is not None:
            raise TypeError(f"{kind_of(module)} is not a Module subclass")
        self._check_name(name, self._modules)
        self._modules[name] = module

    register_module = add_module

    def _check_name(self, name: str, table: dict[str, Any]) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a name in a Module should be a string, not {type(name).__name__}")
        if "." in name or not name:
            raise KeyError(f'a name in a Module can\'t contain "." or be empty, got {name!r}')
        if name not in table and hasattr(self, name):
            raise KeyError(f"attribute {name!r} already exists")

    # ------------------------------------------------------------------ walking the tree

    def children(self) -> Iterator[Module]:
        """Direct children."""
        return (child for _, child in self.named_children())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Direct children with their names, each once."""
        seen: set[int] = set()
        for name, child in self._modules.items():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                yield name, child

    def modules(self) -> Iterator[Module]:
        """This Module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """The same with names; this Module's own name is ``prefix``.

        Args:
            memo: Modules that are left out, with all below them; those that come are added.
            prefix: what each name begins with.
            remove_duplicate: whether a Module that has several names comes with its first only.
        """
        seen: set[Module] = set() if memo is None else memo
        if self in seen:
            return
        if remove_duplicate:
            seen.add(self)
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                path = f"{prefix}.{name}" if prefix else name
                yield from child.named_modules(seen, path, remove_duplicate)

    def get_submodule(self, target: str) -> Module:
        """The module of that name as ``named_modules`` gives it; itself for an empty one.

        Raises:
            AttributeError: there is none.
        """
        module = self
        for name in target.split(".") if target else ():
            inner = module._modules.get(name)
            if inner is None:
                raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
            module = inner
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put ``module`` in the place that ``named_modules`` gives that name.

        Args:
            target: the name.
            module: what comes there.
            strict: there has to be a Module already.

        Raises:
            ValueError: the name is empty, or ``module`` no Module.
            AttributeError: there is no such place.
        """
        if not target:
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, Module):
            raise ValueError(f"`module` is not an nn.Module, found {type(module)}")
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        if strict and name not in owner._modules:
            raise AttributeError(f"{type(owner).__name__} has no attribute `{name}`")
        setattr(owner, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter that ``named_parameters`` gives that name, or AttributeError."""
        return self._entry("_parameters", target)  # type: ignore[no-any-return]

    def get_buffer(self, target: str) -> Tensor:
        """The buffer that ``named_buffers`` gives that name, or AttributeError."""
        return self._entry("_buffers", target)  # type: ignore[no-any-return]

    def _entry(self, table: str, target: str) -> Any:
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        if vars(owner)[table].get(name) is None:
            raise AttributeError(f"`{name}` is not in the {table[1:]} of {type(owner).__name__}")
        return vars(owner)[table][name]

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All Parameters, each once; without ``recurse`` only those of this Module itself."""
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """The same with names; ``remove_duplicate`` is that of ``named_modules``."""
        return self._named_entries("_parameters", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers, each once."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """The same with names; ``remove_duplicate`` is that of ``named_modules``."""
        return self._named_entries("_buffers", prefix, recurse, remove_duplicate)

    def _named_entries(
        self, table: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        places = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
        for path, module in places if recurse else [(prefix, self)]:
            for name, value in vars(module)[table].items():
                if value is not None and not (remove_duplicate and id(value) in seen):
                    seen.add(id(value))
                    yield f"{path}.{name}" if path else name, value

    def apply(self: Self, function: Callable[[Module], None]) -> Self:
        """Call ``function`` on every Module below and then on this one."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    # ------------------------------------------------------------------ modes and gradients

    def train(self: Self, mode: bool = True) -> Self:
        """Set ``training``, which dropout and batch normalisation look at, everywhere.

        Raises:
            ValueError: ``mode`` is no bool.
        """
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: Self) -> Self:
        """``train(False)``."""
        return self.train(False)

    def requires_grad_(self: Self, requires_grad: bool = True) -> Self:
        """Train all Parameters, or freeze them."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop every ``.grad``, or fill it with zeros."""
        for parameter in self.parameters():
            if parameter.grad is None:
                continue
            if set_to_none:
                parameter.grad = None
            else:
                parameter.grad = parameter.grad.detach().zero_()

    def to(self: Self, *args: Any, **kwargs: Any) -> Self:
        """Move to a device or convert floating Parameters and buffers, as ``Tensor.to``.

        Raises:
            TypeError: the dtype is neither a floating nor a complex one.
        """
        probe = empty(0).to(*args, **kwargs)
        if probe.dtype.kind not in "fc":
            raise TypeError(
                "nn.Module.to only accepts floating point or complex dtypes, but got desired "
                f"dtype={probe.dtype}"
            )

        def converted(tensor: Tensor) -> Tensor:
            found = tensor.to(*args, **kwargs)
            fits = tensor.dtype.kind in "fc" or found.dtype == tensor.dtype
            return found if fits else tensor.to(found.device)

        return self._apply(converted)

    def cuda(self: Self, device: Any = None) -> Self:
        """On a GPU: that one, or the thread's current one.

        Raises:
            RuntimeError: there is none.
        """
        return self.to("cuda" if device is None else device)

    def cpu(self: Self) -> Self:
        """On the CPU."""
        return self.to("cpu")

    def double(self: Self) -> Self:
        """In float64."""
        return self.to(np.float64)

    def float(self: Self) -> Self:
        """In float32."""
        return self.to(np.float32)

    def half(self: Self) -> Self:
        """In float16."""
        return self.to(np.float16)

    def type(self: Self, dst_type: Any) -> Self:
        """Parameters and buffers of every dtype in this one."""
        return self._apply(lambda tensor: tensor.type(dst_type))

    def to_empty(self: Self, *, device: Any, recurse: bool = True) -> Self:
        """On a device, with elements of any value."""
        return self._apply(lambda tensor: empty_like(tensor, device=device), recurse)

    def _apply(self: Self, function: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Replace the values of Parameters, of their gradients, and of buffers by ``function``."""
        for child in self.children() if recurse else ():
            child._apply(function)
        for tensor in (*self.parameters(False), *self.buffers(False)):
            with no_grad():
                tensor.data = function(tensor.detach())
                if tensor._grad is not None:
                    tensor.grad = function(tensor._grad.detach())
        return self

    # ------------------------------------------------------------------ display

    def extra_repr(self) -> str:
        """The text of ``repr`` in the parentheses."""
        return ""

    def __repr__(self) -> str:
        head, extra = type(self).__name__, self.extra_repr()
        rows = [
            f"({name}): " + repr(child).replace("\n", "\n  ")
            for name, child in self._modules.items()
        ]
        if not rows:
            return f"{head}({extra})"
        lines = [extra, *rows] if extra else rows
        return f"{head}(\n  " + "\n  ".join(lines) + "\n)"

    def _repr_html_(self) -> str:
        """For notebooks: each module with its own parameters."""
        rows, total = [], 0
        for name, module in self.named_modules():
            own = {key: p for key, p in module._parameters.items() if p is not None}
            count = sum(parameter.numel() for parameter in own.values())
            shapes = ", ".join(f"{key} {tuple(p.shape)}" for key, p in own.items())
            indent = "\u2003" * (name.count(".") + 1 if name else 0)
            kind = f"{type(module).__name__}({module.extra_repr()})"
            rows.append((f"{indent}{name}", kind, shapes, f"{count:,}" if count else ""))
            total += count
        return html_table(("module", "kind", "parameters", f"{total:,} numbers"), rows)


#: What the error messages call them.
_WORDS: dict[Any, str] = {Parameter: "parameter", Module: "child module", Tensor: "buffer"}
