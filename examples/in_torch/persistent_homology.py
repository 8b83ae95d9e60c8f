"""Persistent homology of point clouds by gudhi (pip install gudhi): each cloud is pushed apart."""

import sys

import gudhi
import torch

import mpgrad.torch as mt

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 16
POINTS = int(sys.argv[2]) if len(sys.argv) > 2 else 60
torch.manual_seed(0)
clouds = [torch.randn(POINTS, 2, dtype=torch.float64, requires_grad=True) for _ in range(COUNT)]


def persistence(cloud):
    rips = gudhi.RipsComplex(points=cloud.detach().numpy(), max_edge_length=2.0)
    tree = rips.create_simplex_tree(max_dimension=2)
    tree.compute_persistence()
    _, loops, _, _ = tree.flag_persistence_generators()
    if not loops:
        return cloud.sum() * 0
    edges = torch.as_tensor(loops[0]).long()
    birth = (cloud[edges[:, 0]] - cloud[edges[:, 1]]).norm(dim=1)
    death = (cloud[edges[:, 2]] - cloud[edges[:, 3]]).norm(dim=1)
    return (death - birth).sum()


loss = torch.stack(mt.parallel_map(persistence, clouds)).sum()
loss.backward()
gradient = sum(one.grad.abs().sum() for one in clouds)
print(f"loss {loss.item():.12f}, gradient {gradient.item():.12f}")
