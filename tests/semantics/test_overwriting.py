"""Group J: assignment, ``copy_``, fills and ``out=``: values put in the place of others."""

from __future__ import annotations

import warnings
from typing import Any

from tests.semantics.paired import error_of, leaf, paired, values


@paired("J10")
def test_assignment_is_differentiable_in_both(lib: Any) -> Any:
    keys = {
        "int": (1, (4,)),
        "slice": (slice(1, 3), (2, 4)),
        "step": ((slice(None), slice(0, 4, 2)), (3, 2)),
        "broadcast": (slice(None), (4,)),
        "leading ones": (2, (1, 1, 4)),
        "number": ((0, 1), ()),
        "ellipsis": ((..., -1), (3,)),
        "everything": (..., (3, 4)),
        "rows": (lib.tensor([2, 0]), (2, 4)),
        "rows repeated": (lib.tensor([1, 1]), (4,)),
        "mixed": ((slice(None), lib.tensor([0, 2])), (3, 2)),
        "elements": ((lib.tensor([0, 2]), lib.tensor([1, 1])), (2,)),
        "mask": (lib.tensor(values(3, 4) > 0), ()),
    }
    found = {}
    for name, (key, shape) in keys.items():
        x, value = leaf(lib, 3, 4), leaf(lib, *shape, seed=1)
        y = x * 1
        y[key] = value * 2
        (y * y).sum().backward()
        found[name] = (y, y._version, x.grad, value.grad)
    return found


@paired("J10")
def test_assignment_of_constants_and_to_constants(lib: Any) -> Any:
    x, mask = leaf(lib, 4), lib.tensor([True, False, True, False])
    y = x * 2
    y[0] = 7
    y[mask] = 0.5
    y[lib.tensor([1])] = lib.tensor([3.0], dtype=lib.float64)
    (y * y).sum().backward()
    constant = lib.zeros(4)  # float32: the value's gradient comes back in its own dtype
    value = leaf(lib, 2)
    constant[1:3] = value
    constant[mask] += value
    constant.sum().backward()
    return y, x.grad, constant, value.grad


@paired("J10")
def test_assignment_that_does_not_fit(lib: Any) -> Any:
    y = leaf(lib, 3, 4) * 1

    def assign(key: Any, value: Any) -> Any:
        return lambda: y.__setitem__(key, value)

    found = [
        error_of(assign(3, 1.0), "out of bounds"),
        error_of(assign((0, 0, 0), 1.0), "too many indices"),
        error_of(assign(0, lib.ones(3)), "must match the existing size"),
        error_of(assign(slice(0, 2), lib.ones(3, 4)), "must match the existing size"),
    ]
    return found, y._version


@paired("J10")
def test_copy_from_another_dtype_and_shape(lib: Any) -> Any:
    source = leaf(lib, 2)
    target = lib.zeros(3, 2)
    target.copy_(source)
    (target * lib.arange(6).view(3, 2)).sum().backward()
    x = leaf(lib, 3, 2)
    y = x * 2
    y.copy_(lib.ones(2))
    y.sum().backward()
    refused = error_of(lambda: lib.zeros(2).copy_(lib.ones(3)), "must match the")
    return target, source.grad, source.grad.dtype, y, x.grad, refused


@paired("J10")
def test_overwriting_gives_the_old_values_no_gradient(lib: Any) -> Any:
    found = []
    for overwrite in (
        lambda y: y.zero_(),
        lambda y: y.fill_(3),
        lambda y: y.copy_(lib.ones(3)),
        lambda y: (y.uniform_() * 0).abs(),
        lambda y: (y.normal_(1, 2) * 0).abs(),
    ):
        x = leaf(lib, 3)
        y = overwrite(x * 2)
        y.sum().backward()
        found.append((y, y._version, x.grad))
    return found


@paired("J10")
def test_masked_fill_and_fill_with_tensors(lib: Any) -> Any:
    x, value = leaf(lib, 2, 3), leaf(lib)
    mask = lib.tensor([True, False, True])
    y = (x * 2).masked_fill_(mask, value)
    z = lib.zeros(2, dtype=lib.float64).fill_(value * 3)
    (y * y).sum().backward()
    z.sum().backward()
    refused = [
        error_of(lambda: (x * 1).fill_(lib.ones(2)), "only supports 0-dimension value tensor"),
        error_of(lambda: (x * 1).masked_fill_(mask, lib.ones(3)), "only supports a 0-dimensional"),
        error_of(lambda: (x * 1).masked_fill_(lib.tensor([1, 0, 1]), 0), "only supports boolean"),
    ]
    return y, z, x.grad, value.grad, refused


@paired("J9")
def test_out_refuses_tensors_that_require_grad(lib: Any) -> Any:
    x, plain = leaf(lib, 2, 2), lib.zeros(2, 2, dtype=lib.float64)
    words = "functions with out=... arguments don't support automatic differentiation"
    asks = lib.zeros(2, 2, dtype=lib.float64, requires_grad=True)
    found = [
        error_of(lambda: lib.add(x, 1, out=plain), "add()", words),
        error_of(lambda: lib.mul(plain, plain, out=asks), "mul()", words),
        error_of(lambda: lib.matmul(x, plain, out=plain), "matmul()", words),
        error_of(lambda: lib.cat([plain, x], out=plain), "cat()", words),
        error_of(lambda: lib.exp(x, out=plain), "exp()", words),
    ]
    with lib.no_grad():
        same = lib.add(x, 1, out=plain)
        lib.div(x, 2, out=x)
    return found, same is plain, plain, plain._version, x, x._version


@paired("J9")
def test_out_takes_the_shape_of_the_result(lib: Any) -> Any:
    a = lib.tensor(values(2, 2))
    empty = lib.zeros(0, dtype=lib.float64)
    same = lib.mm(a, a, out=empty)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resized = lib.sub(a, 1, out=lib.zeros(3, dtype=lib.float64))
    words = "can't be cast to the desired output type"
    refused = error_of(lambda: lib.add(a, 1, out=lib.zeros(2, 2, dtype=lib.int64)), words)
    told = ["resized" in str(w.message) for w in caught]
    return same is empty, empty, resized, told, refused


@paired("J10", "L7")
def test_a_change_without_a_derivative_fails_in_backward(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * 5
    y.floor_divide_(2)
    return y, error_of(y.sum().backward, "derivative for", "is not implemented"), x.grad
