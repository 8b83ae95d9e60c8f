"""Classes with registries and metaclasses, and the user's modules, in calls."""

from __future__ import annotations

import abc
import importlib
import itertools
import numbers
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar
from unittest import mock

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.parallel import placing
from tests.process.test_parallel_map import engine

__all__ = ["engine"]
pytestmark = pytest.mark.process
T = TypeVar("T")


@pytest.fixture(autouse=True)
def every_test_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "RUNS", placing.Runs())


# ---------------------------------------------------------------------- classes


class Plugin:
    registry: ClassVar[dict[str, type[Plugin]]] = {}
    key: ClassVar[str]

    def __init_subclass__(cls, /, key: str, **options: Any) -> None:
        super().__init_subclass__(**options)
        Plugin.registry[key], cls.key = cls, key

    def of(self, x: int) -> int:
        return x


class Doubles(Plugin, key="double"):
    def of(self, x: int) -> int:
        return 2 * x


class Slotted(Plugin, key="slots"):
    __slots__ = ("x",)


class Meta(abc.ABCMeta):
    registry: ClassVar[list[type[Any]]] = []

    def __new__(mcs, name: str, bases: Any, names: Any, **_: Any) -> Meta:
        cls = super().__new__(mcs, name, bases, names)
        Meta.registry.append(cls)
        return cls

    def __init__(cls, name: str, bases: Any, names: Any, **_: Any) -> None:
        super().__init__(name, bases, names)
        cls.made = getattr(cls, "made", 0) + 1


class Shape(metaclass=Meta):
    @abc.abstractmethod
    def area(self) -> int: ...


class Square(Shape, of="any keyword"):
    def area(self) -> int:
        return 9


class Foreign:
    pass


Shape.register(Foreign)
OF_DICTS: list[type[Any]] = []


class Table(dict[str, Any], Generic[T]):
    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        OF_DICTS.append(cls)


class IntTable(Table[int]):
    pass


def what_classes_are(_: int) -> list[Any]:
    found: list[Any] = [Plugin.registry["double"]().of(5), Plugin.registry["double"] is Doubles]
    found += [Doubles.key, Slotted.__slots__, len(Plugin.__subclasses__())]
    found += [Meta.registry == [Shape, Square], Square.made, Square().area()]
    found += [isinstance(Foreign(), Shape), isinstance(Square, Meta), Square.__bases__ == (Shape,)]
    with pytest.raises(TypeError, match="abstract"):
        Shape()
    found += [[IntTable] == OF_DICTS, IntTable(a=1), IntTable.__mro__.index(dict)]
    found += [IntTable.__orig_bases__ == (Table[int],)]  # type: ignore[attr-defined]
    return found


def test_what_runs_where_classes_are_made_has_run(engine: mg.Engine) -> None:
    """It was so: ``__init_subclass__`` and metaclasses ran again in each call, in the caller's
    registries, too, and classes there were not the ones that the call knew."""
    expected, before = what_classes_are(0), Plugin.__subclasses__()
    for _ in range(2):
        assert mg.parallel_map(what_classes_are, [0, 1]) == [expected] * 2
    assert Plugin.__subclasses__() == before
    assert Plugin.registry == {"double": Doubles, "slots": Slotted}
    assert Meta.registry == [Shape, Square]


def test_a_class_that_a_call_makes_comes_back(engine: mg.Engine) -> None:
    def makes(k: int) -> Any:
        class Local(Plugin, key=f"local {k}"):
            def of(self, x: int) -> int:
                return x + k

        del Plugin.registry[f"local {k}"]
        return Local()

    found = mg.parallel_map(makes, [1, 2])
    assert [one.of(1) for one in found] == [2, 3]
    assert all(isinstance(one, Plugin) for one in found)


class Base:
    step = 0.001

    def run(self) -> int:
        return 1


class Other(Base):
    def run(self) -> int:
        return 7


class Fast(Base):
    pass


def test_what_is_removed_from_a_class_is_removed_in_workers(engine: mg.Engine) -> None:
    """It was so: the undo of a patch of an inherited method did not reach them."""

    def seen() -> list[Any]:
        def asked(_: int) -> tuple[int, float, bool]:
            return Fast().run(), Fast.step, hasattr(Fast, "flag")

        expected = [asked(0)] * 2
        assert mg.parallel_map(asked, [1, 2]) == expected
        return expected

    before = seen()
    with mock.patch.object(Fast, "run", Other.run), mock.patch.object(Fast, "step", 5):
        Fast.flag = True  # type: ignore[attr-defined]
        assert seen() != before
    del Fast.flag  # type: ignore[attr-defined]
    assert seen() == before
    Fast.__bases__ = (Other,)
    try:
        assert seen() != before
    finally:
        Fast.__bases__ = (Base,)
    assert seen() == before


class Tree:
    def __init__(self, parent: Tree | None = None) -> None:
        self.parent = None if parent is None else weakref.ref(parent)
        self.children: list[Tree] = []


def test_weak_references(engine: mg.Engine) -> None:
    """It was so: an error about pickle."""
    root, gone = Tree(), weakref.ref(Tree())
    root.children.append(Tree(root))
    known = weakref.WeakSet([root])

    def asked(_: int) -> list[bool]:
        (child,) = root.children
        assert child.parent is not None
        return [child.parent() is root, gone() is None, root in known]

    assert mg.parallel_map(asked, [1, 2]) == [[True] * 3] * 2


class AsBytes:
    """As skorch's NeuralNet, which saves its Module in its pickle."""

    def __init__(self, value: float = 1.0) -> None:
        self.net, self.seen = mg.nn.Linear(1, 1), 0
        self.value = mg.tensor(value, requires_grad=True)

    def __getstate__(self) -> dict[str, Any]:
        return {"value": self.value.item()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["value"])  # type: ignore[misc]


def test_tensors_that_an_object_hides_from_pickle(engine: mg.Engine) -> None:
    """It was so: they got no gradient, without a word."""
    hides, x = AsBytes(), mg.ones((), requires_grad=True)
    with pytest.raises(TypeError, match=r"AsBytes pickles its tensors.*shared\[0\]"):
        mg.parallel_map(lambda x, own: own.value * x, [x], shared=(hides,))
    with mg.no_grad():
        assert mg.parallel_map(lambda x, own: (own.value * x).item(), [x], shared=(hides,)) == [1]


class NoArguments:
    def __new__(cls, x: int) -> NoArguments:
        return super().__new__(cls)


def test_an_object_that_cannot_be_made_again(engine: mg.Engine) -> None:
    with pytest.raises(TypeError, match="missing 1 required") as caught:
        mg.parallel_map(lambda x: 1, [NoArguments(1)])
    assert any("deepcopy" in note for note in caught.value.__notes__)
    own = np.frompyfunc(lambda x: x, 1, 1)
    with pytest.raises(TypeError, match=r"cannot travel.*own \(ufunc\)"):
        mg.parallel_map(lambda x: own(x), [1])


class OwnNumber:
    pass


class OwnSequence:
    def __len__(self) -> int:
        return 2


class OwnWarning(UserWarning):
    pass


def test_classes_that_are_registered_elsewhere(engine: mg.Engine) -> None:
    """It was so: a worker did not know that they are numbers and sequences."""
    numbers.Real.register(OwnNumber)
    Sequence.register(OwnSequence)

    def asked(one: Any, other: Any) -> list[bool]:
        kinds = numbers.Real, numbers.Integral, Sequence, Mapping
        return [isinstance(it, kind) for it in (one, other) for kind in kinds]

    given = OwnNumber(), OwnSequence()
    assert mg.parallel_map(asked, [given[0]], [given[1]]) == [asked(*given)]


def test_a_filter_for_an_own_warning(engine: mg.Engine) -> None:
    """It was so: the filter held another copy of the class, and the call caught nothing."""

    def warns(_: int) -> str:
        try:
            warnings.warn("own", OwnWarning, stacklevel=1)
        except OwnWarning:
            return "caught"
        return "passed"

    with warnings.catch_warnings():
        warnings.simplefilter("error", OwnWarning)
        assert mg.parallel_map(warns, [1, 2]) == ["caught"] * 2


# ---------------------------------------------------------------------- modules

CONF = "ALPHA = 1\nSEEN = []\nLOCK = __import__('threading').Lock()\n"
USES = """
import mpgrad as mg

def inside(x):
    import own_conf
    with own_conf.LOCK:
        return x * own_conf.ALPHA

def inside_from(x):
    from own_pack import part
    from own_pack.part import BETA
    return x * part.BETA + BETA

def by_name(x):
    import importlib
    return x * importlib.import_module("own_conf").ALPHA

def changes(x):
    import own_conf
    own_conf.SEEN.append(x)

class Scales(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        import own_conf
        return grad * own_conf.ALPHA
"""


@pytest.fixture
def uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module whose functions import others, whose files are others by now."""
    (tmp_path / "own_pack").mkdir()
    for name, text in (
        ("own_conf.py", CONF),
        ("own_pack/__init__.py", ""),
        ("own_pack/part.py", "BETA = 1\n"),
        ("own_uses.py", USES),
        ("own_exp1.py", "DROP = 0.5\n"),
        ("own_exp2.py", "DROP = 1.0\n"),
    ):
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    conf, part = map(importlib.import_module, ("own_conf", "own_pack.part"))
    conf.ALPHA, part.BETA = 5, 7  # type: ignore[attr-defined]
    (tmp_path / "own_conf.py").write_text(CONF.replace("1", "1000"))
    yield importlib.import_module("own_uses")
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def test_what_a_function_imports_inside_is_the_callers(
    engine: mg.Engine, uses: types.ModuleType
) -> None:
    """It was so: a worker had what stands in the file, and kept it from call to call."""
    for _ in range(2):
        for fn, expected in (
            (uses.inside, [5, 10]),
            (uses.inside_from, [14, 21]),
            (uses.by_name, [5, 10]),
        ):
            assert mg.parallel_map(fn, [1, 2]) == expected
        with pytest.raises(RuntimeError, match="SEEN"):
            mg.parallel_map(uses.changes, [1, 2])
        sys.modules["own_conf"].SEEN.clear()  # in local it is the caller's own
    x = mg.tensor(1.0, requires_grad=True)
    (out,) = mg.parallel_map(uses.Scales.apply, [x])
    out.backward()
    assert x.grad.item() == 5


def test_modules_as_arguments(engine: mg.Engine, uses: types.ModuleType) -> None:
    """It was so: from the second item on, a module was empty."""
    one, other = map(importlib.import_module, ("own_exp1", "own_exp2"))

    def drop(module: Any, x: int, setting: Any) -> float:
        return float(module.DROP * x + getattr(setting, "DROP", 9.0))

    found = mg.parallel_map(drop, [one, other, one], [1, 2, 3], shared=(other,))
    assert found == [1.5, 3.0, 2.5]
    summed = mg.parallel_map(drop, [one, other, one], [1, 2, 3], shared=(one,), out="sum")
    assert summed == 0.5 + 2.0 + 1.5 + 3 * 0.5


PACKAGE = """
import threading

LOCK, SCALE = threading.Lock(), 1

class scaled:
    def __enter__(self):
        global SCALE
        SCALE = 3

    def __exit__(self, *_):
        global SCALE
        SCALE = 1

def make():
    def scales(x):
        with LOCK:
            return x * SCALE

    return scales

def keeps(made=[]):
    made.append(1)
    return len(made)
"""


def test_packages_that_stand_elsewhere(
    engine: mg.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `pip install --target` and `uv run --with` put them. It was so: they were the user's code,
    and each map an error; and what they make had copies of their globals."""
    (tmp_path / "own_elsewhere.py").write_text(PACKAGE)
    for name, listed in (("own_elsewhere", "own_elsewhere.py,sha256=x,9\n"), ("other", "")):
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        (tmp_path / f"{name}-1.0.dist-info" / "RECORD").write_text(listed)
    (tmp_path / "own_script.py").write_text("VALUE = [1]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    package, program = map(importlib.import_module, ("own_elsewhere", "own_script"))
    scales = package.make()

    def scaled(x: int) -> int:
        with package.scaled():
            return int(scales(x)) * program.VALUE[0]

    assert mg.parallel_map(scaled, [1, 2]) == [3, 6]
    assert mg.parallel_map(lambda _: package.keeps() > 0, [1, 2]) == [True, True]
    with pytest.raises(RuntimeError, match="VALUE"):
        mg.parallel_map(lambda k: program.VALUE.append(k), [1, 2])
    for name in ("own_elsewhere", "own_script"):
        del sys.modules[name]


# ---------------------------------------------------------------------- changes


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_change_is_an_error_each_time(engine: mg.Engine, where: str) -> None:
    """It was so: the third run of a cell that had raised twice was wrong without a word."""
    seen: list[int] = []

    class Counts(mg.Function):
        @staticmethod
        def forward(ctx: Any, x: mg.Tensor) -> mg.Tensor:
            if where == "forward":
                seen.append(1)
            return x * 2.0

        @staticmethod
        def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
            seen.append(1)
            return grad * 2.0

    x = mg.ones((), requires_grad=True)

    def both_passes() -> None:
        sum(mg.parallel_map(Counts.apply, [x, x])).backward()

    def forks() -> None:
        mg.fork(Counts.apply, x).result(60).backward()

    for runs in (both_passes, forks, both_passes, both_passes, forks):
        with pytest.raises(RuntimeError, match="seen"):
            runs()


class Lazy:
    """As an object of an installed library, which computes something when it is first asked."""

    def __init__(self) -> None:
        self._table: Any = None
        self.cache: dict[str, int] = {}
        self.count, self._calls = 0, 0

    def read(self) -> int:
        self._table = self._table or [1, 2, 3]
        self.cache["read"] = self._later = 1
        return sum(self._table)

    def write(self, name: str) -> int:
        vars(self)[name] += 1
        return 1


def test_caches_of_libraries_may_fill(engine: mg.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was so: whoever read a pandas Series or a Delaunay triangulation had changed it."""
    monkeypatch.setattr("mpgrad.calls.reached_state._is_of_library", lambda cls: cls is Lazy)
    lazy = Lazy()
    with mg.Engine("local"):
        assert mg.parallel_map(lambda k: lazy.read() * k, [1, 2]) == [6, 12]
        for name in ("count", "_calls"):
            with pytest.raises(RuntimeError, match=name):
                mg.parallel_map(lambda k: lazy.write(name), [1, 2])  # noqa: B023


def test_objects_of_scipy_are_read(engine: mg.Engine) -> None:
    points = np.random.default_rng(0).random((30, 2))
    own = pytest.importorskip("scipy.spatial").Delaunay(points)
    assert len(mg.parallel_map(lambda k: own.find_simplex([k / 3, 0.5]), [1, 2])) == 2


class Quantity(np.ndarray[Any, Any]):
    def tobytes(self, *args: Any, **kwargs: Any) -> bytes:
        raise NotImplementedError("as of astropy")


class Irreps(tuple[Any, ...]):
    def __len__(self) -> int:
        raise NotImplementedError("as of e3nn")

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError("as of e3nn")


@pytest.mark.parametrize("make", [lambda: np.ones(2).view(Quantity), lambda: Irreps([1, 2])])
def test_containers_that_refuse_to_be_looked_at(engine: mg.Engine, make: Callable[[], Any]) -> None:
    """It was so: their error, without a word about the call."""
    held = make()
    assert mg.parallel_map(lambda own: own[1] * held[0], [make(), make()]) == [held[1]] * 2


@pytest.mark.parametrize(
    "iterables",
    [
        (range(3), itertools.repeat(2)),
        (itertools.count(), range(3)),
        (range(3), range(4)),
    ],
)
def test_iterables_of_other_lengths(iterables: Any) -> None:
    """It was so: an endless one was read until there was no memory left."""
    with pytest.raises(ValueError, match=r"shorter|longer") as caught:
        mg.parallel_map(lambda a, b: a, *iterables)
    assert "shared=(x,)" in caught.value.__notes__[0]
