"""The source of the functions that call one operator, and that record one call of it.

The source contains all that the registry knows about the operator: inputs by name, its attributes,
whether the result is a view, and what the formulas save for the needed inputs. So a call looks
nothing up and has no loops. :mod:`mpgrad.recording.dispatch.operator_call` defines the free names.

    def call(a, b):
        if MODES.entered or CUDA.in_use:
            return call_anywhere(operator, (a, b), {})
        if isinstance(a, Tensor):
            a_array, a_needs = a._array, a._requires_grad or ...
        ...

Tensors and SavedTensors are made here without a call of their classes, which takes longer than all
that it does. This file knows text only: neither tensors nor Nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpgrad.base.generated_code import listed
from mpgrad.recording.graph.registry import Operator, Source

#: The parameters of a formula that describe the form of an input.
METADATA_KINDS = ("shape", "dtype", "device")


def is_written_out(operator: Operator) -> bool:
    """Whether it has a fixed number of inputs, and one result that can have a gradient."""
    return not operator.variadic and operator.outputs == 1


def call_source(operator: Operator, *, looks_for_modes: bool = True) -> str:
    """``def call(*inputs, *, **attributes)``: runs forward, and records the call if necessary.

    Args:
        operator: the operator.
        looks_for_modes: whether the call may be under operator modes, or on a GPU.
    """
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
        *[line for name in attributes for line in _as_number(name)],
    ]
    if looks_for_modes:
        lines.append("    if MODES.entered or CUDA.in_use:")
        lines.append(f"        return call_anywhere(operator, {given})")
    for at, name in enumerate(inputs):
        lines += _opened(name, operator.is_differentiable(at))
    lines += [
        "    try:",
        f"        raw = forward({passed})",
        "    except (TypeError, ValueError, IndexError) as error:",
        f"        raise refusal(operator.name, ({listed(arrays)}), error) from error",
        "    if isinstance(raw, tuple):",
        f"        return recorded(operator, {given}, raw)",
        "    if INFERENCE_MODES.entered:",
        "        result = Tensor(raw)",
        "    else:",
        *[f"        {line}" for line in _NEW_TENSOR],
    ]
    needs = [
        f"{name}_needs" if operator.is_differentiable(at) else "False"
        for at, name in enumerate(inputs)
    ]
    records = f"({' or '.join([need for need in needs if need != 'False']) or 'False'})"
    records += " and GRAD_MODE.enabled"
    if operator.view is not None:
        lines.append(f"    share_memory(operator, {inputs[0]}, (result,), {_dict_of(attributes)})")
        records += f" and {inputs[0]}._version_counter is not INFERENCE"
    lines += [
        f"    if {records}:",
        f"        needs = ({listed(needs)})",
        "        record = recorders.get(needs) or recorder_of(operator, needs)",
        f"        record({', '.join([*inputs, *attributes, 'result'])})",
        "    return result",
    ]
    return "\n".join(lines) + "\n"


#: ``Tensor(raw)`` as ``result``.
_NEW_TENSOR = (
    "result = new(Tensor)",
    "result._array = raw",
    "result._version_counter = version = new(VersionCounter)",
    "version.value = result._output_nr = 0",
    "result._requires_grad = result._retains_grad = False",
    "result._grad = result._grad_fn = result._view = result._accumulator = None",
    "result._leaf_hooks = result._post_accumulate_hooks = None",
    "result._grad_dtype = OWN_DTYPE",
)


def _as_number(name: str) -> list[str]:
    """The lines that take the number of an attribute that is given as a Tensor or by NumPy."""
    return [
        f"    if isinstance({name}, HOLDERS):",
        f"        {name} = number_of(operator, {name})",
    ]


def _opened(name: str, is_differentiable: bool) -> list[str]:
    """The lines that take the array of an input, and whether it requires grad."""
    if not is_differentiable:
        return [f"    {name}_array = {name}._array if isinstance({name}, Tensor) else {name}"]
    return [
        f"    if isinstance({name}, Tensor):",
        f"        {name}_array, {name}_needs = {name}._array, {name}._requires_grad or (",
        f"            {name}._view is not None and {name}.requires_grad)",
        "    else:",
        f"        {name}_array, {name}_needs = {name}, False",
    ]


def record_source(operator: Operator, needs: Sequence[bool]) -> str:
    """``def record(*inputs, *attributes, result)``: makes the Node of a call with this result.

    Args:
        operator: the operator.
        needs: for each input, whether its gradient is needed.
    """
    inputs, attributes = operator.inputs, operator.attributes
    sources = operator.sources(needs)
    needed = [name for name, needs_one in zip(inputs, needs, strict=True) if needs_one]
    edges = [f"{name}_edge" if name in needed else "None" for name in inputs]
    infos = ["result._array.shape", "result._array.dtype"]
    for position in looked_at(operator, needs):
        name = inputs[position]
        if needs[position]:
            infos += [f"{name}._array.shape", f"{name}._array.dtype"]
        else:
            infos += [f"*shape_and_dtype({name})"]
    kind = "node_class"
    if not isinstance(operator.node_name, str):
        kind += f"_of(operator, ({listed(inputs)}), {_dict_of(attributes)})"
    plain = [source.name for source in sources if source.kind == "attribute"]
    lines = [
        f"def record({', '.join([*inputs, *attributes, 'result'])}):",
        f"    infos = described({', '.join(infos)})",
        "    if infos is None:",
        "        return",
        f"    node = new({kind})",
        "    node.input_metadata, node.input_info, node.plain = infos",
        *([f"    node.plain = {{**node.plain, {_dict_of(plain)[1:]}"] if plain else []),
        *[line.format(name) for name in needed for line in _NEW_EDGE],
        f"    node.next_edges = ({listed(edges)})",
        f"    node.leaves = {', '.join([f'{name}_leaf' for name in needed])}",
        "    node.sequence_nr = SEQUENCE.next()",
        "    node.hooks = None",
        "    node.has_packed = False",
        "    node._metadata = origin() if anomaly.enabled else None",
        "    result._grad_fn, result._output_nr, result._requires_grad = node, 0, True",
    ]
    saving = [line for source in sources for line in _saving(source, inputs, needs)]
    if not saving:
        lines.append("    node._saved = NOTHING_SAVED")
    else:
        lines.append("    node._saved = saved = {}")
        again = [line for source in sources for line in _saving_packed(source, inputs, needs)]
        lines += [
            "    if HOOKS.entered:",
            *[f"        {line}" for line in again],
            "        node.note_hooks()",
            "        return",
            *[f"    {line}" for line in saving],
            "    if not saved: node._saved = NOTHING_SAVED",
        ]
    return "\n".join(lines) + "\n"


def looked_at(operator: Operator, needs: Sequence[bool]) -> tuple[int, ...]:
    """The inputs whose form ``record`` notes: those that get a gradient, and those whose shape,
    dtype or device a formula uses."""
    asked = {s.position for s in operator.sources(needs) if s.kind in METADATA_KINDS}
    return tuple(at for at, needed in enumerate(needs) if needed or at in asked)


#: ``recorded_edge`` of an input.
_NEW_EDGE = (
    "    {0}_edge, {0}_leaf = {0}._accumulator, {0}",
    "    if {0}._grad_fn is not None and {0}._view is None:",
    "        {0}_edge, {0}_leaf = ({0}._grad_fn, {0}._output_nr), None",
    "    elif {0}._grad_fn is not None or {0}_edge.__class__ is not tuple:",
    "        {0}_edge, {0}_leaf = recorded_edge({0})",
)


def _saving(source: Source, inputs: Sequence[str], needs: Sequence[bool]) -> list[str]:
    """The lines that save one parameter of a formula, where no hooks are in force."""
    name = source.name
    if source.kind in ("result", "last_result"):
        return [*_NEW_SAVED_RESULT, f"saved[{name!r}] = packed"]
    if source.kind == "results":
        return [*_NEW_SAVED_RESULT, f"saved[{name!r}] = (packed,)"]
    if source.kind != "input":
        return []
    save = [*[line.format(name) for line in _NEW_SAVED_INPUT], f"saved[{name!r}] = packed"]
    if needs[source.position]:
        return save
    return [
        f"if isinstance({name}, Tensor):",
        *[f"    {line}" for line in save],
        "else:",
        f"    node.plain = {{**node.plain, {name!r}: {name}}}",
    ]


#: ``SavedTensor(...)`` of an input, and of ``result``, as ``packed``.
_NEW_SAVED_INPUT = (
    "if {0}._version_counter is INFERENCE: SavedTensor({0})  # raises",
    "packed = new(SavedTensor)",
    "packed.packed, packed._version = None, {0}._version_counter.value",
    "packed._tensor, packed._was_leaf = {0}, {0}._grad_fn is None",
)
_NEW_SAVED_RESULT = (
    "packed = new(SavedTensor)",
    "packed.packed = packed._tensor = None",
    "packed._counter = result._version_counter",
    "packed._version = packed._counter.value",
    "packed._array, packed._output_nr, packed._requires_grad = result._array, 0, True",
)


def _saving_packed(source: Source, inputs: Sequence[str], needs: Sequence[bool]) -> list[str]:
    """The same where hooks may pack it."""
    name = source.name
    if source.kind in ("result", "last_result"):
        return [f"saved[{name!r}] = SavedTensor(result, is_output=True)"]
    if source.kind == "results":
        return [f"saved[{name!r}] = (SavedTensor(result, is_output=True),)"]
    if source.kind != "input":
        return []
    save = f"saved[{name!r}] = SavedTensor({name})"
    if needs[source.position]:
        return [save]
    return [
        f"if isinstance({name}, Tensor):",
        f"    {save}",
        "else:",
        f"    node.plain = {{**node.plain, {name!r}: {name}}}",
    ]


def _dict_of(names: Sequence[str]) -> str:
    return "{" + ", ".join(f"{name!r}: {name}" for name in names) + "}"
