"""PyTorch's databases of layers and of optimizers, in the form of that of operators.

A layer becomes a function of the arguments of its constructor, of its parameters and buffers, and
of its inputs; an optimizer one of its options, which takes a few steps with fixed gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

_RANDOM = """
AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout FractionalMaxPool2d
FractionalMaxPool3d RReLU
"""
#: Layers that draw random numbers while they train.
RANDOM_LAYERS = frozenset(f"nn.{name}" for name in _RANDOM.split())
#: Steps of each optimizer.
STEPS = 4


#: State that is a number, in PyTorch often as a tensor.
_NUMBERS = ("eta", "func_evals", "mu", "mu_product", "n_iter", "step")


class Sample(NamedTuple):
    """Arguments, as the database of operators has them."""

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Wrong(NamedTuple):
    """Arguments that are refused."""

    sample_input: Sample


class _Entry:
    """What the entries of both databases have in common."""

    op = method_variant = inplace_variant = operator_variant = inplace_operator_variant = None
    supports_out = False

    def __init__(self, info: Any, name: str, error_inputs_func: Any) -> None:
        self.info, self.name, self.error_inputs_func = info, name, error_inputs_func


class LayerEntry(_Entry):
    """A layer."""

    supports_autograd = True

    def __init__(self, info: Any, name: str) -> None:
        super().__init__(info, name, info.module_error_inputs_func)
        self.supports_gradgrad = info.supports_gradgrad

    def supported_dtypes(self, device: str) -> Any:
        return self.info.supported_dtypes(device)

    def sample_inputs(self, device: str, dtype: Any, requires_grad: bool) -> Iterator[Sample]:
        for training in (False, True) if self.info.train_and_eval_differ else (True,):
            for given in self._given(self.info.module_inputs_func, device, dtype, training):
                yield self._sample(given, dtype, training)

    def error_inputs(self, device: str) -> Iterator[Wrong]:
        import torch

        for error in self._given(self.error_inputs_func, device, torch.float64, True):
            given = error.module_error_input
            if error.error_on.name == "CONSTRUCTION_ERROR":
                made = given.constructor_input
                yield Wrong(Sample(made.args, (made.kwargs, {}, {}, True, (), {}), {}))
            else:
                yield Wrong(self._sample(given, torch.float64, True))

    def _given(self, function: Any, device: str, dtype: Any, training: bool) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(
                self.info, device=device, dtype=dtype, requires_grad=False, training=training
            )

    def _sample(self, given: Any, dtype: Any, training: bool) -> Sample:
        made, inputs = given.constructor_input, given.forward_input
        layer = self.info.module_cls(*made.args, **made.kwargs).to(dtype)
        parameters = {name: p.detach().clone() for name, p in layer.named_parameters()}
        kept = layer.state_dict()
        buffers = {name: b.clone() for name, b in layer.named_buffers() if name in kept}
        args = (made.kwargs, parameters, buffers, training, inputs.args, inputs.kwargs)
        return Sample(made.args, args, {})


class OptimizerEntry(_Entry):
    """An optimizer."""

    supports_autograd = supports_gradgrad = False

    def __init__(self, info: Any, name: str) -> None:
        super().__init__(info, name, info.optim_error_inputs_func)

    def supported_dtypes(self, device: str) -> Any:
        import torch

        if self.info.step_requires_closure:  # it goes on where float32 has rounding alone
            return {torch.float64}
        reals = {torch.float32, torch.float64}
        return reals | {torch.complex128} if self.info.supports_complex else reals

    def sample_inputs(self, device: str, dtype: Any, requires_grad: bool) -> Iterator[Sample]:
        for given in self.info.optim_inputs_func(device=device):
            yield self._sample(given, dtype)

    def error_inputs(self, device: str) -> Iterator[Wrong]:
        import torch

        for error in self.error_inputs_func(device, torch.float64):
            yield Wrong(self._sample(error.optimizer_error_input, torch.float64))

    def _sample(self, given: Any, dtype: Any) -> Sample:
        import torch

        generator = torch.Generator().manual_seed(0)
        shapes = ((3, 2), (2, 2)) if self.name == "optim.Muon" else ((3, 2), (4,), ())

        def draw() -> list[Any]:
            return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]

        parameters = draw() if given.params is None else given.params
        return Sample(given.kwargs, (parameters, [draw() for _ in range(STEPS)]), {})


def layers() -> dict[str, list[Any]]:
    """The layers of dense tensors by name."""
    from torch import nn
    from torch.testing._internal.common_modules import module_db

    found: dict[str, list[Any]] = {}
    for info in module_db:
        name = info.module_cls.__name__
        if getattr(nn, name, None) is info.module_cls and not info.is_lazy:
            found.setdefault(f"nn.{name}", []).append(LayerEntry(info, f"nn.{name}"))
    return dict(sorted(found.items()))


def optimizers() -> dict[str, list[Any]]:
    """The optimizers of dense gradients by name."""
    from torch.testing._internal.common_optimizers import optim_db

    entries = [
        OptimizerEntry(info, f"optim.{info.name}")
        for info in optim_db
        if not info.only_supports_sparse_grads
    ]
    return {entry.name: [entry] for entry in sorted(entries, key=lambda entry: entry.name)}


def is_layer(name: str) -> bool:
    """Whether it is the name of a layer."""
    return name.startswith("nn.") and not name.startswith("nn.functional.")


def is_optimizer(name: str) -> bool:
    """Whether it is the name of an optimizer."""
    return name.startswith("optim.")


# ------------------------------------------------------------------------------------- as functions


def layer_function(library: Any, layer_class: Any) -> Callable[..., Any]:
    """Make a layer, give it these parameters and buffers, and call it: what it gives, and its
    buffers afterwards."""

    def function(
        args: Any,
        kwargs: dict[str, Any],
        parameters: dict[str, Any],
        buffers: dict[str, Any],
        training: bool,
        inputs: Any,
        named: dict[str, Any],
    ) -> Any:
        layer = layer_class(*args, **kwargs)
        layer.train(training)
        state = layer.state_dict()
        if inputs and set(state) != {*parameters, *buffers}:
            raise AssertionError(f"state dict of {sorted(state)}")
        kept = {name: value.detach().clone() for name, value in buffers.items()}
        for name, tensor in {**parameters, **kept}.items():
            _put(layer, name, tensor)
        result = layer(*inputs, **named)
        return (result, tuple(kept[name] for name in sorted(kept)))

    return function


def _put(layer: Any, name: str, tensor: Any) -> None:
    """Let a parameter or buffer of a layer be ``tensor``, which has a history."""
    path, _, last = name.rpartition(".")
    owner = layer.get_submodule(path)
    held = owner._parameters if last in owner._parameters else owner._buffers
    held[last] = tensor
    flat = getattr(owner, "_flat_weights", None)  # PyTorch's recurrent layers hold them twice
    if flat:
        flat[owner._flat_weights_names.index(last)] = tensor


def optimizer_function(library: Any, optimizer_class: Any) -> Callable[..., Any]:
    """Take steps: the parameters after them, and the state with its names."""

    def function(options: dict[str, Any], parameters: Any, gradients: list[list[Any]]) -> Any:
        leaves = parameters
        if isinstance(parameters, list) and all(hasattr(p, "detach") for p in parameters):
            leaves = [library.nn.Parameter(p.detach().clone()) for p in parameters]
        optimizer = optimizer_class(leaves, **options)
        for wanted in gradients:

            def closure(wanted: list[Any] = wanted) -> Any:
                optimizer.zero_grad()
                distances = [
                    (p - g).abs().pow(2).sum() for p, g in zip(leaves, wanted, strict=True)
                ]
                total = sum(distances)
                total.backward()
                return total

            for leaf, gradient in zip(leaves, wanted, strict=True):
                leaf.grad = gradient.clone()
            optimizer.step(closure if optimizer_class.__name__ == "LBFGS" else None)
        state = optimizer.state_dict()["state"]
        kept = tuple(
            (name, float(np.float32(value)) if name in _NUMBERS else value)
            for key in sorted(state)
            for name, value in sorted(state[key].items())
            if optimizer_class.__name__ != "LBFGS" or name in ("func_evals", "n_iter")
        )
        return tuple(leaf.detach() for leaf in leaves), kept

    return function
