"""A NumPy solver inside of a JAX program, over all items and both passes in workers: pure_callback
with custom_vjp around ``mg.parallel_map`` (pip install jax)."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import mpgrad as mg

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 16
jax.config.update("jax_enable_x64", True)


def settle(k, load):
    """A solver: the displacement of a chain of springs of stiffness ``k``, by relaxation."""
    u = mg.zeros(len(load), dtype=mg.float64)
    for _ in range(50):
        left = mg.cat([u[:1] * 0, u[:-1]])
        right = mg.cat([u[1:], u[-1:] * 0])
        u = 0.5 * (left + right + load / k)
    return u


def in_workers(stiffness, loads):
    items = [mg.tensor(np.array(one), requires_grad=True) for one in stiffness]
    outs = mg.parallel_map(settle, items, [mg.tensor(np.array(one)) for one in loads])
    return items, outs


def forward_there(stiffness, loads):
    return np.stack([out.detach().numpy() for out in in_workers(stiffness, loads)[1]])


def backward_there(stiffness, loads, grads):
    items, outs = in_workers(stiffness, loads)
    mg.autograd.backward(outs, [mg.tensor(np.array(one)) for one in grads])
    return np.stack([item.grad.numpy() for item in items])


@jax.custom_vjp
def displacements(stiffness, loads):
    return jax.pure_callback(
        forward_there, jax.ShapeDtypeStruct(loads.shape, loads.dtype), stiffness, loads
    )


def _forward(stiffness, loads):
    return displacements(stiffness, loads), (stiffness, loads)


def _backward(saved, grads):
    stiffness, loads = saved
    like = jax.ShapeDtypeStruct(stiffness.shape, stiffness.dtype)
    return jax.pure_callback(backward_there, like, stiffness, loads, grads), None


displacements.defvjp(_forward, _backward)


@jax.jit
def loss(stiffness):
    loads = jnp.linspace(0.0, 1.0, COUNT * 8).reshape(COUNT, 8)
    return (displacements(stiffness, loads) ** 2).sum()


stiffness = jnp.linspace(1.0, 2.0, COUNT)
value, gradient = jax.value_and_grad(loss)(stiffness)
step = 1e-6
change = (loss(stiffness.at[0].add(step)) - loss(stiffness.at[0].add(-step))) / (2 * step)
print(f"loss {value:.9f}, gradient {gradient.sum():.9f}, by differences {change - gradient[0]:.5f}")
