"""Operator: a forward and one derivative formula per input, written once.

A formula is written against an array namespace ``xp`` (NumPy, CuPy, or mpgrad's own differentiable
operators) and names what it needs by its parameters; only that is saved in forward:

    operator(
        "mul",
        lambda xp, a, b: xp.multiply(a, b),
        a=lambda xp, grad, b, a_shape: xp.sum_to(xp.multiply(grad, b), a_shape),
        b=lambda xp, grad, a, b_shape: xp.sum_to(xp.multiply(grad, a), b_shape),
    )

Parameters of a formula:

===================  ==============================================================
``grad``             the gradient of the only differentiable output
``grads``            the gradients of all differentiable outputs (operators with several)
``result``           the first forward output;  ``results``  the tuple of all
``last_result``      the last one (indices, where the values may change later)
an input's name      that forward input (for a variadic input: the tuple of all)
``a_shape``          the shape of input ``a`` (never keeps the input alive); also ``a_dtype``
                     and ``a_device`` (its name)
an attribute's name  the keyword argument that forward got
``needs``            a tuple of bool, one per input: which gradients are wanted (joint formulas)
===================  ==============================================================

If the gradients of several inputs share most of their work, or the input is variadic, ``joint``
returns all of them at once as a sequence in the order of the inputs (None where ``needs`` is
False).

Formulas are written as for real numbers: they apply the transpose of the Jacobian. A gradient of
complex numbers is the conjugate Wirtinger derivative, as in PyTorch ("Autograd mechanics", section
"Autograd for Complex Numbers"): the conjugate transpose is to be applied. For a holomorphic
operator ``J^H g == conj(J^T conj(g))``, so :meth:`Operator.backward` conjugates before and after,
and no formula has to know. An operator that is not holomorphic (``abs``, ``real``) has formulas
that hold for complex numbers as they stand, and says so with ``wirtinger=True``.

This file knows neither Nodes nor arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpgrad.arrays.cpu import column_parts
from mpgrad.arrays.cpu.array_program import TRACING
from mpgrad.arrays.cpu.traced_namespace import TracedNamespace
from mpgrad.recording.graph.node_names import node_name

Formula = Callable[..., Any]
#: ``(offered, columns) -> offered``: the parameters of a formula for these columns of its result.
Narrowing = Callable[[dict[str, Any], slice], dict[str, Any]]

#: All operators by name; workers look rules up here.
OPERATORS: dict[str, Operator] = {}

#: The flag of code objects with a ``*`` parameter (``inspect.CO_VARARGS``; importing ``inspect``
#: and building signatures would double the load time of the operators).
_VARARGS = 0x04

_PASSED_BY_ENGINE = frozenset({"xp", "grad", "grads", "needs"})

#: Parameters of formulas that are outputs of forward.
RESULTS = frozenset({"result", "results", "last_result"})


class Source(NamedTuple):
    """The source of a formula's parameter."""

    name: str
    #: "attribute", "input", a name in ``RESULTS``, or "shape", "dtype" or "device" of an input.
    kind: str
    #: The number of the input; -1 if it is not an input.
    position: int


class Operator:
    """A named forward with its derivative formulas. Made by :func:`operator`."""

    def __init__(
        self,
        name: str,
        forward: Callable[..., Any],
        derivatives: dict[str, Formula],
        joint: Formula | None,
        outputs: int | None,
        wirtinger: bool = False,
        view: str | None = None,
        elementwise: bool = False,
        on_any_devices: bool = False,
        in_columns: Narrowing | None = None,
        passes_on: bool = False,
    ) -> None:
        self.name = name
        #: The name of its Nodes (``recording.graph.node_names``).
        self.node_name = node_name(name)
        #: The class of its Nodes, once it exists; None if they have several names.
        self.node_class: Any = None
        #: The functions that record a call, by needs (``dispatch``).
        self.recorders: dict[tuple[bool, ...], Callable[..., None]] = {}
        self.forward = forward
        #: The number of leading outputs that are differentiable (not indices and masks).
        self.outputs = outputs
        #: For a result in the memory of the first input: the array function that makes it.
        self.view = view
        #: Whether the formulas compute each element from the elements at its own index.
        self.elementwise = elementwise
        #: Whether the inputs may lie on several devices.
        self.on_any_devices = on_any_devices
        #: The parameters of the first input's formula for some columns of that gradient.
        self.in_columns = in_columns
        #: Whether the inputs get the gradient array itself if none was broadcast.
        self.passes_on = passes_on
        self.joint = joint
        self.derivatives = derivatives
        self.inputs, self.variadic, self.attributes = _parameters(forward)
        #: The sources of each formula's parameters, in their order.
        self._wants = {key: _wanted(f) for key, f in derivatives.items()}
        if joint is not None:
            self._wants["joint"] = _wanted(joint)
        self._formulas = {key: (f, self._wants[key]) for key, f in derivatives.items()}
        #: Whether a formula uses the gradients of all outputs, or ``needs``.
        self._asks_for_all = any({"grads", "needs"} & {*names} for names in self._wants.values())
        #: All values of forward that any formula uses.
        self.wanted = frozenset[str]().union(*self._wants.values()) - _PASSED_BY_ENGINE
        self._sources: dict[tuple[bool, ...], tuple[Source, ...]] = {}
        self._needed_by: dict[tuple[bool, ...], list[tuple[int, Formula, Sequence[str]]]] = {}
        #: Whether a formula exists for each input (for a variadic one: for all of them).
        self._differentiable = tuple(joint is not None or at in derivatives for at in self.inputs)
        self._check()
        #: Whether complex gradients are conjugated before and after. Formulas that use no values
        #: have real factors only, so that it would change nothing.
        self.conjugates = not wirtinger and any(
            {*self.inputs, *RESULTS}.intersection(wanted) for wanted in self._wants.values()
        )

    #: Makes the function that calls an operator (set by ``dispatch``).
    caller_of: Callable[[Operator], Callable[..., Any]]

    def run(self, *inputs: Any, **attributes: Any) -> Any:
        """Call it: run forward, and record the call (``recording.dispatch.operator_call``).

        From the first call on, the operator has a function of its own in place of this method.
        """
        self.run = self.caller_of(self)  # type: ignore[method-assign]
        return self.run(*inputs, **attributes)

    def _check(self) -> None:
        for name in self.derivatives:
            if name not in self.inputs:
                raise ValueError(f"operator {self.name}: a formula for {name!r}, not an input")
        known = set(self.inputs) | set(self.attributes) | RESULTS
        known |= {f"{name}_{what}" for name in self.inputs for what in ("shape", "dtype", "device")}
        for wanted in self._wants.values():
            unknown = set(wanted) - known - _PASSED_BY_ENGINE
            if unknown:
                raise ValueError(f"operator {self.name}: formula asks for unknown {unknown}")

    def is_differentiable(self, position: int) -> bool:
        """Whether a formula exists for the input at ``position``."""
        last = len(self._differentiable) - 1
        return self._differentiable[last if self.variadic and position > last else position]

    def input_name(self, position: int) -> str:
        last = len(self.inputs) - 1
        return self.inputs[min(position, last) if self.variadic else position]

    def sources(self, needs: Sequence[bool]) -> tuple[Source, ...]:
        """The parameters of the needed inputs' formulas, in order: all that forward saves."""
        key = tuple(needs)
        found = self._sources.get(key)
        if found is None:
            formulas = ["joint"] if self.joint is not None else self._needed_formulas(key)
            names = dict.fromkeys(name for formula in formulas for name in self._wants[formula])
            found = tuple(self._source(name) for name in names if name not in _PASSED_BY_ENGINE)
            if not self.variadic:  # there may be any number of inputs, and so of keys
                self._sources[key] = found
        return found

    def asks_for_shapes_alone(self, needs: Sequence[bool]) -> bool:
        """Whether the formulas of the needed inputs use only shapes, dtypes and devices, which the
        graph contains."""
        return not self.variadic and all(
            source.kind in ("shape", "dtype") and needs[source.position]
            for source in self.sources(needs)
        )

    def wanted_names(self, needs: Sequence[bool]) -> tuple[str, ...]:
        """The names of :meth:`sources`."""
        return tuple([source.name for source in self.sources(needs)])

    def _source(self, name: str) -> Source:
        if name in self.attributes:
            return Source(name, "attribute", -1)
        if name in RESULTS:
            return Source(name, name, -1)
        if name in self.inputs:
            return Source(name, "input", self.inputs.index(name))
        base, _, what = name.rpartition("_")
        return Source(name, what, self.inputs.index(base))

    def _needed_formulas(self, needs: tuple[bool, ...]) -> list[str]:
        inputs = [self.input_name(at) for at, needed in enumerate(needs) if needed]
        return [name for name in dict.fromkeys(inputs) if name in self._wants]

    def backward(
        self,
        xp: Any,
        grads: Sequence[Any],
        saved: dict[str, Any],
        needs: Sequence[bool],
        parts: tuple[int, int] | None = None,
    ) -> list[Any]:
        """Gradients of the inputs, None where not needed.

        Args:
            xp: the array namespace.
            grads: gradients of the differentiable outputs, all defined.
            saved: by name, everything in :meth:`sources`, attributes included; other parameters
                of the formulas are added to it.
            needs: for each input, whether its gradient is needed.
            parts: compute only this half-open range of the parts (``column_parts``) of the first
                input's gradient.
        """
        conjugates = self.conjugates and grads[0].dtype.kind == "c"
        if conjugates:
            grads = [xp.conj(grad) for grad in grads]
        offered = saved
        offered["grad"] = grads[0]
        if self._asks_for_all:
            offered["grads"], offered["needs"] = tuple(grads), tuple(needs)
        if self.joint is not None:
            gradients = list(self._call(self.joint, self._wants["joint"], xp, offered))
        else:
            gradients = [None] * len(needs)
            for position, formula, wanted in self._needed(tuple(needs)):
                if position == 0 and self.in_columns is not None:
                    gradients[0] = self._in_parts(formula, wanted, xp, offered, parts)
                else:
                    gradients[position] = self._call(formula, wanted, xp, offered)
        if conjugates:
            return [None if grad is None else xp.conj(grad) for grad in gradients]
        return gradients

    def asked_by(self, position: int) -> tuple[str, ...]:
        """The parameters of the formula of the input at ``position``."""
        return self._wants[self.input_name(position)]

    def _needed(self, needs: tuple[bool, ...]) -> Sequence[tuple[int, Formula, Sequence[str]]]:
        """For each needed input its position, its formula, and the formula's parameters."""
        found = self._needed_by.get(needs)
        if found is None:
            found = [
                (position, *self._formulas[self.input_name(position)])
                for position, needed in enumerate(needs)
                if needed
            ]
            if not self.variadic:  # there may be any number of inputs, and so of keys
                self._needed_by[needs] = found
        return found

    def _call(
        self, formula: Formula, wanted: Sequence[str], xp: Any, offered: dict[str, Any]
    ) -> Any:
        operands = [offered[name] for name in wanted]
        if TRACING.entered and type(xp) is TracedNamespace:
            return xp.checked(formula, operands, blockwise=self.elementwise)
        return xp.blockwise(formula, *operands) if self.elementwise else formula(xp, *operands)

    def _in_parts(
        self,
        formula: Formula,
        wanted: Sequence[str],
        xp: Any,
        offered: dict[str, Any],
        parts: tuple[int, int] | None,
    ) -> Any:
        """The first input's gradient, or some of its parts, computed one by one."""
        narrow = self.in_columns
        assert narrow is not None
        shape = offered[f"{self.inputs[0]}_shape"]
        count = column_parts.count_for(offered["grad"], shape[-1])
        if count == 1:
            return self._call(formula, wanted, xp, offered)

        def compute(columns: slice) -> Any:
            return self._call(formula, wanted, xp, narrow(offered, columns))

        return column_parts.compute(compute, shape, count, parts or (0, count), xp)

    def __repr__(self) -> str:
        return f"<operator {self.name}({', '.join(self.inputs)})>"


def not_implemented(name: str) -> Formula:
    """A formula for an input without a derivative: it raises in backward.

    So results whose gradient is not needed can be used; an error in forward would forbid that.

    Args:
        name: "operator", which raises a RuntimeError, or "operator: input", which raises a
            NotImplementedError, both as in PyTorch.
    """
    kind = NotImplementedError if ":" in name else RuntimeError

    def formula(xp: Any, grad: Any) -> Any:
        raise kind(f"derivative for {name} is not implemented")

    return formula


def operator(
    name: str,
    forward: Callable[..., Any],
    *,
    joint: Formula | None = None,
    outputs: int | None = 1,
    wirtinger: bool = False,
    view: str | None = None,
    elementwise: bool = False,
    on_any_devices: bool = False,
    in_columns: Narrowing | None = None,
    passes_on: bool = False,
    **derivatives: Formula,
) -> Operator:
    """Register an operator (see the module's docstring).

    Args:
        name: unique; its Nodes are called ``<Name>Backward0``, or as in
            ``recording.graph.node_names``.
        forward: ``forward(xp, *inputs, **attributes)``; positional parameters are the inputs,
            keyword-only ones the attributes. One ``*inputs`` makes it variadic.
        joint: one formula for all inputs.
        outputs: number of leading differentiable outputs; None: all.
        wirtinger: the formulas hold for complex numbers as they stand.
        view: for an operator whose result is (if possible) a view of its first input: the array
            function that makes it from that input and the attributes, in their order.
        elementwise: the formulas compute each element from the elements at its own index, and
            do not branch on values, so that they can run ``blockwise``.
        on_any_devices: forward and the formulas move arrays between devices themselves.
        passes_on: the inputs get the gradient array itself if none was broadcast.
        in_columns: for an operator whose first input's gradient is a product that can be computed
            column by column: returns the parameters of its formula for some columns.
        derivatives: a formula per differentiable input.
    """
    if name in OPERATORS:
        raise ValueError(f"operator {name!r} is registered twice")
    registered = Operator(
        name,
        forward,
        derivatives,
        joint,
        outputs,
        wirtinger,
        view,
        elementwise,
        on_any_devices,
        in_columns,
        passes_on,
    )
    OPERATORS[name] = registered
    return registered


def _parameters(forward: Callable[..., Any]) -> tuple[tuple[str, ...], bool, tuple[str, ...]]:
    """Input names, whether the last is variadic, attribute names."""
    code = forward.__code__
    names = code.co_varnames
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    attributes = names[positional : positional + keyword_only]
    variadic = bool(code.co_flags & _VARARGS)
    rest = (names[positional + keyword_only],) if variadic else ()
    return names[1:positional] + rest, variadic, attributes


def _wanted(formula: Formula) -> tuple[str, ...]:
    code = formula.__code__
    if code.co_kwonlyargcount:
        raise ValueError("the parameters of a formula are positional")
    return code.co_varnames[1 : code.co_argcount]
