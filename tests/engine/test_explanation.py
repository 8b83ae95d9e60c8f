"""``engine.explain()``: by reason, as pictures, and in notebooks."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.engine.explanation import Explanation
from mpgrad.engine.graph_picture import BOXES_MAX, Box, GraphPicture

SVG = "{http://www.w3.org/2000/svg}"


class Travels(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        return grad * 2.0


class Stays(Travels):
    run_on = "client"


def explained() -> Explanation:
    x = mg.ones(3, requires_grad=True)
    loss = mg.stack([Travels.apply(x).sum() for _ in range(3)] + [Stays.apply(x).sum()]).sum()
    return mg.Engine("process", cpu_workers=2).explain(loss)


def test_nodes_are_grouped_by_place_and_reason() -> None:
    found = explained()
    groups = {(group.where, group.reason): group for group in found.groups()}
    travel = groups["worker", "a Function that reads nothing that could differ"]
    assert [node.name for node in travel.nodes] == ["TravelsBackward"] * 3
    (stay,) = (group for group in groups.values() if group.where == "client")
    assert 'run_on = "client"' in stay.reason
    assert sum(len(group.nodes) for group in groups.values()) == len(found.nodes)
    lines = str(found).splitlines()
    assert len(lines) == 2 + 2 * len(groups)
    assert any("TravelsBackward x 3" in line for line in lines)
    assert any(line.startswith("    3 in workers, ") for line in lines)


def test_the_table_has_a_line_for_each_node() -> None:
    found = explained()
    assert len(found.table().splitlines()) == 2 + len(found.nodes)


def test_edges_lead_from_earlier_to_later_nodes() -> None:
    found = explained()
    assert all(source < target for source, target in found.edges)
    names = {(found.nodes[s].name, found.nodes[t].name) for s, t in found.edges}
    assert ("SumBackward0", "StackBackward0") in names
    assert ("TravelsBackward", "AccumulateGrad") in names


def test_the_picture_shows_every_node_and_its_longest_chain() -> None:
    found = explained()
    root = ElementTree.fromstring(found.to_svg())
    boxes = root.findall(f".//{SVG}rect")
    assert len(boxes) == len(found.nodes)
    assert len(root.findall(f".//{SVG}path")) == len(found.edges)
    thick = [box for box in boxes if box.get("stroke-width") == "2.5"]
    assert 1 < len(thick) < len(boxes)


def test_boxes_stand_below_those_that_flow_into_them() -> None:
    boxes = [Box(name, "", "worker") for name in "abcd"]
    picture = GraphPicture(boxes, [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)])
    root = ElementTree.fromstring(picture.to_svg())
    tops = [float(box.get("y", 0)) for box in root.findall(f".//{SVG}rect")]
    assert tops[0] < tops[1] == tops[2] < tops[3]


def test_names_are_escaped_in_every_form() -> None:
    picture = GraphPicture([Box('a<b> & "c"', "x", "client")], [])
    assert "a<b>" not in picture.to_svg()
    ElementTree.fromstring(picture.to_svg())
    assert '\\"c\\"' in picture.to_dot()
    assert '"c"' not in picture.to_mermaid()


def test_text_forms_name_every_edge() -> None:
    found = explained()
    assert found.to_dot().count(" -> ") == len(found.edges)
    assert found.to_dot().startswith("digraph")
    assert found.to_mermaid().count(" --> ") == len(found.edges)
    assert found.to_mermaid().startswith("flowchart")


def test_a_picture_that_nobody_can_read_is_refused() -> None:
    picture = GraphPicture([Box("a", "", "worker")] * (BOXES_MAX + 1), [])
    with pytest.raises(ValueError, match="to_dot"):
        picture.to_svg()
    assert picture.to_dot()


# ---------------------------------------------------------------------- notebooks


def test_notebooks_show_tables() -> None:
    assert "<svg" in explained()._repr_html_()
    assert "a Function that reads nothing that could differ" in explained()._repr_html_()
    with mg.Engine("local") as engine:
        mg.ones(1, requires_grad=True).sum().backward()
        shown = engine._repr_html_()
    assert "&lt;Engine mode=&#x27;local&#x27;" in shown
    assert "backwards_local" in shown
    x = mg.ones(2, 3, requires_grad=True)
    assert "shape (2, 3)" in x._repr_html_()
    assert "grad_fn=&lt;MulBackward0&gt;" in (x * 2)._repr_html_()
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 5)))
    shown = model._repr_html_()
    assert "41 numbers" in shown
    assert "1.0" in shown


def test_statistics_print_a_line_for_each_figure_that_is_not_zero() -> None:
    with mg.Engine("local") as engine:
        mg.ones(1, requires_grad=True).sum().backward()
        lines = str(engine.statistics()).splitlines()
    assert lines[0].split() == ["mode", "local"]
    assert lines[1].split() == ["backwards_local", "1"]
    assert not any(line.startswith("failed") for line in lines)
    assert any(line.startswith("client_arena: limit_bytes") and "," in line for line in lines)


def test_it_says_which_times_are_assumed() -> None:
    class Untimed(Travels):
        pass

    x = mg.ones(3, requires_grad=True)
    with mg.Engine("local") as engine:
        loss = Untimed.apply(x).sum() + Untimed.apply(x * 2).sum()
        before = engine.explain(loss)
        loss.backward(retain_graph=True)
        after = engine.explain(loss)
    assert before.unmeasured == 2
    assert "(assumed: 2 Functions have not run yet)" in str(before).splitlines()[0]
    assert after.unmeasured == 0
    assert "assumed" not in str(after)
