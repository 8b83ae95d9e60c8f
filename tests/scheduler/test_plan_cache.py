"""PlanCache: the same structure gets the same plan, another one never does."""

from __future__ import annotations

from random import Random

from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec
from mpgrad.scheduler.plan import PLANS_MAX, PlanCache, plan, structure
from mpgrad.scheduler.tuning import DRIFT_MAX
from simulation.random_graphs import random_graph


def scaled(spec: GraphSpec, factor: float) -> GraphSpec:
    return spec._replace(nodes=tuple(n._replace(cost_us=n.cost_us * factor) for n in spec.nodes))


def test_a_plan_is_made_once() -> None:
    cache, spec = PlanCache(plan), random_graph(Random(1)).spec
    first = cache.plan(spec)
    assert first == plan(spec)
    assert cache.plan(scaled(spec, 1.0 + 0.5 * DRIFT_MAX)) is first
    assert len(cache) == 1


def test_costs_that_changed_in_earnest_make_a_new_plan() -> None:
    spec = random_graph(Random(2)).spec
    for factor in (1.0 + 2.0 * DRIFT_MAX, 1.0 / (1.0 + 2.0 * DRIFT_MAX)):
        cache = PlanCache(plan)
        first = cache.plan(spec)
        changed = scaled(spec, factor)
        assert cache.plan(changed) is not first
        assert cache.plan(changed) == plan(changed)
        assert len(cache) == 1


def test_any_difference_of_structure_is_seen() -> None:
    spec = random_graph(Random(3)).spec
    at = next(i for i, node in enumerate(spec.nodes) if any(node.edges))
    node = spec.nodes[at]
    others = [
        node._replace(edges=(None,) * len(node.edges)),
        node._replace(input_nbytes=tuple(n + 10**6 for n in node.input_nbytes)),
        node._replace(on_client=not node.on_client),
        node._replace(is_sink=not node.is_sink),
        node._replace(is_splittable=not node.is_splittable),
        node._replace(unpacks=not node.unpacks),
        node._replace(passes=(at,)),
        node._replace(device=1),
        node._replace(device_inputs=(True,) * len(node.input_nbytes)),
        node._replace(part_nbytes=(1,)),
        node._replace(parts=(0, 1)),
        node._replace(is_branch=not node.is_branch),
    ]
    tried = {
        f for other in others for f in NodeSpec._fields if getattr(other, f) != getattr(node, f)
    }
    not_wiring = {"name", "sequence_nr", "cost_us", "second_half_share"}
    assert tried == {*NodeSpec._fields} - not_wiring
    variants = [
        spec._replace(nodes=(*spec.nodes[:at], other, *spec.nodes[at + 1 :])) for other in others
    ]
    variants += [
        spec._replace(seeds=(*spec.seeds, spec.seeds[0])),
        spec._replace(captures=(*spec.captures, (0, 0))),
        spec._replace(order=spec.order[::-1]),
    ]
    keys = {structure(variant) for variant in [spec, *variants]}
    assert len(keys) == 1 + len(variants)


def test_names_do_not_matter_and_the_cache_is_bounded() -> None:
    cache = PlanCache(plan)
    spec = random_graph(Random(4)).spec
    renamed = spec._replace(nodes=tuple(n._replace(name="Other") for n in spec.nodes))
    assert cache.plan(spec) is cache.plan(renamed)
    kept = cache.plan(spec)
    for seed in range(100, 100 + PLANS_MAX):
        cache.plan(random_graph(Random(seed)).spec)
        assert cache.plan(spec) is kept  # used last, so it stays
    assert len(cache) == PLANS_MAX
