"""Tree-shaped networks: each sentence is a tree of its own shape, and one cell for all nodes."""

import random
import sys

import torch

import mpgrad.torch as mt

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 16
LEAVES = int(sys.argv[2]) if len(sys.argv) > 2 else 40
torch.manual_seed(0)
shapes = random.Random(0)
cell = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16))
words = torch.nn.Embedding(50, 16)


def tree(leaves):
    if leaves == 1:
        return shapes.randrange(50)
    cut = shapes.randrange(1, leaves)
    return tree(cut), tree(leaves - cut)


def meaning(node, cell, words):
    if isinstance(node, int):
        return words(torch.tensor(node))
    left, right = (meaning(one, cell, words) for one in node)
    return cell(torch.cat([left, right]))


def score(node, cell, words):
    return meaning(node, cell, words).square().mean()


trees = [tree(LEAVES) for _ in range(COUNT)]
loss = torch.stack(mt.parallel_map(score, trees, shared=(cell, words))).mean()
loss.backward()
print(f"loss {loss.item():.9f}, gradient {words.weight.grad.abs().sum().item():.6f}")
