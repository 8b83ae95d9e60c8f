"""Cases of special functions for the table of operators: name, function, inputs."""

from __future__ import annotations

import numpy as np

from tests.ops.matrix_cases import Entry

_ABOVE = np.array([0.4, 1.0, 2.7, 6.5])
_INSIDE = np.array([-0.9, -0.3, 0.0, 0.6])
_ANYWHERE = np.array([-2.3, -0.4, 0.7, 3.1])

ENTRIES: list[Entry] = [
    ("lgamma", lambda m, x: m.lgamma(x), (_ABOVE,)),
    ("digamma", lambda m, x: m.digamma(x + 12), (_ABOVE,)),
    ("polygamma", lambda m, x: m.polygamma(2, x), (_ABOVE,)),
    ("mvlgamma", lambda m, x: m.mvlgamma(x + 1, 3), (_ABOVE,)),
    ("erfinv", lambda m, x: m.erfinv(x), (_INSIDE,)),
    ("erfcx", lambda m, x: m.special.erfcx(x), (_ANYWHERE,)),
    ("ndtr", lambda m, x: m.special.ndtr(x), (_ANYWHERE,)),
    ("ndtri", lambda m, x: m.special.ndtri((x + 1) / 2), (_INSIDE,)),
    ("log_ndtr", lambda m, x: m.special.log_ndtr(x), (_ANYWHERE,)),
    ("i0", lambda m, x: m.i0(x), (_ANYWHERE,)),
    ("i0e", lambda m, x: m.special.i0e(x), (_ANYWHERE,)),
    ("i1", lambda m, x: m.special.i1(x), (_ANYWHERE,)),
    ("i1e", lambda m, x: m.special.i1e(x), (_ANYWHERE,)),
    ("zeta", lambda m, x: m.special.zeta(m.tensor(_ABOVE + 1), x), (_ABOVE,)),
    ("igamma", lambda m, x: m.igamma(m.tensor(_ABOVE + 0.5), x), (_ABOVE,)),
    ("igammac", lambda m, x: m.igammac(m.tensor(_ABOVE + 0.5), x), (_ABOVE,)),
    ("entr", lambda m, x: m.special.entr(x), (_ABOVE,)),
    ("xlog1py", lambda m, x, y: m.special.xlog1py(x, y), (_ANYWHERE, _ABOVE)),
    ("sinc", lambda m, x: m.sinc(x), (_ANYWHERE,)),
]
