"""The call of the common case, generated for one entry: guards, run, result, in straight lines.

It returns ``MISS`` for a call that isn't the entry's, or isn't the common case; then the general
path decides. What it accepts, the general path would send to the same entry: every part of a
signature is compared, the tensors' by torch's C++ guards (see ``guards.tensor_check``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from funcaot._torch.autograd.autograd import is_zero_tensor, set_versions
from funcaot._torch.levels import functorch
from funcaot._torch.tensors import guards
from funcaot.aot.calls.in_place_call import are_apart
from funcaot.aot.calls.own_nodes import between, tell
from funcaot.aot.capture.facts import fact_of
from funcaot.aot.effects.effects import Effects, Output
from funcaot.aot.effects.origin import Origin
from funcaot.aot.graph.source import Source, listed, unpacked
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.runtime.entry import Entry
from funcaot.aot.runtime.generated.fast_node import FastNode
from funcaot.aot.runtime.generated.fast_run import run_expression, run_program
from funcaot.aot.runtime.generated.wrapper_checks import (
    WrapperCheck,
    can_be_checked,
    open_numbers,
    plain_specs,
)
from funcaot.aot.signature import flattening
from funcaot.aot.signature.ambient import conditions_on
from funcaot.aot.signature.flattening import require
from funcaot.aot.signature.open_checks import OpenChecks, tensor_check
from funcaot.aot.signature.signature import Constant, attributes_of_leaf
from funcaot.aot.signature.sizes import Conditions
from funcaot.aot.subclasses.identity import objects_inside
from funcaot.aot.subclasses.structure import is_wrapper, leaves_of

FastCall = Callable[[tuple[Any, ...], dict[str, Any]], Any]

_PLAIN_KINDS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Miss:
    """The type of ``MISS``."""

    def __repr__(self) -> str:
        return "MISS"


MISS: Any = Miss()


def always_miss(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The generated call of an entry that has none."""
    return MISS


def generate(
    entry: Entry, function: Callable[..., Any], lifted: tuple[torch.Tensor, ...], leaves: list[Any]
) -> FastCall | None:
    """Generate the call of an entry that has run, or None if it isn't the common case.

    Global state must be that of the entry's signature, as it is right after a call of it; but for
    grad mode, which the call may have left switched.

    Args:
        entry: The entry.
        function: The user's function, root of what it closes over.
        lifted: The closed-over tensors now.
        leaves: Flat leaves of a call that the entry serves.
    """
    leaves = list(entry.opened(leaves))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not _is_common(entry, [*tensors, *lifted]):
        return None
    try:
        with torch.set_grad_enabled(entry.signature.ambient.grad_mode):
            return _Writer(entry, function, lifted, leaves).write()
    except RecursionError:  # containers nested too deep to be written out
        return None


def _is_common(entry: Entry, tensors: list[torch.Tensor]) -> bool:
    ambient = entry.signature.ambient
    distinct = {id(tensor) for tensor in tensors}
    repeated = len(entry.signature.repeats)
    return (
        0 < len(distinct) == len(tensors) - repeated
        # A call may leave such a program, which the general path knows to handle.
        and not entry.premises
        and (not entry.capture.tape.wrappers.used or _has_checked_wrappers(entry, tensors))
        # Guards are made of these tensors, which must look as they did before the call.
        and not any(map(entry.changes_looks, entry.effects.mutations))
        and not ambient.forward_mode
        and not ambient.modes
        and not functorch.transforms_active()
        and not functorch.has_legacy_batched(tensors)
        and not any(map(is_zero_tensor, tensors))
        and all(is_wrapper(tensor) or type(tensor) in _PLAIN_KINDS for tensor in tensors)
        and all(is_wrapper(tensor) or tensor.layout is torch.strided for tensor in tensors)
    )


def _has_checked_wrappers(entry: Entry, tensors: list[torch.Tensor]) -> bool:
    """Whether an entry of wrappers can be found by the checks of a generated call."""
    return not entry.signature.repeats and can_be_checked(tensors)


class _Writer:
    """Writes one entry's call."""

    def __init__(
        self,
        entry: Entry,
        function: Callable[..., Any],
        lifted: tuple[torch.Tensor, ...],
        leaves: list[Any],
    ) -> None:
        self.entry = entry
        self.function = function
        self.lifted = lifted
        self.leaves = leaves
        self.source = Source(MISS=MISS, entry=entry)
        self.names: list[str] = []
        self.given: list[str] = []
        self.lifted_names: list[str] = []
        self._views: dict[Origin, str] = {}

    def write(self) -> FastCall:
        source = self.source
        self.names = flattening.write_arguments(source, self.entry.signature.tree)
        self.given = list(self.names)
        self._write_constants()
        ambient, wrappers = self.entry.signature.ambient, self.entry.capture.tape.wrappers.used
        require(source, " and ".join(conditions_on(ambient, source, wrappers=wrappers)))
        if self.entry.depends_on_ranks:
            require(source, "entry.has_its_groups()")
        self._write_attributes()
        self._write_lifted()
        self._write_facts()
        self._write_tensor_checks()
        source.line("entry.calls += 1")
        if self._is_simple():
            self._write_run()
        elif self._writes_in_place():
            self._write_in_place_run()
        else:
            self._write_general_run()
        return source.build("call(args, kwargs)")

    def _write_constants(self) -> None:
        for name, described in zip(self.names, self.entry.signature.leaves, strict=True):
            if isinstance(described, Constant):
                require(self.source, flattening.constant_condition(self.source, name, described))
        if self.entry.numbers is not None:
            self.names = self.entry.numbers.write(self.source, self.names)

    def _write_attributes(self) -> None:
        """Compare what users' code has set on arguments, and what the function looked for."""
        for position, found in self.entry.signature.attributes:
            read = self.source.constant(attributes_of_leaf, "attributes")
            known = self.source.constant(found, "known")
            require(self.source, f"{read}({self.names[position]}) == {known}")
        for position, name in self.entry.capture.absent:
            require(self.source, f"not hasattr({self.names[position]}, {name!r})")

    def _write_facts(self) -> None:
        """Compare what else the function read of its inputs."""
        for fact in self.entry.capture.facts:
            name = (self.names if fact.is_argument else self.lifted_names)[fact.position]
            read = self.source.constant(partial(fact_of, name=fact.name), "fact")
            require(self.source, f"{read}({name}) == {fact.value!r}")
        for history in self.entry.capture.histories:
            matters = self.source.constant(history.matters, "matters")
            both = f"[{listed(self.names)}], [{listed(self.lifted_names)}]"
            require(self.source, f"not {matters}({both})")

    def _write_lifted(self) -> None:
        read, gradients = self.entry.forward.reader, self.entry.capture.gradients
        if read is None and gradients is None:
            return
        self.source.line("lifted = ()")
        if read is not None:
            holders = [self.given[position] for position in read.positions]
            root = listed([self.source.constant(self.function, "function"), *holders])
            self.source.line(f"lifted = {self.source.constant(read.read, 'read')}(({root},))")
            self.source.line("if lifted is None: return MISS")
        if gradients is not None:
            read_all = self.source.constant(gradients.read, "read_all")
            self.source.line(f"lifted = {read_all}([{listed(self.names)}], lifted)")
            self.source.line("if lifted is None: return MISS")
        self.lifted_names = [self.source.name("l") for _ in self.lifted]
        if self.lifted_names:
            self.source.line(unpacked(self.lifted_names, "lifted"))

    def _tensors(self) -> list[tuple[str, TensorSpec, torch.Tensor]]:
        """Name, spec and example of each distinct tensor, arguments first."""
        signature = self.entry.signature
        later = {position for _, position in signature.repeats}
        found = [
            (name, described, leaf)
            for index, (name, described, leaf) in enumerate(
                zip(self.names, signature.leaves, self.leaves, strict=True)
            )
            if isinstance(described, TensorSpec) and index not in later
        ]
        found += zip(self.lifted_names, self.entry.forward.lifted_specs, self.lifted, strict=True)
        return found

    def _write_tensor_checks(self) -> None:
        signature = self.entry.signature
        conditions = [
            f"{self.names[position]} is {self.names[first]}"
            for first, position in signature.repeats
        ]
        tensors = self._tensors()
        wrappers = [item for item in tensors if item[1].structure is not None]
        if wrappers:
            self.source.line("parts, numbers = [], []")
            conditions += [
                f"{self.source.constant(WrapperCheck(tensor, spec), 'is_like')}"
                f"({name}, parts, numbers)"
                for name, spec, tensor in wrappers
            ]
        tensors = [item for item in tensors if item[1].structure is None]
        looked = [tensor for _, _, tensor in tensors]
        looked += [part for _, _, wrapper in wrappers for part in leaves_of(wrapper)]
        specs = [spec for _, spec, _ in tensors]
        specs += [part for _, wrapper, _ in wrappers for part in plain_specs(wrapper)]
        if self.entry.sizes is None:
            check = guards.tensor_check(looked)
        else:
            check = tensor_check(looked, specs)
        names = [name for name, _, _ in tensors] + (["*parts"] if wrappers else [])
        conditions.append(f"{self.source.constant(check, 'check')}({listed(names)})")
        for name, spec, _ in tensors:
            if spec.requires_grad:
                conditions.append(f"{name}.is_leaf" if spec.is_leaf else f"not {name}.is_leaf")
            if (
                not signature.ambient.grad_mode
                and spec.dtype.is_floating_point | spec.dtype.is_complex
            ):
                # With grad mode off, the C++ guard doesn't see requires_grad.
                conditions.append(
                    f"{name}.requires_grad" if spec.requires_grad else f"not {name}.requires_grad"
                )
        require(self.source, " and ".join(conditions))
        self._write_open_checks()

    def _write_open_checks(self) -> None:
        """Compare open sizes and what follows from them, as the executable made last needs it."""
        sizes, functions = self.entry.sizes, self.entry.functions
        if sizes is None:
            return
        assumed: list[Conditions | None] = [sizes.conditions]
        if functions.segment is not None and functions.segment.output_nodes:
            chosen = functions.keeping if self.entry.differentiable else functions.plain
            assumed.append(chosen.program.assumed)
        named, numbers = self._shown()
        checks = OpenChecks.of(sizes.environment, named, assumed, numbers)
        checks.write(self.source)
        require(self.source, str(checks))

    def _shown(self) -> tuple[list[tuple[str, TensorSpec]], list[tuple[str, Any]]]:
        """Where the call's tensors are, and the open sizes of its wrappers; with what they are."""
        tensors = self._tensors()
        named = [(name, spec) for name, spec, _ in tensors if spec.structure is None]
        wrappers = [spec for _, spec, _ in tensors if spec.structure is not None]
        parts = [part for spec in wrappers for part in plain_specs(spec)]
        named += [(f"parts[{place}]", part) for place, part in enumerate(parts)]
        numbers = [number for spec in wrappers for number in open_numbers(spec)]
        return named, [(f"numbers[{place}]", number) for place, number in enumerate(numbers)]

    def _operands(self) -> list[str]:
        """The variable of each of the capture's inputs."""
        lifted = iter(self.lifted_names)
        return [
            self.names[item.argument] if item.argument is not None else next(lifted)
            for item in self.entry.capture.inputs
        ]

    def _is_simple(self) -> bool:
        """Whether outputs are results, inputs and views of them, and there is nothing else."""
        entry = self.entry
        segment = entry.functions.segment
        effects = entry.effects_of(self.leaves)
        return (
            effects is entry.effects
            and not entry.capture.regions
            and not entry.capture.tape.wrappers.used
            and segment is not None
            and entry.capture.gradients is None
            and bool(segment.output_nodes)
            and entry.is_plain
            and not entry.signature.ambient.autocast
            and _only_makes_outputs(effects)
        )

    def _writes_in_place(self) -> bool:
        """Whether the graph writes to inputs by itself and leaves nothing else to the epilogue."""
        entry = self.entry
        in_place = entry.in_place
        return (
            in_place is not None
            and not entry.capture.tape.wrappers.used
            and entry.forward.state is None
            and not (entry.capture.gradients and entry.capture.gradients.of_results)
            and entry.is_plain
            and not entry.signature.ambient.autocast
            and not entry.signature.ambient.inference_mode
            and _only_makes_outputs(in_place.effects)
        )

    def _write_general_run(self) -> None:
        lifted = "lifted" if self.lifted_names else "()"
        entry, segment = self.entry, self.entry.functions.segment
        if entry.depends_on_memory or self._tells_objects_apart():
            # Which inputs share memory decides what a write means.
            require(self.source, f"entry.fits([{listed(self.names)}], {lifted})")
        apply = "None"
        if (
            entry.differentiable
            and segment is not None
            and segment.output_nodes
            and not (entry.forward.watched or entry.forward.reachable or entry.forward.meets)
            and entry.signature.ambient.grad_mode
            and not entry.signature.ambient.autocast
            and not entry.capture.tape.wrappers.used
        ):
            # Of shared memory, operands are made that guards don't see.
            trusting = not entry.capture.regions
            keeping = entry.functions.keeping
            node = keeping.early or FastNode(keeping, trusting=trusting, single=False)
            apply = self.source.constant(node.apply, "apply")
        call = f"[{listed(self.given)}], {lifted}, (args, kwargs), {apply}"
        self.source.line(f"return entry({call})")

    def _tells_objects_apart(self) -> bool:
        """Whether it matters which of the objects among wrappers' metadata are one."""
        return sum(len(objects_inside(tensor)) for _, _, tensor in self._tensors()) > 1

    def _write_in_place_run(self) -> None:
        """Run a graph that writes to inputs; count that; assign what ``.grad`` becomes."""
        source, entry = self.source, self.entry
        in_place, segment = entry.in_place, entry.functions.segment
        if in_place is None or segment is None:
            raise RuntimeError("an entry that writes nothing")
        operands = self._operands()
        written = listed([operands[index] for index in in_place.written])
        others = "".join(f"{operands[index]}, " for index in in_place.others)
        source.line(f"written = ({written},)")
        require(source, f"{source.constant(are_apart, 'apart')}(written, ({others}))")
        counted = [
            f"{operands[index]}._version + {count}"
            for index, count in zip(in_place.written, in_place.plan.versions, strict=True)
        ]
        source.line(f"versions = ({listed(counted)},)")
        names = {position: source.name("r") for position in in_place.plan.writes.kept}
        given = [operands[index] for index in in_place.plan.form.positions]
        run = run_program(source, in_place.program, given)
        self._write_inference(f"made = {run}")
        if names:
            source.line(unpacked(list(names.values()), "made"))
        source.line(f"{source.constant(set_versions, 'set_versions')}(written, versions)")
        made = [names.get(index, "None") for index in range(in_place.plan.count)]
        result, values = self._outputs(in_place.effects, operands, made)
        if entry.capture.gradients is None:
            source.line(f"return {result}")
            return
        lifted = "lifted" if self.lifted_names else "()"
        given = f"[{listed(self.names)}], {lifted}, [{listed(values)}]"
        source.line(f"result = {result}")
        source.line(f"entry.capture.gradients.apply({given})")
        source.line("return result")

    def _write_run(self) -> None:
        source, entry = self.source, self.entry
        segment = entry.functions.segment
        if segment is None:
            raise RuntimeError("an entry without a program")
        operands = self._operands()
        made = [source.name("r") for _ in segment.output_nodes]
        if entry.differentiable:
            early = entry.functions.keeping.early
            node = FastNode(entry.functions.keeping, single=True) if early is None else early
            run = f"{source.constant(node.apply, 'apply')}({listed(operands)})"
            single = early is None and len(made) == 1
            source.line(f"{made[0]} = {run}" if single else unpacked(made, run))
            if segment.noted and not segment.links.results:
                source.line(f"{source.constant(partial(tell, segment), 'tell')}(({listed(made)},))")
            elif segment.links.results:
                own = source.constant(partial(between, entry.functions.keeping, made=True), "own")
                source.line(unpacked(made, f"{own}(({listed(made)},))"))
        else:
            run = run_expression(source, entry.functions.plain, operands)
            self._write_inference(unpacked(made, run))
        result = self._outputs(entry.effects, operands, made)[0]
        state = entry.forward.state
        if state is not None:
            store = source.constant(state.apply, "store")
            result = f"{store}([{listed(self.given)}], (args, kwargs), {result})"
        source.line(f"return {result}")

    def _outputs(
        self, effects: Effects, operands: list[str], made: list[str]
    ) -> tuple[str, list[str]]:
        """The expression of the function's value, and those of what ``.grad`` becomes."""
        segment = self.entry.functions.segment
        if segment is None:
            raise RuntimeError("an entry without a program")
        results = [
            made[place.output] if place.output is not None else operands[place.operand or 0]
            for place in segment.places
        ]
        values = [self._output(output, operands, results) for output in effects.outputs]
        tree = self.entry.capture.tree
        returned = values[: tree.num_leaves]
        result = flattening.result_expression(self.source, returned, tree)
        return result, values[tree.num_leaves :]

    def _write_inference(self, statement: str) -> None:
        """Run without recording; grad mode is touched only if autograd would record."""
        signature = self.entry.signature
        recording = signature.ambient.grad_mode and any(
            spec.requires_grad for _, spec, _ in self._tensors()
        )
        if not recording:
            self.source.line(statement)
            return
        self.source.namespace["set_grad"] = guards.set_grad_enabled
        self.source.line("set_grad(False)")
        self.source.line("try:")
        self.source.line(statement, 2)
        self.source.line("finally:")
        self.source.line("set_grad(True)", 2)

    def _output(self, output: Output, operands: list[str], results: list[str]) -> str:
        if output.origin is not None:
            return self._named(output.origin, operands, results)
        if output.result is None and output.source is None:
            return self.source.constant(output.value)
        base = operands[output.source] if output.source is not None else results[output.result or 0]
        if output.view is None:
            return base
        return f"{self.source.constant(output.view, 'view')}({base})"

    def _named(self, origin: Origin, operands: list[str], results: list[str]) -> str:
        """The name of a view that is returned twice, or that has views of its own."""
        name = self._views.get(origin)
        if name is None:
            start = Output(result=origin.result, source=origin.source, view=origin.view)
            made = self._output(start, operands, results) if origin.parent is None else ""
            if origin.parent is not None:
                parent = self._named(origin.parent, operands, results)
                made = f"{self.source.constant(origin.view, 'view')}({parent})"
            name = self._views[origin] = self.source.name("view")
            self.source.line(f"{name} = {made}")
        return name


def _only_makes_outputs(effects: Effects) -> bool:
    """Whether outputs are results, inputs and views of them, and there is nothing else."""
    others = [
        getattr(effects, item.name)
        for item in dataclasses.fields(effects)
        if item.name not in ("results", "outputs")
    ]
    known = {"value", "result", "source", "view", "origin"}
    origins = [output.origin for output in effects.outputs if output.origin is not None]
    if not all(origin.only_views for origin in origins):
        return False
    return not any(others) and not any(
        getattr(output, item.name)
        for output in effects.outputs
        for item in dataclasses.fields(output)
        if item.name not in known
    )
