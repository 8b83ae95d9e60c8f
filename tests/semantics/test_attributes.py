"""Group R: attributes of tensors, conversions, copies and pickles."""

from __future__ import annotations

import copy
import multiprocessing
import multiprocessing.reduction
import pickle
import re
import warnings
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.tensor_methods import values as tensor_values
from tests.semantics.paired import error_of, leaf, paired, row, values

# ---------------------------------------------------------------------- requires_grad


@paired("R1")
def test_requires_grad_of_computed_tensors_is_fixed(lib: Any) -> Any:
    y = leaf(lib, 3) * 2
    words = "you can only change requires_grad flags of leaf variables."
    return (
        error_of(lambda: setattr(y, "requires_grad", False), words, "var.detach()"),
        error_of(lambda: setattr(y, "requires_grad", True), words),
        error_of(lambda: y.requires_grad_(False), words),
        y.requires_grad_() is y,
        y.detach().requires_grad,
    )


@paired("R1")
def test_only_floating_and_complex_tensors_require_grad(lib: Any) -> Any:
    words = "dtype can require gradients"
    whole = lib.ones(3, dtype=lib.int64)
    return (
        error_of(whole.requires_grad_, words),
        error_of(lambda: setattr(lib.tensor([True]), "requires_grad", True), words),
        error_of(lambda: lib.tensor([1, 2], requires_grad=True), words),
        error_of(lambda: lib.ones(3, dtype=lib.int32, requires_grad=True), words),
        whole.requires_grad_(False).requires_grad,
        lib.ones(3, dtype=lib.float16).requires_grad_().requires_grad,
        lib.ones(3, dtype=lib.complex64).requires_grad_().requires_grad,
    )


@paired("R1")
def test_requires_grad_is_a_bool(lib: Any) -> Any:
    x = lib.ones(3)
    return (
        [
            error_of(lambda value=value: setattr(x, "requires_grad", value), "must be a bool")
            for value in (1, None, "yes")
        ],
        error_of(lambda: x.requires_grad_(1), "must be bool, not int"),
        x.requires_grad,
    )


@paired("R1")
def test_a_leaf_may_stop_and_start_requiring_grad(lib: Any) -> Any:
    x = leaf(lib, 3)
    x.requires_grad = False
    frozen = x * 2
    x.requires_grad_(True)
    (x * 3).sum().backward()
    return frozen.requires_grad, frozen.is_leaf, x.grad


# ---------------------------------------------------------------------- the place in the graph


@paired("R2")
def test_leaves_and_outputs(lib: Any) -> Any:
    x, constant = leaf(lib, 4), lib.ones(4, dtype=lib.float64)
    y = x * constant
    parts = y.split(2)
    with lib.no_grad():
        unrecorded = x * 2
    tensors = [x, constant, y, *parts, unrecorded, y.detach(), constant * 2]
    return [(t.is_leaf, t.requires_grad, t.grad_fn is None, t.output_nr) for t in tensors]


@paired("R2")
def test_what_cannot_be_set_or_deleted(lib: Any) -> Any:
    y = leaf(lib, 3) * 2
    names = ("grad_fn", "is_leaf", "output_nr", "_version", "shape", "dtype", "retains_grad")
    return (
        [error_of(lambda name=name: setattr(y, name, None)) for name in (*names, "device")],
        [error_of(lambda name=name: delattr(y, name)) for name in (*names, "device", "ndim")],
        error_of(lambda: delattr(y, "requires_grad"), "requires_grad must be a bool"),
        error_of(lambda: delattr(y, "data"), "Deleting tensor data is not allowed"),
        error_of(lambda: setattr(y, "data", None), "Variable data has to be a tensor"),
        error_of(lambda: setattr(y, "data", lib.tensor([1, 2, 3]))),
        y.requires_grad,
        y,
    )


@paired("R2")
def test_users_may_add_attributes(lib: Any) -> Any:
    x = leaf(lib, 3)
    x.note, x.number = "mine", 3
    del x.number
    return x.note, hasattr(x, "number")


# ---------------------------------------------------------------------- conversions


@paired("R3")
def test_numpy_needs_a_tensor_without_history(lib: Any) -> Any:
    x = leaf(lib, 3)
    words = "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
    with lib.no_grad():
        inside = x.numpy().copy()
    return (
        error_of(x.numpy, words),
        error_of(lambda: (x * 2).numpy(), words),
        error_of(lambda: np.asarray(x), words),
        x.numpy(force=True),
        x.detach().numpy(),
        inside,
    )


@paired("R3")
def test_numpy_shares_memory(lib: Any) -> Any:
    x = lib.ones(3, dtype=lib.float64)
    array = x.numpy()
    array[0] = 7
    x[1] = 8
    return x, array


@paired("R3")
def test_numbers_of_tensors_with_history(lib: Any) -> Any:
    x = lib.tensor([2.5], dtype=lib.float64, requires_grad=True)
    y = (x * 2).sum()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        numbers = [y.item(), float(y), int(y), bool(y), complex(y).real, y.tolist(), f"{y:.2f}"]
    return numbers, error_of(leaf(lib, 3).item, "cannot be converted to Scalar")


@row("R3")
def test_a_number_that_has_lost_its_history_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch too warns once per process, so that the two cannot be compared in one.
    monkeypatch.setattr(tensor_values, "_has_warned_of_scalar", False)
    y = leaf(mg, 3).sum()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y.item()
        float(y.detach())
    with pytest.warns(UserWarning, match=r"Converting a tensor with requires_grad=True to a scal"):
        float(y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        float(y)


# ---------------------------------------------------------------------- copies


@paired("R4")
def test_a_deep_copy_is_a_leaf_with_its_own_grad(lib: Any) -> Any:
    x = leaf(lib, 3)
    (x * x).sum().backward()
    x.note = [1]
    x.register_hook(lambda grad: grad * 100)
    copied = copy.deepcopy(x)
    (copied * 3).sum().backward()
    return (
        copied,
        copied.grad,
        x.grad,
        copied.is_leaf,
        copied.note is x.note,
        copied.data_ptr() == x.data_ptr(),
    )


@paired("R4")
def test_deep_copies_of_structures(lib: Any) -> Any:
    x = lib.tensor(values(2, 3)).permute(1, 0)
    tied = leaf(lib, 3)
    first, second, turned = copy.deepcopy([tied, tied, x])
    return first is second, first is tied, turned, turned.stride()


@paired("R4")
def test_a_computed_tensor_has_no_deep_copy(lib: Any) -> Any:
    words = "Only Tensors created explicitly by the user (graph leaves) support the deepcopy"
    y = leaf(lib, 3) * 2
    return error_of(lambda: copy.deepcopy(y), words), copy.deepcopy(y.detach())


@paired("R4")
def test_a_shallow_copy_shares_memory(lib: Any) -> Any:
    x = leaf(lib, 3)
    (x * 2).sum().backward()
    copied, computed = copy.copy(x), copy.copy(x * 2)
    return (
        copied is x,
        copied.data_ptr() == x.data_ptr(),
        copied.grad,
        (computed.is_leaf, computed.requires_grad, computed),
    )


# ---------------------------------------------------------------------- pickles


@paired("R5")
def test_a_pickle_keeps_values_and_requires_grad(lib: Any) -> Any:
    x = leaf(lib, 3)
    (x * 2).sum().backward()
    loaded = pickle.loads(pickle.dumps(x))
    computed = pickle.loads(pickle.dumps(x * 2))
    constant = pickle.loads(pickle.dumps(lib.tensor([1, 2])))
    return loaded, loaded.grad, computed.is_leaf, computed, constant


@paired("R5")
def test_a_pickle_leaves_hooks_behind(lib: Any) -> Any:
    x = leaf(lib, 3)
    x.register_hook(lambda grad: grad * 100)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = pickle.loads(pickle.dumps(x))
    assert "on tensor will not be serialized" in str(caught[0].message)
    (loaded * 2).sum().backward()
    return loaded.grad, [entry.category.__name__ for entry in caught]


@paired("R5")
def test_history_does_not_cross_processes(lib: Any) -> Any:
    if lib is not mg:
        pytest.importorskip("torch.multiprocessing")
    y = leaf(lib, 3) * 2
    words = "autograd does not support crossing process boundaries"
    return error_of(lambda: multiprocessing.reduction.ForkingPickler.dumps(y), words)


@row("R5")
def test_leaves_cross_processes() -> None:
    connection, other = multiprocessing.Pipe()
    x = leaf(mg, 3)
    connection.send([x, x.detach()])
    received, constant = other.recv()
    assert (received.requires_grad, constant.requires_grad) == (True, False)
    assert received.tolist() == constant.tolist() == x.tolist()
    with pytest.raises(RuntimeError, match="Cowardly refusing"):
        connection.send(x * 2)


# ---------------------------------------------------------------------- dir and repr


@paired("R7")
def test_dir_leaves_out_what_only_warns(lib: Any) -> Any:
    x = leaf(lib, 3)
    x.note = 1
    names = ("volatile", "grad", "grad_fn", "backward", "requires_grad", "add_", "note")
    return [name in dir(x) for name in names]


@paired("R7")
def test_repr_tells_of_the_graph(lib: Any) -> Any:
    x = lib.tensor([1.0, 2.5], requires_grad=True)
    texts = [repr(t) for t in (x, x.detach(), x * 2, (x * 2).sum(), lib.nn.Parameter(x.detach()))]
    # PyTorch numbers the overloads of an operator: MulBackward0.
    return [re.sub(r"Backward\d", "Backward", text) for text in texts]


@paired("R7")
def test_repr_of_a_view_that_lost_its_place(lib: Any) -> Any:
    base = leaf(lib, 4) * 1
    first, _ = base.split(2)
    with lib.no_grad():
        hidden = base.view(4)
    base.mul_(2)
    return "grad_fn=<Invalid>" in repr(first), "grad_fn" in repr(base), repr(hidden)[:6]
