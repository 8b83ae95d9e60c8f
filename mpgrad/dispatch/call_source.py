"""The source of the functions that call one operator, and that record one call of it.

The source contains all that the registry knows about the operator: inputs by name, its attributes,
whether the result is a view, and what the formulas save for the needed inputs. So a call looks
nothing up and has no loops. :mod:`mpgrad.dispatch.operator_call` defines the free names.

    def mul(a, b):
        if MODES.entered or CUDA.in_use:
            return call_anywhere(operator, (a, b), {})
        a_array = a._array if isinstance(a, Tensor) else a
        ...

This file knows text only: neither tensors nor Nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpgrad.base.generated_code import listed
from mpgrad.graph.registry import Operator, Source

#: The parameters of a formula that describe the form of an input.
LOOKS = ("shape", "dtype", "device")


def is_written_out(operator: Operator) -> bool:
    """Whether it has a fixed number of inputs, and one result that can have a gradient."""
    return not operator.variadic and operator.outputs == 1


def call_source(operator: Operator) -> str:
    """``def call(*inputs, *, **attributes)``: runs forward, and records the call if necessary."""
    if not is_written_out(operator):
        return (
            "def call(*inputs, **attributes):\n"
            "    return call_anywhere(operator, inputs, attributes)\n"
        )
    inputs, attributes = operator.inputs, operator.attributes
    given = f"({listed(inputs)}), {_dict_of(attributes)}"
    arrays = [f"{name}_array" for name in inputs]
    passed = ", ".join(["cpu", *arrays, *[f"{name}={name}" for name in attributes]])
    lines = [
        f"def call({', '.join([*inputs, *(['*', *attributes] if attributes else [])])}):",
        "    if MODES.entered or CUDA.in_use:",
        f"        return call_anywhere(operator, {given})",
        *[f"    {name}_array = {name}._array if isinstance({name}, Tensor) else {name}"
          for name in inputs],
        "    try:",
        f"        raw = forward({passed})",
        "    except (TypeError, ValueError, IndexError) as error:",
        f"        raise refusal(operator.name, ({listed(arrays)}), error) from error",
        "    if isinstance(raw, tuple):",
        f"        return recorded(operator, {given}, raw)",
        "    result = Tensor(raw)",
    ]  # fmt: skip
    records = "is_grad_enabled()"
    if operator.view is not None:
        lines.append(f"    share_memory(operator, {inputs[0]}, (result,), {_dict_of(attributes)})")
        records += f" and {inputs[0]}._version_counter is not INFERENCE"
    needs = [
        _requires_grad(name) if operator.is_differentiable(at) else "False"
        for at, name in enumerate(inputs)
    ]
    lines += [
        f"    if {records}:",
        f"        needs = ({listed(needs)})",
        "        if True in needs:",
        "            record = recorders.get(needs) or recorder_of(operator, needs)",
        f"            record({', '.join([*inputs, *attributes, 'result'])})",
        "    return result",
    ]
    return "\n".join(lines) + "\n"


def record_source(operator: Operator, needs: Sequence[bool]) -> str:
    """``def record(*inputs, *attributes, result)``: makes the Node of a call with this result.

    Args:
        operator: the operator.
        needs: for each input, whether its gradient is needed.
    """
    inputs, attributes = operator.inputs, operator.attributes
    sources = operator.sources(needs)
    edges = [
        f"gradient_edge({name})" if needed else "None"
        for name, needed in zip(inputs, needs, strict=True)
    ]
    looks = ["result._array.shape", "result._array.dtype"]
    for position in looked_at(operator, needs):
        name = inputs[position]
        if needs[position]:
            looks += [f"{name}._array.shape", f"{name}._array.dtype"]
        else:
            looks += [f"*look_of({name})"]
    kind = "node_class"
    if not isinstance(operator.node_name, str):
        kind += f"_of(operator, ({listed(inputs)}), {_dict_of(attributes)})"
    plain = [source.name for source in sources if source.kind == "attribute"]
    lines = [
        f"def record({', '.join([*inputs, *attributes, 'result'])}):",
        f"    looks = described({', '.join(looks)})",
        "    if looks is None:",
        "        return",
        f"    node = new({kind})",
        "    node.input_metadata, node.input_info, node.plain = looks",
        *([f"    node.plain = {{**node.plain, {_dict_of(plain)[1:]}"] if plain else []),
        f"    node.next_edges = ({listed(edges)})",
        "    node.sequence_nr = next_sequence_nr()",
        "    node.hooks = None",
        "    node.has_packed = False",
        "    node._metadata = origin() if anomaly.enabled else None",
        "    result._grad_fn, result._output_nr, result._requires_grad = node, 0, True",
        "    node._saved = saved = {}",
    ]
    for source in sources:
        lines += _saving(source, inputs, needs)
    lines += ["    if HOOKS.entered:", "        node.note_hooks()"]
    return "\n".join(lines) + "\n"


def looked_at(operator: Operator, needs: Sequence[bool]) -> tuple[int, ...]:
    """The inputs whose form ``record`` notes: those that get a gradient, and those whose shape,
    dtype or device a formula uses."""
    asked = {s.position for s in operator.sources(needs) if s.kind in LOOKS}
    return tuple(at for at, needed in enumerate(needs) if needed or at in asked)


def _saving(source: Source, inputs: Sequence[str], needs: Sequence[bool]) -> list[str]:
    """The lines that save one parameter of a formula."""
    name = source.name
    if source.kind == "result":
        return [f"    saved[{name!r}] = SavedTensor(result, is_output=True)"]
    if source.kind == "results":
        return [f"    saved[{name!r}] = (SavedTensor(result, is_output=True),)"]
    if source.kind != "input":
        return []
    save = f"saved[{name!r}] = SavedTensor({name})"
    if needs[source.position]:
        return [f"    {save}"]
    return [
        f"    if isinstance({name}, Tensor):",
        f"        {save}",
        "    else:",
        f"        node.plain = {{**node.plain, {name!r}: {name}}}",
    ]


def _requires_grad(name: str) -> str:
    return (
        f"isinstance({name}, Tensor) and "
        f"({name}._requires_grad or ({name}._view is not None and {name}.requires_grad))"
    )


def _dict_of(names: Sequence[str]) -> str:
    return "{" + ", ".join(f"{name!r}: {name}" for name in names) + "}"
