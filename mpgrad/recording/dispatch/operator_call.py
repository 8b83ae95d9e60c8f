"""call(): the one way to call an operator: choose the backend, run forward, record the Node.

Public functions use ``call(op, *inputs, **attributes)``, with Tensors or numbers as inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.array_program import TRACING
from mpgrad.arrays.cpu.array_proxies import ArrayProxy
from mpgrad.arrays.cpu.broadcasting import refusal
from mpgrad.arrays.cpu.cpu_backend import CpuBackend
from mpgrad.arrays.cuda.device_arrays import (
    CUDA,
    cuda_namespace,
    device_of,
    first_gpu,
    is_current,
    moved,
    on,
)
from mpgrad.base.device import CPU, Device
from mpgrad.base.generated_code import compiled
from mpgrad.errors import add_note
from mpgrad.recording.dispatch.call_source import (
    METADATA_KINDS,
    call_source,
    is_written_out,
    looked_at,
    record_source,
)
from mpgrad.recording.dispatch.operator_mode import MODES
from mpgrad.recording.dispatch.operator_node import NOTHING_SAVED, OperatorNode, node_class
from mpgrad.recording.graph.anomaly import mode as anomaly
from mpgrad.recording.graph.anomaly import origin
from mpgrad.recording.graph.grad_modes import GRAD_MODE, INFERENCE_MODES, is_grad_enabled
from mpgrad.recording.graph.node import SEQUENCE, InputMetadata
from mpgrad.recording.graph.registry import OPERATORS, RESULTS, Operator, Source
from mpgrad.recording.tensors import view
from mpgrad.recording.tensors.assigned_grad import OWN_DTYPE
from mpgrad.recording.tensors.hooks_in_force import HOOKS
from mpgrad.recording.tensors.saved_tensor import SavedTensor
from mpgrad.recording.tensors.storage import INFERENCE, VersionCounter, empty_result
from mpgrad.recording.tensors.tensor import Tensor, metadata_of, recorded_edge

#: The number of shapes and dtypes that each recorder remembers.
INFOS_MAX = 256

#: The namespace of forward: NumPy, with large results in the client's arena.
cpu = CpuBackend(empty_result)


def call(operator: Operator, *inputs: Any, **attributes: Any) -> Any:
    """Run ``operator`` on ``inputs`` and record it if the gradient of an input may be needed.

    Returns:
        A Tensor, or a tuple of them if forward returned a tuple.

    Raises:
        RuntimeError: the inputs lie on several devices.
    """
    return operator.run(*inputs, **attributes)


def _caller_of(operator: Operator) -> Callable[..., Any]:
    """The function that calls ``operator``, with source of its own (``call_source``)."""
    own = {"operator": operator, "forward": operator.forward, "recorders": operator.recorders}
    place = f"call {operator.name}"
    return compiled("call", call_source(operator), {**_KNOWN, **own}, place)  # type: ignore[no-any-return]


@functools.cache
def _observed_caller_of(operator: Operator) -> Callable[..., Any]:
    """The same for calls that an observer hears of, without modes and GPUs."""
    if not is_written_out(operator):
        return lambda *inputs, **attributes: _call_anywhere(operator, inputs, attributes)
    own = {"operator": operator, "forward": operator.forward, "recorders": operator.recorders}
    source, place = call_source(operator, looks_for_modes=False), f"observed {operator.name}"
    return compiled("call", source, {**_KNOWN, **own}, place)  # type: ignore[no-any-return]


def recorder_of(operator: Operator, needs: tuple[bool, ...]) -> Callable[..., None]:
    """The function that records a call on the CPU whose inputs have these ``needs``.

    It takes the inputs, the attributes and the result, all by position.
    """
    found = operator.recorders.get(needs)
    if found is None:
        own = {"operator": operator, "described": _describer(operator, needs)}
        if isinstance(operator.node_name, str):
            own["node_class"] = operator.node_class or node_class(operator, (), {})
        source, place = record_source(operator, needs), f"record {operator.name} {needs}"
        found = compiled("record", source, {**_KNOWN, **own}, place)
        operator.recorders[needs] = found
    return found


def _describer(operator: Operator, needs: tuple[bool, ...]) -> Callable[..., Any]:
    """A function that returns the ``input_metadata``, ``input_info`` and ``plain`` of a Node.

    Similar Nodes share them. It takes shape and dtype of the result, then those of the inputs
    ``looked_at``; it returns None if the result cannot have a gradient.
    """
    positions = looked_at(operator, needs)
    asked = [source for source in operator.sources(needs) if source.kind in METADATA_KINDS]

    @functools.lru_cache(INFOS_MAX)
    def described(shape: Any, dtype: Any, *infos: Any) -> Any:
        if dtype.kind not in "fc":
            return None
        metadata = {
            at: InputMetadata(*pair)
            for at, pair in zip(positions, zip(infos[::2], infos[1::2], strict=True), strict=True)
        }
        info = tuple([metadata[at] if needed else None for at, needed in enumerate(needs)])
        plain = {name: getattr(metadata[at], kind) for name, kind, at in asked if kind != "device"}
        plain.update({name: str(CPU) for name, kind, _ in asked if kind == "device"})
        return (InputMetadata(shape, dtype),), info, plain

    return described


def shape_and_dtype(value: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of an input; of a scalar () and None."""
    return (value._array.shape, value._array.dtype) if isinstance(value, Tensor) else ((), None)


def call_anywhere(operator: Operator, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """As :func:`call`, for any operator and device, with or without operator modes."""
    observer = MODES.observer
    if observer is None:
        return _call_anywhere(operator, inputs, attributes)
    result, started = None, perf_counter()
    try:
        if len(MODES.entered) == 1 and not CUDA.in_use:  # nothing but the observer
            result = _observed_caller_of(operator)(*inputs, **attributes)
        else:
            result = _call_anywhere(operator, inputs, attributes)
        return result
    finally:
        observer(operator, inputs, started, result)


def _call_anywhere(operator: Operator, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
    for name, value in attributes.items():
        if isinstance(value, HOLDERS):
            attributes = {**attributes, name: number_of(operator, value)}
    xp: Any = cpu
    if CUDA.in_use and not operator.on_any_devices:
        device = device_of_inputs(operator, inputs)
        if device is not CPU:
            if not is_current(device):
                with on(device):
                    return _call_anywhere(operator, inputs, attributes)
            xp, inputs = cuda_namespace(), tuple(on_device_of(operator, inputs, device))
    arrays = [value._array if isinstance(value, Tensor) else value for value in inputs]
    if MODES.entered:
        run = functools.partial(_forward, operator, xp, arrays, attributes)
        raw = MODES.forward(operator, inputs, attributes, run)
    else:
        raw = _forward(operator, xp, arrays, attributes)
    return recorded(operator, inputs, attributes, raw)


#: What holds a number: with NumPy's float64 an array of float32 would become one of float64.
HOLDERS = (Tensor, np.generic)


def number_of(operator: Operator, value: Any) -> Any:
    """The number in a Tensor, or of NumPy's, that was given as an option.

    Raises:
        TypeError: it does not have one element.
    """
    if isinstance(value, Tensor) and value.numel() != 1:
        raise TypeError(
            f"{operator.name}(): an option has to be a number, not a Tensor of shape "
            f"{list(value.shape)}"
        )
    return value.item()


def _forward(operator: Operator, xp: Any, arrays: list[Any], attributes: dict[str, Any]) -> Any:
    try:
        return operator.forward(xp, *arrays, **attributes)
    except (TypeError, ValueError, IndexError) as error:
        raise refusal(operator.name, arrays, error) from error


def recorded(
    operator: Operator, inputs: Sequence[Any], attributes: dict[str, Any], raw: Any
) -> Any:
    """The results of forward as recorded Tensors."""
    several = isinstance(raw, tuple)
    outputs = [Tensor(array) for array in (raw if several else (raw,))]
    records = is_grad_enabled()
    if operator.view is not None and len(inputs) == 1:  # what index arrays choose is a copy
        view.share_memory(operator, inputs[0], outputs, attributes)
        records = records and inputs[0]._version_counter is not INFERENCE
    if MODES.entered:
        MODES.done(operator, inputs, attributes, outputs)
    if records:
        needs = wanted_gradients(operator, inputs)
        if True in needs:
            record_call(operator, inputs, outputs, needs, attributes)
    return tuple(outputs) if several else outputs[0]


def device_of_inputs(operator: Operator, inputs: Sequence[Any]) -> Device:
    """The device of ``operator``: the only GPU of its inputs; the CPU if there is none.

    Raises:
        RuntimeError: they lie on several devices. Beside inputs on a GPU, only tensors without
            dimensions and indices may lie on the CPU.
    """
    devices = [device_of(value._array) for value in inputs if isinstance(value, Tensor)]
    found = next((device for device in devices if device is not CPU), CPU)
    for value in inputs:
        if found is CPU or not isinstance(value, Tensor):
            continue
        other = device_of(value._array)
        if other != found and not (
            other is CPU and (value._array.ndim == 0 or _is_index(operator, value))
        ):
            error = RuntimeError(_several_devices(found, other))
            add_note(error, f"in {operator.name}()")
            raise error
    return found


def _is_index(operator: Operator, value: Tensor) -> bool:
    return "key" in operator.attributes and value._array.dtype.kind in "bui"


def on_device_of(operator: Operator, inputs: Sequence[Any], device: Device) -> list[Any]:
    """``inputs``, with those on the CPU moved to ``device``, recorded if possible."""
    gathered = []
    for value in inputs:
        if isinstance(value, Tensor) and device_of(value._array) is CPU:
            if value._array.dtype.kind in "fc":
                value = call(OPERATORS["to_device"], value, device=str(device))
            else:
                value = Tensor(moved(value._array, device))
        gathered.append(value)
    return gathered


def namespace_for(array: Any) -> Any:
    """The array namespace for ``array``, whose device must be the current one."""
    if type(array) is ArrayProxy:
        return array._program.namespace
    return cpu if device_of(array) is CPU else cuda_namespace()


def unrecorded(compute: Callable[..., Any], *values: Any) -> Tensor:
    """``compute(xp, *arrays)`` of the arrays of ``values`` as a Tensor without history.

    Raises:
        RuntimeError: the values lie on several devices.
    """
    arrays = [value._array if isinstance(value, Tensor) else value for value in values]
    if CUDA.in_use:
        device = first_gpu(value._array for value in values if isinstance(value, Tensor))
        if device is not CPU:
            with on(device):
                return Tensor(compute(cuda_namespace(), *_gathered(arrays, device)))
    if TRACING.entered:
        program = TRACING.program()
        if program is not None and not program.is_given_up:
            arrays = [program.array_of(value) for value in values]
            return Tensor(program.namespace.asarray(compute(program.namespace, *arrays)))
    try:
        return Tensor(np.asarray(compute(cpu, *arrays)))
    except (TypeError, ValueError, IndexError) as error:
        raise refusal(compute.__name__, arrays, error) from error


def _gathered(arrays: Sequence[Any], device: Device) -> list[Any]:
    for array in arrays:
        if hasattr(array, "ndim") and array.ndim and device_of(array) != device:
            raise RuntimeError(_several_devices(device, device_of(array)))
    return [moved(array, device) if hasattr(array, "ndim") else array for array in arrays]


def _several_devices(one: Device, other: Device) -> str:
    return (
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{one} and {other}! Move them to one of both with .to(device)."
    )


def wanted_gradients(operator: Operator, inputs: Sequence[Any]) -> list[bool]:
    """For each input, whether it requires grad and the operator has a formula for it."""
    return [
        isinstance(value, Tensor)
        and (value._requires_grad or (value._view is not None and value.requires_grad))
        and operator.is_differentiable(i)
        for i, value in enumerate(inputs)
    ]


def record_call(
    operator: Operator,
    inputs: Sequence[Any],
    outputs: list[Tensor],
    needs: Sequence[bool],
    attributes: dict[str, Any],
    *,
    results_follow: bool = False,
) -> None:
    """Make the Node of a call, the history of its outputs.

    Args:
        operator: the operator.
        inputs: its inputs.
        outputs: the results; only the history of these Tensors is set.
        needs: for each input, whether its gradient may be needed.
        attributes: the keyword arguments.
        results_follow: the outputs have no values yet; ``save_results`` is called later.
    """
    differentiable = [t for t in outputs[: operator.outputs] if t._array.dtype.kind in "fc"]
    if not differentiable:
        return
    kind = operator.node_class or node_class(operator, inputs, attributes)
    node = kind(inputs, needs)
    node.input_metadata = tuple([metadata_of(tensor) for tensor in differentiable])
    for output_nr, tensor in enumerate(differentiable):
        tensor._grad_fn, tensor._output_nr, tensor._requires_grad = node, output_nr, True
    for source in operator.sources(needs):
        if not (results_follow and source.kind in RESULTS):
            _save(node, source, inputs, outputs, attributes)
    if HOOKS.entered:
        node.note_hooks()


def save_results(node: OperatorNode, outputs: list[Tensor]) -> None:
    """Save the outputs that the formulas use, after ``record_call`` with ``results_follow``."""
    needs = [info is not None for info in node.input_info]
    for source in node.operator.sources(needs):
        if source.kind in RESULTS:
            _save(node, source, (), outputs, {})
    if HOOKS.entered:
        node.note_hooks()


def _save(
    node: OperatorNode,
    source: Source,
    inputs: Sequence[Any],
    outputs: list[Tensor],
    attributes: dict[str, Any],
) -> None:
    """Save one parameter of a formula."""
    name, kind, position = source
    if kind == "attribute":
        if name in attributes:
            node.plain[name] = attributes[name]
    elif kind == "result":
        node.saved[name] = SavedTensor(outputs[0], is_output=True)
    elif kind == "last_result":
        node.saved[name] = SavedTensor(outputs[-1], is_output=True)
    elif kind == "results":
        node.saved[name] = tuple(SavedTensor(tensor, is_output=True) for tensor in outputs)
    elif kind == "input":
        value = _input_at(node.operator, position, inputs)
        if isinstance(value, Tensor):
            node.saved[name] = SavedTensor(value, is_output=False)
        elif isinstance(value, tuple) and value:
            node.saved[name] = tuple(
                SavedTensor(v, is_output=False) if isinstance(v, Tensor) else v for v in value
            )
        else:
            node.plain[name] = value
    else:
        node.plain[name] = _describe(_input_at(node.operator, position, inputs), kind)


def _input_at(operator: Operator, position: int, inputs: Sequence[Any]) -> Any:
    """An input, or the tuple of a variadic one; None for an omitted one."""
    if operator.variadic and position == len(operator.inputs) - 1:
        return tuple(inputs[position:])
    return inputs[position] if position < len(inputs) else None


def _describe(value: Any, what: str) -> Any:
    if isinstance(value, tuple):
        return tuple(_describe(v, what) for v in value)
    if isinstance(value, Tensor) and what == "device":
        return str(value.device)
    if isinstance(value, Tensor):
        return value._array.shape if what == "shape" else value._array.dtype
    return () if what == "shape" else None


#: The free names of the functions from ``call_source``.
_KNOWN = {
    "CUDA": CUDA,
    "GRAD_MODE": GRAD_MODE,
    "HOLDERS": HOLDERS,
    "HOOKS": HOOKS,
    "NOTHING_SAVED": NOTHING_SAVED,
    "INFERENCE": INFERENCE,
    "INFERENCE_MODES": INFERENCE_MODES,
    "MODES": MODES,
    "OWN_DTYPE": OWN_DTYPE,
    "SEQUENCE": SEQUENCE,
    "anomaly": anomaly,
    "cpu": cpu,
    "new": object.__new__,
    "node_class_of": node_class,
    **{known.__name__: known for known in (SavedTensor, Tensor, VersionCounter)},
    **{known.__name__: known for known in (call_anywhere, shape_and_dtype, origin, recorded_edge)},
    **{
        known.__name__: known
        for known in (number_of, recorded, recorder_of, refusal, view.share_memory)
    },
}

Operator.caller_of = staticmethod(_caller_of)
view.install(call, namespace_for)
