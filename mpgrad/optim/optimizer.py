"""Optimizer: parameter groups, their options and their state; subclasses define ``step``."""

from __future__ import annotations

import copy
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypedDict, Unpack

from mpgrad.arrays.cpu.array_program import TRACING
from mpgrad.arrays.cuda.device_arrays import on
from mpgrad.autograd.profiling.ranges import ANNOTATION, span
from mpgrad.optim.checked_options import check_options
from mpgrad.optim.optimizer_hooks import WithHooks, with_step_hooks
from mpgrad.recording.graph.grad_modes import enable_grad
from mpgrad.recording.tensors import saved_tensor_clones
from mpgrad.recording.tensors.of_pytorch import kind_of
from mpgrad.recording.tensors.tensor import Tensor

ParamGroup = dict[str, Any]


class Implementation(TypedDict, total=False):
    """Arguments by which PyTorch's optimizers choose among implementations of the same formulas.

    There is one here, so they change nothing; ``differentiable`` must be False.
    """

    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool


class Optimizer(WithHooks):
    """Base class of optimizers.

    Args:
        params: Tensors, or pairs of a name and a Tensor (``named_parameters()``), or dicts that
            hold such "params" and options of their own.
        defaults: options of groups that do not set them.
        implementation: only there for PyTorch's callers.

    Attributes:
        param_groups: dicts with "params" and all options; options may be changed between steps.
        state: the optimizer's state by parameter; empty for a parameter that has none yet.

    Raises:
        TypeError: a parameter is not a Tensor, an option of a wrong type, or an argument unknown.
        NotImplementedError: steps are to be differentiable.
        ValueError: there is no parameter, one is not a leaf, or one occurs twice.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup],
        defaults: dict[str, Any],
        **implementation: Unpack[Implementation],
    ) -> None:
        super().__init__()
        self._check_implementation(implementation)
        self.defaults = defaults
        self.param_groups: list[ParamGroup] = []
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, "
                "but got a Tensor; put it into a list"
            )
        given = list(params)
        if not given:
            raise ValueError("optimizer got an empty parameter list")
        for group in given if isinstance(given[0], dict) else [{"params": given}]:
            self.add_param_group(group)  # type: ignore[arg-type]

    def _check_implementation(self, implementation: Implementation) -> None:
        for name in implementation:
            if name not in Implementation.__annotations__:
                kind = type(self).__name__
                raise TypeError(f"{kind}.__init__() got an unexpected keyword argument {name!r}")
        if implementation.get("differentiable"):
            raise NotImplementedError(
                "differentiable=True: steps change parameters in place, without a history; write "
                "them as operations on Tensors, with mpgrad.autograd.grad(..., create_graph=True)"
            )

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a dict of "params" and the options in which it differs from the defaults.

        Raises:
            TypeError: it is no dict, or its parameters are no Tensors, or have no order; or an
                option is of a wrong type.
            ValueError: a parameter is no leaf, or the optimizer has it already; or an option is
                out of range.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        params = param_group["params"]
        if isinstance(params, set):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the "
                "ordering of tensors in sets will change between runs. Please use a list instead."
            )
        group = {**self.defaults, **param_group}
        group["params"] = [params] if isinstance(params, Tensor) else list(params)
        if any(isinstance(parameter, tuple) for parameter in group["params"]):
            _take_names(group)
        if any(("param_names" in other) != ("param_names" in group) for other in self.param_groups):
            raise ValueError(
                "all optimizer param groups should be with/without names. Got some with names and "
                "some without"
            )
        others = {id(parameter) for other in self.param_groups for parameter in other["params"]}
        for parameter in group["params"]:
            if not isinstance(parameter, Tensor):
                raise TypeError(
                    f"optimizer can only optimize Tensors, but one of the params is "
                    f"{kind_of(parameter)}"
                )
            if not parameter.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor")
            if id(parameter) in others:
                raise ValueError("some parameters appear in more than one parameter group")
        if len(set(map(id, group["params"]))) < len(group["params"]):
            warnings.warn(
                "optimizer contains a parameter group with duplicate parameters; each step updates "
                "these several times",
                UserWarning,
                stacklevel=4,
            )
        lr = group.get("lr")
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        check_options(type(self), group)
        self._check_options(group)
        self.param_groups.append(group)

    def _check_options(self, group: ParamGroup) -> None:
        """Raise ValueError if an option of ``group`` is out of range."""

    @with_step_hooks
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a ``.grad``.

        Args:
            closure: computes the loss and its gradients again; called first.

        Returns:
            The result of ``closure``, else None.
        """
        with span(f"Optimizer.step#{type(self).__name__}.step", ANNOTATION):
            return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        program = TRACING.program() if TRACING.entered else None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if program is not None:
                        program.update(self, parameter, parameter.grad, group)
                        parameter._version_counter.count()
                        continue
                    if saved_tensor_clones.active is not None:
                        saved_tensor_clones.active.before_write(parameter)
                    with on(parameter.device):
                        self._update(parameter, parameter.grad, group)
                    parameter._version_counter.count()
        return loss

    def _update(self, parameter: Tensor, grad: Tensor, group: ParamGroup) -> None:
        """Change ``parameter._array`` in place; ``grad`` must not change."""
        raise NotImplementedError

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop every ``.grad``, or fill it with zeros."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if set_to_none:
                    parameter.grad = None
                else:
                    parameter.grad = parameter.grad.detach().zero_()

    # ------------------------------------------------------------------ state

    def _numbered(self) -> list[Tensor]:
        """All parameters; their positions are their names in a state dict."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """Options and state, parameters named by their position; the state is not copied."""
        self._call_hooks("state_dict_pre")
        numbers: dict[int, int] = {}
        begin = 0
        for group in self.param_groups:
            own = {id(p): begin + k for k, p in enumerate(group["params"])}
            numbers = own | numbers
            begin += len(group["params"])
        found = {
            "state": {
                numbers.get(id(key), key): dict(kept) if isinstance(kept, dict) else kept
                for key, kept in self.state.items()
            },
            "param_groups": [
                {**group, "params": [numbers[id(parameter)] for parameter in group["params"]]}
                for group in self.param_groups
            ],
        }
        return self._through_hooks("state_dict_post", found)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over options and a copy of the state of an optimizer of the same structure.

        Raises:
            KeyError: it is not the state of an optimizer.
            ValueError: the groups or their sizes differ.
        """
        state_dict = self._through_hooks("load_pre", state_dict.copy())
        if not {"state", "param_groups"} <= set(state_dict):
            raise KeyError(
                "a state dict of an optimizer has 'state' and 'param_groups', but this one has "
                f"{list(state_dict)[:8]}"
            )
        groups = state_dict["param_groups"]
        sizes = [len(group["params"]) for group in self.param_groups]
        if sizes != [len(group["params"]) for group in groups]:
            raise ValueError(
                "loaded state dict has parameter groups of other sizes: "
                f"{[len(group['params']) for group in groups]}, expected {sizes}"
            )
        names = [name for group in groups for name in group["params"]]
        parameter_of = dict(zip(names, self._numbered(), strict=True))
        self.state = defaultdict(dict)
        for name, kept in state_dict["state"].items():
            if name in parameter_of:
                self.state[parameter_of[name]] = _beside(parameter_of[name], kept)
            else:
                self.state[name] = kept
        for group, loaded in zip(self.param_groups, groups, strict=True):
            group.update(
                {name: value for name, value in copy.deepcopy(loaded).items() if name != "params"}
            )
        self._call_hooks("load_post")

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for number, group in enumerate(self.param_groups):
            lines += [*[""][:number], f"Parameter Group {number}"]
            lines += [f"    {name}: {group[name]}" for name in sorted(group) if name != "params"]
        return "\n".join([*lines, ")"])


def _take_names(group: ParamGroup) -> None:
    """Let "params" be Tensors, of pairs of a name and a Tensor, and "param_names" the names.

    Raises:
        ValueError: some have no name.
    """
    if not all(isinstance(parameter, tuple) for parameter in group["params"]):
        raise ValueError(
            "all optimizer params should be with/without names. Some param names are missing"
        )
    group["param_names"] = [name for name, _ in group["params"]]
    group["params"] = [parameter for _, parameter in group["params"]]


def _beside(parameter: Tensor, kept: Any) -> Any:
    """A copy of a parameter's state, on its device.

    Its names are the objects that a fresh state has, so that it is pickled to the same bytes.
    """
    if isinstance(kept, dict):
        return {
            sys.intern(name) if type(name) is str else name: _beside(parameter, value)
            for name, value in kept.items()
        }
    if isinstance(kept, list):
        return [_beside(parameter, value) for value in kept]
    copied = copy.deepcopy(kept)
    return copied.to(parameter.device) if isinstance(kept, Tensor) else copied
