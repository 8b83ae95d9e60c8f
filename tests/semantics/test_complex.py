"""Complex numbers: gradients are conjugate Wirtinger derivatives, as PyTorch defines them.

"Autograd mechanics", section "Autograd for Complex Numbers": of a real loss the gradient is
``dL/dx + 1j * dL/dy``, the direction of steepest ascent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.semantics.paired import error_of, leaf, paired, values


def complex_leaf(lib: Any, *shape: int, seed: int = 0, dtype: str = "complex128") -> Any:
    numbers = values(*shape, seed=seed) + 1j * values(*shape, seed=seed + 100)
    return lib.tensor(numbers, dtype=getattr(lib, dtype)).requires_grad_()


@paired("R1")
def test_complex_tensors_can_require_grad_and_integers_cannot(lib: Any) -> Any:
    z = lib.tensor([1 + 2j, 3 - 1j])
    assert z.dtype == lib.complex64
    z.requires_grad = True
    (z * z.conj()).real.sum().backward()

    def integers() -> None:
        lib.tensor([1, 2]).requires_grad = True

    return z, z.grad, error_of(integers, "only Tensors of floating point and complex dtype")


@paired("A2")
def test_a_complex_scalar_needs_a_seed(lib: Any) -> Any:
    z = complex_leaf(lib, 3)
    total = (z * z).sum()
    error = error_of(total.backward, "only for real scalar outputs", "complex128")
    assert z.grad is None
    total.backward(lib.tensor(1.0 + 2.0j, dtype=lib.complex128))
    return error, z.grad


@paired("A5", "C11")
def test_a_seed_is_complex_where_its_root_is(lib: Any) -> Any:
    z = complex_leaf(lib, 3)
    words = "both grad_output and output are required to have the same dtype"
    real_seed = lib.ones(3, dtype=lib.float64)
    complex_seed = lib.ones(3, dtype=lib.complex128)
    # Another precision is cast.
    (fine,) = lib.autograd.grad(z * 1j, z, complex_seed.to(lib.complex64))
    return (
        error_of(lambda: lib.autograd.backward([z * 2], [real_seed]), words),
        error_of(lambda: lib.autograd.grad(z.abs(), z, complex_seed), words),
        fine,
    )


@paired("C12")
def test_a_real_input_of_a_complex_operation_gets_a_real_gradient(lib: Any) -> Any:
    x, z = leaf(lib, 3), complex_leaf(lib, 3)
    weighted = x * z + (x.sum() * 1j) * z + lib.exp(1j * x)
    weighted.abs().sum().backward()
    assert x.grad.dtype == lib.float64
    return x.grad, z.grad


@paired("C12", "C8")
def test_casting_to_complex_and_back(lib: Any) -> Any:
    x = leaf(lib, 4)
    z = x.to(lib.complex128) * (2 - 1j)
    back = z.to(lib.complex64).abs()
    return lib.autograd.grad(back.sum(), [x, z])


@paired("C8")
def test_a_function_may_not_give_a_complex_gradient_to_a_real_input(lib: Any) -> Any:
    class Turned(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * (1 + 1j)

    x = leaf(lib, 3)
    error = error_of(lambda: Turned.apply(x).sum().backward())
    assert x.grad is None
    return error


@paired("C8")
def test_a_function_may_give_a_real_gradient_to_a_complex_input(lib: Any) -> Any:
    class RealPart(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, z: Any) -> Any:
            return z.real.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 3

    z = complex_leaf(lib, 3)
    RealPart.apply(z).sum().backward()
    return z.grad


@paired("R1")
def test_steepest_descent_finds_the_roots_of_a_polynomial(lib: Any) -> Any:
    z = lib.tensor(np.array([1.5 + 1.0j, -1.0 + 0.5j])).requires_grad_()
    for _ in range(50):
        loss = (z**4 - 1).abs().pow(2).sum()
        (step,) = lib.autograd.grad(loss, z)
        with lib.no_grad():
            z -= 0.01 * step / (1 + step.abs())
    return z, loss


@paired("R1")
def test_holomorphic_functions_multiply_by_the_conjugate_derivative(lib: Any) -> Any:
    z = complex_leaf(lib, 5)
    seed = complex_leaf(lib, 5, seed=1).detach()
    functions = [
        *(lib.exp, lib.sin, lib.cos, lib.tanh, lib.sqrt, lib.log, lib.reciprocal, lib.sigmoid),
        lambda t: t**3,
        lambda t: 1 / (t + 2j),
        lambda t: (1 + 1j) ** t,
        lambda t: t / 3j - t,
    ]
    gradients = [lib.autograd.grad(f(z), z, seed)[0] for f in functions]
    (exponential,) = lib.autograd.grad(lib.exp(z), z, seed)
    expected = (seed * lib.exp(z).conj()).detach()
    assert (exponential - expected).abs().max() < 1e-12
    return gradients


@paired("R1")
def test_functions_that_are_not_holomorphic(lib: Any) -> Any:
    z = complex_leaf(lib, 5)
    functions = (lib.abs, lib.angle, lib.real, lib.imag, lib.conj, lib.sgn)
    values = [f(z) for f in functions]
    return values, [lib.autograd.grad(v, z, lib.ones_like(v) * 2)[0] for v in values]


@paired("R1")
def test_zero_has_gradients_too(lib: Any) -> Any:
    z = lib.zeros(3, dtype=lib.complex128).requires_grad_()
    (lib.abs(z) + lib.angle(z) + lib.sgn(z).real).sum().backward()
    return z.grad


@paired("R1")
def test_a_complex_network_trains(lib: Any) -> Any:
    weight, bias = complex_leaf(lib, 4, 3), complex_leaf(lib, 4, seed=1)
    out = complex_leaf(lib, 4, 2, seed=2)
    x = complex_leaf(lib, 6, 3, seed=3).detach()
    losses = []
    for _ in range(3):
        hidden = lib.tanh(lib.nn.functional.linear(x, weight, bias) * 0.3)
        loss = ((hidden @ out).abs() ** 2).mean()
        losses.append(loss.detach())
        loss.backward()
        with lib.no_grad():
            for parameter in (weight, bias, out):
                parameter -= 0.05 * parameter.grad
                parameter.grad = None
    return losses, weight, bias, out


@paired("R1")
def test_batches_of_matrices_and_their_adjoints(lib: Any) -> Any:
    a, b = complex_leaf(lib, 2, 3, 4), complex_leaf(lib, 4, 3, seed=1)
    gram = a.mH @ a + b @ b.mH
    gram.abs().sum().backward()
    return gram, a.grad, b.grad


@paired("R1", rtol=1e-4)
def test_phase_retrieval_with_a_fourier_matrix(lib: Any) -> Any:
    n = 8
    angles = lib.arange(n, dtype=lib.float64)[:, None] * lib.arange(n, dtype=lib.float64)
    fourier = lib.polar(lib.ones(n, n, dtype=lib.float64), angles * (-2 * np.pi / n))
    x = leaf(lib, n)
    measured = (fourier @ leaf(lib, n, seed=3).detach().to(lib.complex128)).abs()
    ((fourier @ x.to(lib.complex128)).abs() - measured).pow(2).sum().backward()
    return x.grad


@paired("R1")
def test_sums_means_products_and_norms(lib: Any) -> Any:
    z = complex_leaf(lib, 3, 4)
    parts = (
        z.sum(0),
        z.mean(),
        z.prod(1),
        z.cumsum(1),
        z.norm(),
        z.var(0),
        z.std(),
        z.logsumexp(1),
    )
    loss = sum((part.abs().sum() for part in parts), start=z.real.sum())
    loss.backward()
    return parts, z.grad


@paired("R1")
def test_products_with_zeros(lib: Any) -> Any:
    z = lib.tensor(np.array([[1 + 1j, 0, 2j], [0, 3, 0]])).requires_grad_()
    z.prod(1).backward(lib.tensor(np.array([1 + 1j, 2 - 1j])))
    return z.grad


@paired("R1")
def test_shapes_and_indices_of_complex_tensors(lib: Any) -> Any:
    z = complex_leaf(lib, 3, 4)
    parts = lib.cat([z.T.reshape(2, 6), z[:, 1:].reshape(-1)[None, :6]])
    picked = lib.where(parts.real > 0, parts, 1j * parts)
    stacked = lib.stack([picked, picked.conj()], -1)
    (stacked * lib.tensor(values(3, 6, 2))).sum().abs().backward()
    return stacked, z.grad


@paired("J18")
def test_views_between_real_and_complex_share_memory(lib: Any) -> Any:
    pairs = leaf(lib, 3, 2)
    z = lib.view_as_complex(pairs)
    (z * z).abs().sum().backward()
    with lib.no_grad():
        pairs.mul_(2)
    assert z._version == pairs._version
    back = lib.view_as_real(z.detach())
    return z.detach(), back, pairs.grad


@paired("J18")
def test_parts_of_a_complex_tensor_are_views(lib: Any) -> Any:
    z = complex_leaf(lib, 3)
    with lib.no_grad():
        z.real.zero_()
        z.imag.mul_(2)
    changed = z._version
    z.abs().sum().backward()
    return z, z.grad, changed


@paired("J2", "J18")
def test_a_part_that_is_changed_makes_the_whole_stale(lib: Any) -> Any:
    z = complex_leaf(lib, 3)
    w = z * 2
    square = (w * w).abs().sum()
    with lib.no_grad():
        w.imag.add_(1)
    return error_of(square.backward, "modified by an inplace operation")


@paired("R1")
def test_what_orders_numbers_refuses_complex_ones(lib: Any) -> Any:
    z = complex_leaf(lib, 3)
    functions = (
        *(lib.floor, lib.sign, lib.relu, lib.amax, lib.max, lib.argmax),
        *(lambda t: t > t, lambda t: t.clamp(0), lambda t: t % 2, lambda t: lib.maximum(t, t)),
    )
    errors = [error_of(lambda f=f: f(z)) for f in functions]
    assert all(isinstance(error, RuntimeError) for error in errors)
    return len(errors)


@paired("R1")
def test_what_makes_complex_numbers_checks_its_parts(lib: Any) -> Any:
    x, wide = lib.ones(2, 3), lib.ones(2, 3, dtype=lib.float64)
    return (
        error_of(lambda: lib.complex(x, wide), "Expected object of scalar type"),
        error_of(lambda: lib.polar(x, wide), "Expected object of scalar type"),
        error_of(lambda: lib.view_as_complex(x), "last dimension of size 2"),
        error_of(lambda: lib.view_as_complex(lib.ones(2, 3).T), "last dimension with stride 1"),
        error_of(lambda: lib.view_as_real(x), "only supported for complex"),
        error_of(lambda: lib.imag(x), "not implemented for tensors with non-complex dtypes"),
    )


@paired("R1", "C8")
def test_dtypes_of_mixed_expressions(lib: Any) -> Any:
    single, double = lib.ones(2, requires_grad=True), leaf(lib, 2)
    z = complex_leaf(lib, 2, dtype="complex64")
    results = (single * 1j, double * 1j, z * double, lib.ones(2, dtype=lib.int64) * 1j, z * 2.0)
    sum(result.abs().sum() for result in results).backward()
    return [result.dtype for result in results], single.grad, double.grad, z.grad


@paired("E6")
def test_second_derivatives_of_complex_functions(lib: Any) -> Any:
    z = complex_leaf(lib, 4)
    loss = (lib.sin(z) * z.conj()).abs().pow(2).sum() + lib.angle(z).sum()
    (first,) = lib.autograd.grad(loss, z, create_graph=True)
    (second,) = lib.autograd.grad(first.abs().sum(), z)
    return first.detach(), second


@paired("E6")
def test_a_hessian_vector_product_through_a_complex_layer(lib: Any) -> Any:
    x, weight = leaf(lib, 3), complex_leaf(lib, 4, 3)
    energy = (weight @ x.to(lib.complex128)).abs().pow(2).sum().sqrt()
    (first,) = lib.autograd.grad(energy, x, create_graph=True)
    (first * lib.tensor(values(3, seed=5))).sum().backward()
    return x.grad, weight.grad


@paired("G1")
def test_hooks_see_complex_gradients(lib: Any) -> Any:
    z, seen = complex_leaf(lib, 3), []
    w = z * (1 + 1j)
    w.register_hook(lambda grad: seen.append(grad.clone()) or grad * 1j)
    w.abs().sum().backward()
    return seen, z.grad


@paired("J18", "J6")
def test_parts_changed_in_place_while_recording(lib: Any) -> Any:
    z, results = complex_leaf(lib, 3), []
    changes = (
        lambda w: w.real.mul_(2),
        lambda w: w.imag.zero_(),
        lambda w: lib.view_as_real(w)[0].add_(1.0),
        lambda w: w.real.copy_(z.imag * 3),
        lambda w: w.mul_(1j).add_(w.detach().conj()),
    )
    for change in changes:
        w = z * 1
        change(w)
        assert w.requires_grad
        results.append((w.detach(), *lib.autograd.grad(w.abs().sum(), z)))
    return results


@paired("J18", "J10")
def test_assigning_to_a_part(lib: Any) -> Any:
    z, x = complex_leaf(lib, 3), leaf(lib, 3)
    w = z * 1
    w.real = x * 2
    w.imag = 3.0
    w[0] = 1j * x[1]
    return w, lib.autograd.grad(w.abs().sum(), [z, x])


@paired("J18", "J7")
def test_a_complex_view_follows_its_real_base(lib: Any) -> Any:
    pairs = leaf(lib, 3, 2) * 1
    z = lib.view_as_complex(pairs)
    pairs.mul_(2)
    turned = z * 1j
    z.mul_(1j)
    assert pairs.grad_fn.name().endswith("CopySlices")
    return z, pairs, turned


@paired("J4", "J18")
def test_the_parts_of_a_leaf_are_guarded(lib: Any) -> Any:
    z = complex_leaf(lib, 3)
    return error_of(lambda: z.real.mul_(2), "a view of a leaf Variable that requires grad")


@paired("J18")
def test_a_real_tensor_takes_no_complex_values_in_place(lib: Any) -> Any:
    x = leaf(lib, 3) * 1
    return error_of(lambda: x.mul_(1j), "can't be cast")


@paired("Q1", "Q2")
def test_gradcheck_of_complex_functions(lib: Any) -> Any:
    z, w, x = complex_leaf(lib, 3), complex_leaf(lib, 3, seed=1), leaf(lib, 3)
    functions = (
        lambda z, w: z * w.conj() + z.real,
        lambda z, w: lib.angle(z) * w.abs(),
        lambda z, w: lib.view_as_real(z / w),
        lambda z, w: lib.complex(z.imag, w.real) ** (0.5 + 1j),
    )
    for function in functions:
        assert lib.autograd.gradcheck(function, (z, w))
        assert lib.autograd.gradgradcheck(function, (z, w))
    return lib.autograd.gradcheck(lambda x, z: lib.polar(x.exp(), z.imag).sum(), (x, z))


@paired("R1", "D2")
def test_complex_gradients_of_some_size_add_up(lib: Any) -> Any:
    a, b = complex_leaf(lib, 70, 80), complex_leaf(lib, 80, 60, seed=1)
    for _ in range(2):
        product = lib.tanh(a @ b * 0.1)
        (product.abs().sum() + lib.cat([product.real, product.imag]).pow(2).mean()).backward()
    return a.grad, b.grad
