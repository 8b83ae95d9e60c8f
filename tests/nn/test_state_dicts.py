"""State dicts with their hooks, extra state and versions do what PyTorch's do."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpgrad as mg
from mpgrad import nn
from tests.torch_outcomes import Of


def _net(T: Any) -> Any:
    class Counted(T.nn.Linear):  # type: ignore[misc]
        """Has extra state, and another version."""

        _version = 3
        calls = 7

        def get_extra_state(self) -> Any:
            return {"calls": self.calls}

        def set_extra_state(self, state: Any) -> None:
            self.calls = state["calls"]

    net = T.nn.Sequential(Counted(2, 3), T.nn.BatchNorm1d(3), T.nn.ModuleDict({"a": Counted(3, 1)}))
    for at, parameter in enumerate(net.parameters()):
        T.nn.init.constant_(parameter, at)
    return net


def _plain(state: Any) -> list[Any]:
    return [
        [key, value.tolist() if hasattr(value, "tolist") else value] for key, value in state.items()
    ]


def _error(function: Callable[[], Any]) -> list[str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - both libraries' are compared
        function()
    text = str(caught.value).replace("torch.Size(", "").replace("mpgrad.Size(", "")
    return [type(caught.value).__name__, text.replace("torch.", "").replace("])", "]")]


def contents(T: Any) -> Any:
    net = _net(T)
    state = net.state_dict()
    kept = net.state_dict(keep_vars=True)
    into = OrderedDict(before=1)
    net.state_dict(destination=into, prefix="net.")
    return [
        _plain(state),
        type(state).__name__,
        [[key, dict(value)] for key, value in state._metadata.items()],
        [type(value).__name__ for value in kept.values()],
        list(into),
    ]


def extra_state(T: Any) -> Any:
    net, other = _net(T), _net(T)
    net[0].calls = 9
    told = [str(other.load_state_dict(net.state_dict())), other[0].calls]
    state = net.state_dict()
    del state["0._extra_state"]
    state["1._extra_state"] = 5
    loaded = other.load_state_dict(state, strict=False)
    return [told, loaded.missing_keys, loaded.unexpected_keys]


def hooks_of_making(T: Any) -> Any:
    net, seen = _net(T), []
    handle = net[0].register_state_dict_pre_hook(
        lambda module, prefix, keep_vars: seen.append(["pre", prefix, keep_vars])
    )

    def post(module: Any, state: Any, prefix: str, metadata: Any) -> None:
        seen.append(["post", prefix, dict(metadata), len(state)])
        state.pop(prefix + "weight", None)

    net[2].register_state_dict_post_hook(post)
    net._register_state_dict_hook(lambda module, state, prefix, metadata: {"all": sorted(state)})
    first = net.state_dict(keep_vars=True)
    handle.remove()
    return [first, net.state_dict(), seen]


def hooks_of_loading(T: Any) -> Any:
    net, seen = _net(T), []

    def rename(state: Any, prefix: str, *others: Any) -> None:
        seen.append(
            [prefix, *(list(other) if isinstance(other, dict) else other for other in others)]
        )
        state[prefix + "weight"] = state.pop(prefix + "older")

    net[0]._register_load_state_dict_pre_hook(rename)
    net[2].register_load_state_dict_pre_hook(
        lambda *given: seen.append([type(given[0]).__name__, given[2]])
    )

    def after(module: Any, keys: Any) -> None:
        seen.append([type(module).__name__, list(keys.missing_keys), list(keys.unexpected_keys)])
        keys.missing_keys.clear()

    net[2].register_load_state_dict_post_hook(after)
    state = net.state_dict()
    state["0.older"] = state.pop("0.weight") + 20
    del state["2.a.weight"]
    keys = net.load_state_dict(state)
    return [seen, list(keys), net[0].weight.tolist()]


def assigned(T: Any) -> Any:
    net = _net(T)
    net[0].weight.requires_grad_(False)
    state = net.state_dict()
    state["1.running_mean"] = T.ones(3)
    state["2.a.weight"] = T.nn.Parameter(T.full((1, 3), 8.0))
    net.load_state_dict(state, assign=True)
    same = [
        net[1].running_mean is state["1.running_mean"],
        net[2]["a"].weight is state["2.a.weight"],
    ]
    return [
        same,
        [[n, p.requires_grad] for n, p in net.named_parameters()],
        _plain(net.state_dict()),
    ]


def a_class_with_its_own(T: Any) -> Any:
    class Custom(T.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.param = T.nn.Parameter(T.ones(1))

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            destination[prefix + "serialized"] = self.param.data + 1

        def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
            self.param.data.copy_(state_dict[prefix + "serialized"] - 1)

    net = T.nn.Sequential(Custom(), T.nn.Linear(1, 1, bias=False))
    state = net.state_dict()
    state["0.serialized"] = T.tensor([5.0])
    net.load_state_dict(state)
    return [list(state), net[0].param.tolist()]


def older_versions(T: Any) -> Any:
    norm = T.nn.BatchNorm1d(2)
    norm.num_batches_tracked.fill_(4)
    state = norm.state_dict()
    del state["num_batches_tracked"]
    refused = _error(lambda: norm.load_state_dict(state))
    state._metadata[""]["version"] = 1
    norm.load_state_dict(state)
    return [refused, norm.num_batches_tracked.tolist()]


def refusals(T: Any) -> Any:
    net = _net(T)
    state = net.state_dict()
    state["0.weight"] = T.ones(2, 2)
    state["extra"] = T.ones(1)
    state["2.b.c"] = T.ones(1)
    del state["1.bias"]
    told = [_error(lambda: net.load_state_dict(state)), _error(lambda: net.load_state_dict(3))]
    told.append(_error(lambda: T.nn.Linear(1, 1).get_extra_state())[:1])
    net.register_state_dict_post_hook(lambda *given: 1)
    return [*told, _error(net.state_dict)]


def buffers(T: Any) -> Any:
    module = T.nn.Module()
    module.kept = T.nn.Buffer(T.ones(2))
    module.passing = T.nn.Buffer(T.zeros(1), persistent=False)
    module.later = T.nn.Buffer(T.zeros(1), persistent=False)
    module.later = T.nn.Buffer(T.ones(1))
    module.passing = T.ones(3)
    return [list(module.state_dict()), [n for n, _ in module.named_buffers()]]


def uninitialized(T: Any) -> Any:
    lazy, other = T.nn.LazyBatchNorm1d(), T.nn.LazyBatchNorm1d()
    told = [type(value).__name__ for value in lazy.state_dict().values()]
    ready = T.nn.BatchNorm1d(3)
    T.nn.init.constant_(ready.weight, 4)
    lazy.load_state_dict(ready.state_dict())
    other.load_state_dict(T.nn.LazyBatchNorm1d().state_dict())
    told += [lazy.weight.tolist(), list(lazy.running_var.shape), type(other.weight).__name__]
    with pytest.raises(RuntimeError, match="shape of an uninitialized"):
        ready.load_state_dict(other.state_dict())
    lazy(T.ones(2, 3))
    return [*told, lazy.weight.tolist(), type(lazy).__name__]


def converted(T: Any) -> Any:
    class Kept(T.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.plain, self.norm = T.ones(2), T.nn.BatchNorm1d(2)

        def _apply(self, function: Any, recurse: bool = True) -> Any:
            super()._apply(function)
            self.plain = function(self.plain)
            return self

    net = T.nn.Sequential(Kept())
    told = []
    for change in (lambda: net.half(), lambda: net.double(), lambda: net.type(T.float32)):
        changed = change()
        norm = changed[0].norm
        told.append(
            [
                str(x.dtype).split(".")[-1]
                for x in (net[0].plain, norm.weight, norm.num_batches_tracked)
            ]
        )
    net.to_empty(device="cpu")
    return [*told, list(net[0].norm.weight.shape)]


PROGRAMS = (
    contents, extra_state, hooks_of_making, hooks_of_loading, assigned, a_class_with_its_own,
    older_versions, refusals, buffers, uninitialized, converted,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_does_what_pytorch_does(program: Callable[[Any], Any], of_torch: Of) -> None:
    here = _listed(program(mg))
    for oracle, there in of_torch(program):
        assert here == there, oracle


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    return {key: _listed(item) for key, item in value.items()} if isinstance(value, dict) else value


def test_nothing_is_changed_where_something_does_not_fit() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2), nn.BatchNorm1d(2))
    before = net[0].weight.tolist()
    state = {**nn.Sequential(nn.Linear(2, 2), nn.Linear(5, 2), nn.BatchNorm1d(3)).state_dict()}
    for assign in (False, True):
        with pytest.raises(RuntimeError, match="size mismatch for 2"):
            net.load_state_dict(state, assign=assign)
        assert net[0].weight.tolist() == before
        assert isinstance(net[1].weight, nn.UninitializedParameter)


def test_hooks_are_copied_and_pickled_with_their_module() -> None:
    layer = nn.Linear(1, 1)
    layer.register_load_state_dict_pre_hook(note)
    layer.register_state_dict_post_hook(note)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        SEEN.clear()
        other.load_state_dict(other.state_dict())
        assert [module is other for module in SEEN] == [True, True]


SEEN: list[Any] = []


def note(module: Any, *others: Any) -> None:
    SEEN.append(module)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_saved_state_dict_has_its_versions(lazy: bool, tmp_path: Path) -> None:
    state = (nn.LazyBatchNorm1d() if lazy else nn.BatchNorm1d(2)).state_dict()
    mg.save(state, tmp_path / "state")
    loaded = mg.load(tmp_path / "state")
    assert list(loaded) == list(state)
    assert loaded._metadata == state._metadata
    assert [type(v) for v in loaded.values()] == [type(v) for v in state.values()]
