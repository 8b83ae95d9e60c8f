"""Cases of what layers are made of, for the table of operators: name, function, inputs' shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.matrix_cases import Entry

_GRID = np.random.default_rng(4).uniform(-1.3, 1.3, (1, 2, 3, 2))
_VOLUME_GRID = np.random.default_rng(5).uniform(-1.2, 1.2, (1, 2, 1, 2, 3))
_INDICES = np.array([0, 2, 1, 1, 3])
_BAGS = np.array([0, 2, 2])


def _attended(m: Any, query: Any, memory: Any, weight: Any, bias: Any) -> Any:
    return m.multi_head_attention_forward(
        query, memory, memory, 4, 2, weight, bias, bias[:4].reshape(1, 1, 4),
        bias[4:8].reshape(1, 1, 4), True, 0.0, weight[:4], None,
    )[0]  # fmt: skip


ENTRIES: list[Entry] = [
    (
        "group_norm",
        lambda m, x, w, b: m.nn.functional.group_norm(x, 2, w, b),
        ((2, 4, 2, 2), (4,), (4,)),
    ),
    (
        "conv3d",
        lambda m, x, w, b: m.conv3d(x, w, b, 2, 1),
        ((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), (2,)),
    ),
    (
        "conv3d groups",
        lambda m, x, w: m.conv3d(x, w, None, 1, "valid", (1, 2, 1), 2),
        ((1, 4, 2, 3, 2), (2, 2, 2, 2, 1)),
    ),
    (
        "conv_transpose3d",
        lambda m, x, w: m.conv_transpose3d(x, w, None, 2, 1, 1, 2),
        ((1, 2, 2, 2, 2), (2, 1, 2, 3, 2)),
    ),
    (
        "conv_transpose2d far",
        lambda m, x, w: m.conv_transpose2d(x, w, None, 1, 1, 2, 1, 3),
        ((1, 2, 2, 2), (2, 1, 2, 2)),
    ),
    ("max_pool3d", lambda m, x: m.max_pool3d(x, 2, 1, 1), ((1, 2, 3, 2, 3),)),
    ("avg_pool3d", lambda m, x: m.avg_pool3d(x, 2, 1, 1, count_include_pad=False), ((2, 3, 2, 3),)),
    ("adaptive_max_pool2d", lambda m, x: m.adaptive_max_pool2d(x, (2, 3)), ((1, 2, 5, 4),)),
    ("adaptive_avg_pool3d", lambda m, x: m.adaptive_avg_pool3d(x, 2), ((1, 2, 3, 4, 3),)),
    ("lp_pool2d", lambda m, x: m.lp_pool2d(x, 2, 2), ((1, 2, 4, 4),)),
    (
        "max_unpool2d",
        lambda m, x: m.max_unpool2d(*m.max_pool2d(x, 2, return_indices=True), 2),
        ((1, 2, 4, 4),),
    ),
    ("unfold patches", lambda m, x: m.unfold(x, (2, 3), padding=1), ((1, 2, 3, 4),)),
    ("fold", lambda m, x: m.fold(x, (3, 4), 2, stride=(2, 1), padding=(1, 0)), ((1, 8, 6),)),
    (
        "grid_sample",
        lambda m, x, g: m.grid_sample(x, g, align_corners=False),
        ((1, 2, 3, 4), _GRID),
    ),
    (
        "grid_sample border",
        lambda m, x, g: m.grid_sample(x, g, padding_mode="border", align_corners=True),
        ((1, 2, 3, 4), _GRID),
    ),
    (
        "grid_sample reflection",
        lambda m, x, g: m.grid_sample(x, g, "bicubic", "reflection", False),
        ((1, 1, 3, 4), _GRID),
    ),
    (
        "grid_sample nearest",
        lambda m, x, g: m.grid_sample(x, g, "nearest", "reflection", True) + g.sum() * 0,
        ((1, 2, 3, 4), _GRID),
    ),
    (
        "grid_sample volume",
        lambda m, x, g: m.grid_sample(x, g, align_corners=False),
        ((1, 2, 2, 3, 2), _VOLUME_GRID),
    ),
    ("affine_grid", lambda m, t: m.affine_grid(t, (2, 1, 3, 2), False), ((2, 2, 3),)),
    ("rms_norm", lambda m, x, w: m.rms_norm(x, (4,), w), ((2, 3, 4), (4,))),
    ("local_response_norm", lambda m, x: m.local_response_norm(x, 3, 0.5), ((1, 4, 2, 2),)),
    (
        "bilinear",
        lambda m, a, b, w, c: m.bilinear(a, b, w, c),
        ((2, 3), (2, 2), (4, 3, 2), (4,)),
    ),
    ("channel_shuffle", lambda m, x: m.channel_shuffle(x, 2) * x, ((1, 4, 2),)),
    (
        "embedding_bag sum",
        lambda m, w, p: m.embedding_bag(
            m.tensor(_INDICES), w, m.tensor(_BAGS), mode="sum", per_sample_weights=p
        ),
        ((4, 3), (5,)),
    ),
    (
        "embedding_bag mean",
        lambda m, w: m.embedding_bag(m.tensor(_INDICES), w, m.tensor(_BAGS), padding_idx=1),
        ((4, 3),),
    ),
    (
        "embedding_bag max",
        lambda m, w: m.embedding_bag(m.tensor(_INDICES), w, m.tensor(_BAGS), mode="max"),
        ((4, 3),),
    ),
    ("pdist", lambda m, x: m.pdist(x), ((4, 3),)),
    ("hardtanh", lambda m, x: m.hardtanh(x, -0.5, 0.7), ((3, 4),)),
    ("hardswish", lambda m, x: m.hardswish(x * 3), ((3, 4),)),
    ("celu", lambda m, x: m.celu(x, 2.0), ((3, 4),)),
    (
        "multi_margin_loss",
        lambda m, x: m.multi_margin_loss(
            x, m.tensor([2, 0, 1]), 2, 0.7, m.tensor(np.arange(1.0, 5.0))
        ),
        ((3, 4),),
    ),
    (
        "multilabel_margin_loss",
        lambda m, x: m.multilabel_margin_loss(x, m.tensor([[3, 0, -1, 1], [1, -1, 2, 3]])),
        ((2, 4),),
    ),
    (
        "triplet_margin_with_distance_loss",
        lambda m, a, p, n: m.triplet_margin_with_distance_loss(
            a, p, n, swap=True, distance_function=lambda x, y: ((x - y) ** 2).sum(-1)
        ),
        ((3, 4), (3, 4), (3, 4)),
    ),
    (
        "multi_head_attention_forward",
        _attended,
        ((2, 1, 4), (3, 1, 4), (12, 4), (12,)),
    ),
]

#: Those that PyTorch differentiates once only, or forgets the frequency in second derivatives.
ONCE_IN_PYTORCH = frozenset(
    {
        "embedding by frequency",
        "embedding_bag sum",
        "embedding_bag mean",
        "embedding_bag max",
        "pdist",
        "multi_margin_loss",
        "multilabel_margin_loss",
    }
)
