"""Wrappers on a tape: one node for each, with the inner tensors as nodes of their own.

The tape's wrapper is one of the same class around the tape's tensors, so that the class's own
``__torch_dispatch__`` runs while a function is captured, with autograd recording above it, as in
eager.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import fx

from funcaot._torch.autograd import autograd
from funcaot._torch.autograd.compressed import refuse_compressed
from funcaot._torch.tensors.classes.wrapping import names_of_functions
from funcaot._torch.tensors.sizes.ragged import is_ragged, number_of, share_ragged_size
from funcaot._torch.tensors.sizes.shapes import is_expression, symbols_in
from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.attributes import attributes_of
from funcaot.aot.graph import graphs
from funcaot.aot.graph.tensor_spec import TensorSpec, spec_of
from funcaot.aot.subclasses.alike import Same
from funcaot.aot.subclasses.carried import Brought
from funcaot.aot.subclasses.identity import kept_objects
from funcaot.aot.subclasses.nodes import Part, Wrapped, is_part, is_wrapped
from funcaot.aot.subclasses.structure import Structure, is_wrapper, leaves_of
from funcaot.aot.tape.entering import Attach
from funcaot.errors import UnsupportedError

if TYPE_CHECKING:
    from funcaot._torch.tensors.sizes.size_environment import SizeEnvironment

__all__ = ["Wrappers", "is_wrapper", "leaves_of"]

_Pair: TypeAlias = tuple[torch.Tensor, torch.Tensor]
FakeValue = Callable[[TensorSpec, torch.Tensor | None], torch.Tensor]


class Wrappers:
    """The wrappers of one tape.

    Attributes:
        used: Whether there has been one.
        entering: Whether the call's inputs are entered, and not gradients.
        brought: The objects among the metadata of the call's inputs.
        shared: What stands for each inner tensor of the call that is being captured, by ``id``:
            one that several wrappers hold is one on the tape, too.
        inner_leaves: Tensors inside of wrappers that require grad themselves, by ``id``, each with
            the leaf that its gradient goes to.
    """

    def __init__(
        self, tracer: tracing.PythonKeyTracer, fake_value: FakeValue, sizes: SizeEnvironment | None
    ) -> None:
        """Know none yet.

        Args:
            tracer: The tape's.
            fake_value: Makes the fake tensor of a plain spec.
            sizes: The tape's open sizes, if it has any.
        """
        self.used = False
        self.entering = True
        self.brought = Brought()
        self.shared: dict[int, _Pair] = {}
        self.inner_leaves: dict[int, _Pair] = {}
        self._tracer = tracer
        self._fake_value = fake_value
        self._sizes = sizes
        self._nodes: dict[Hashable, fx.Node] = {}
        self._apart: dict[int, tuple[torch.Tensor, Hashable, fx.Node]] = {}
        self._by_parts: dict[tuple[fx.Node, ...], fx.Node] = {}
        self._entered: dict[int, tuple[torch.Tensor, fx.Node]] = {}
        self._parts: dict[fx.Node, tuple[fx.Node, ...]] = {}
        self._histories: dict[int, Any] = {}
        self._described: list[Structure] = []

    def refuse_changed(self) -> None:
        """Refuse to record more where an object among the metadata has been changed.

        Raises:
            UnsupportedError: If one has.
        """
        for structure in self._described:
            structure.refuse_changed()

    def opened(
        self, proxy: fx.Proxy, spec: TensorSpec, example: Any, like: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The tape's tensor for an input; the parts of a wrapper become nodes of their own.

        Args:
            proxy: The input's.
            spec: Its spec.
            example: A real tensor of that spec; needed for all but plain strided ones.
            like: A tensor of the tape whose ragged size is this one's, too.

        Raises:
            UnsupportedError: For a compressed sparse tensor that requires grad.
        """
        refuse_compressed(spec.layout, requires_grad=spec.requires_grad)
        if self.entering and example is not None:
            self.brought.note(example, proxy.node)
        return self._opened(proxy, spec, example, like)[1]

    def _opened(
        self, proxy: fx.Proxy, spec: TensorSpec, example: Any, like: torch.Tensor | None = None
    ) -> _Pair:
        if spec.structure is None:
            value = self._fake_value(spec, example)
            share_ragged_size(value, example)
            tracing.track(value, proxy, self._tracer)
            proxy.node.meta["val"] = value
            traced = tracing.to_functional(value)
            if is_part(proxy.node):
                self._entered[id(traced)] = (traced, proxy.node)
            return value, traced
        self.used = True
        structure = spec.structure
        self._described.append(structure)
        pairs = [
            self._part(proxy, name, inner, part)
            for name, inner, part in zip(
                structure.names, structure.inner, structure.parts(example), strict=True
            )
        ]
        shape = self._numbers(example.shape, spec.shape)
        stride = self._numbers(example.stride(), spec.stride)
        if like is not None and len(like.shape) == len(shape):
            sizes = zip(shape, like.shape, strict=True)
            shape = tuple(other if is_ragged(size) else size for size, other in sizes)
        with tracing.disable_current_modes():
            fake = structure.made_of([fake for fake, _ in pairs], shape, stride)
        wrapper = structure.traced_of([traced for _, traced in pairs], shape, stride)
        _check_made_again(example, wrapper, shape, stride)
        proxy.node.meta["val"] = fake
        self.know(wrapper, proxy.node)
        if is_part(proxy.node):
            self._entered[id(wrapper)] = (wrapper, proxy.node)
        return fake, wrapper

    def _numbers(self, real: Sequence[Any], known: Sequence[Any]) -> tuple[Any, ...]:
        """Sizes as the tape has them: ragged ones of a real tensor, the others of its spec."""
        if self._sizes is None:
            return tuple(real)
        pairs = zip(real, map(self._sizes.number, known), strict=True)
        return tuple(own if is_ragged(own) else size for own, size in pairs)

    def know(self, tensor: torch.Tensor, node: fx.Node) -> None:
        """Let a node be the one of a tensor like this; metadata may tell that it requires grad."""
        if is_wrapper(tensor):
            parts = self._parts[node] = tuple(self._nodes_of(tensor))
            key = self._key(tensor, parts)
            if self._nodes.setdefault(key, node) is not node:
                # Another input is around the same tensors.
                self._apart[id(tensor)] = tensor, key, node
            self._by_parts.setdefault(parts, node)

    def _part(self, proxy: fx.Proxy, name: str, spec: TensorSpec, part: torch.Tensor) -> _Pair:
        known = self.shared.get(id(part))
        if known is None:
            made = self._tracer.create_proxy("call_function", Part(name), (proxy,), {})
            known = self.shared[id(part)] = self._opened(made, spec, part)
            if spec.requires_grad and self.entering:
                self._require_grad(known[1], is_leaf=spec.is_leaf)
        return known

    def _require_grad(self, part: torch.Tensor, *, is_leaf: bool) -> None:
        """Let an inner tensor require grad as the real one does."""
        leaf = part if is_leaf else self.again(part)
        leaf.requires_grad_()
        if not is_leaf:
            with torch.enable_grad():
                # Not through the operator, which may be installed for every Function.
                autograd.native_apply(Attach)(leaf, part)
            autograd.set_version(part, 0)
            self._histories[id(part)] = part.grad_fn
        self.inner_leaves[id(part)] = part, leaf

    def has_new_history(self, part: torch.Tensor) -> bool:
        """Whether autograd recorded a write to an inner tensor that isn't a leaf."""
        known = self._histories.get(id(part))
        return known is not None and part.grad_fn is not known

    def hold(self, real: torch.Tensor, seen: torch.Tensor, node: fx.Node) -> None:
        """Let what stands for an input stand for it inside of wrappers, too."""
        self.shared.setdefault(id(real), (node.meta["val"], seen))
        self._entered.setdefault(id(seen), (seen, node))

    def entered(self, part: torch.Tensor) -> fx.Node | None:
        """The node of an inner tensor of an input when it was entered; None for other tensors."""
        found = self._entered.get(id(part))
        return None if found is None else found[1]

    def all_entered(self) -> list[tuple[torch.Tensor, fx.Node]]:
        """The inner tensors of inputs, as they were entered, with their nodes."""
        return list(self._entered.values())

    def node_of(self, wrapper: torch.Tensor) -> fx.Node | None:
        """The node of a wrapper's present value, made if there is none yet."""
        self.used = True
        parts = self._nodes_of(wrapper)
        if None in parts:
            return None
        key = self._key(wrapper, parts)
        _, known, apart = self._apart.get(id(wrapper), (None, None, None))
        found = apart if known == key else self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = self._wrapped(wrapper, parts)
            self._parts[found] = tuple(parts)
            self._by_parts.setdefault(tuple(map(graphs.without_aliases, parts)), found)
        return found

    def set_apart(self, wrapper: torch.Tensor) -> None:
        """Give a wrapper a node of its own, where it is an input for all but its history.

        A Function made it of what is inside of the input; returned as that input, it would have
        the derivative of the input.
        """
        node = self.node_of(wrapper)
        if node is None or node.op != "placeholder":
            return
        parts = self._nodes_of(wrapper)
        made = self._wrapped(wrapper, parts)
        self._parts[made] = tuple(parts)
        self._apart[id(wrapper)] = wrapper, self._key(wrapper, parts), made

    def _nodes_of(self, wrapper: torch.Tensor) -> list[Any]:
        structure = _structure(spec_of(wrapper))
        return [
            self.node_of(part) if is_wrapper(part) else tracing.node_of(part, self._tracer)
            for part in structure.parts(wrapper)
        ]

    def _key(self, wrapper: torch.Tensor, parts: Sequence[fx.Node]) -> Hashable:
        spec = spec_of(wrapper)
        structure = _structure(spec)
        objects = tuple(Same(value) for _, value in kept_objects(wrapper))
        return structure.kind, structure.metadata, objects, spec.shape, spec.stride, tuple(parts)

    def _wrapped(self, wrapper: torch.Tensor, parts: Sequence[fx.Node]) -> fx.Node:
        spec = spec_of(wrapper)
        structure = _structure(spec)
        shape, stride = tuple(wrapper.shape), tuple(wrapper.stride())
        symbols = self._symbols(structure, spec)
        target = Wrapped(structure, shape, stride, len(parts), symbols)
        target.brought = self.brought.places(structure)
        with tracing.disable_current_modes():
            sizes = [self._tracer.symnode_tracker.inputs[symbol] for symbol in symbols]  # type: ignore
            node = self._tracer.create_node("call_function", target, (*parts, *sizes), {})
            values = [graphs.value_of(part) for part in parts]
            node.meta["val"] = structure.made_of(values, shape, stride)
        return node

    def _symbols(self, structure: Structure, spec: TensorSpec) -> tuple[Any, ...]:
        """The open sizes that a wrapper's own ones are made of."""
        if self._sizes is None:
            return ()
        numbers = (*spec.shape, *spec.stride)
        found = {
            symbol for number in numbers if is_expression(number) for symbol in symbols_in(number)
        }
        now = [tuple(map(self._sizes.at_present, each)) for each in (spec.shape, spec.stride)]
        structure.refuse_hidden_sizes(*now)
        return tuple(symbol for symbol in self._sizes.symbols if symbol in found)

    def again(self, wrapper: torch.Tensor) -> torch.Tensor:
        """Another object with the same value; any tensor of the tape."""
        if not is_wrapper(wrapper):
            return tracing.to_functional(tracing.functional_inner(wrapper))
        structure = _structure(spec_of(wrapper))
        return structure.traced_of(structure.parts(wrapper), wrapper.shape, wrapper.stride())

    def constant(
        self, node: fx.Node, constant: Callable[[fx.Node], torch.Tensor]
    ) -> torch.Tensor | None:
        """A wrapper that stands for a node's value, around constants; None for a plain one."""
        value = graphs.value_of(node)
        if not is_wrapper(value):
            return None
        structure = _structure(spec_of(value))
        parts = list(map(constant, self._parts[node]))
        return structure.made_of(parts, value.shape, value.stride())

    def has_same_parts(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two wrappers hold the same values, of which autograd may think differently."""
        first, second = map(self._leaves, (one, other))
        return first == second

    def _leaves(self, wrapper: torch.Tensor) -> list[fx.Node | None]:
        """The nodes of the plain tensors inside, without aliases."""
        nodes = [tracing.node_of(leaf, self._tracer) for leaf in leaves_of(wrapper)]
        return [None if node is None else graphs.without_aliases(node) for node in nodes]

    def saved(self, node: fx.Node, ends: Set[fx.Node]) -> list[fx.Node]:
        """The nodes to ask for where autograd saved a wrapper.

        Args:
            node: The wrapper's node, or that of a plain tensor.
            ends: Wrappers that can be kept as they are: operands and outputs.
        """
        parts = self._parts.get(node)
        if parts is None:
            return [node]
        same = self._by_parts.get(tuple(map(graphs.without_aliases, parts)), node)
        parts = self._parts.get(same, parts)
        if is_wrapped(same):
            whole = same in ends
        else:
            # One inside of another isn't kept. One that shares a part doesn't give it to graphs.
            whole = same.op == "placeholder" and self._gives_parts(same)
        if whole:
            return [same]
        return [inner for part in parts for inner in self.saved(part, ends)]

    def _gives_parts(self, node: fx.Node) -> bool:
        """Whether graphs find all that is inside of a wrapper there, and not in another one."""
        parts = self._parts.get(node, ())
        return all(
            is_part(part) and part.args[0] is node and self._gives_parts(part) for part in parts
        )


def _structure(spec: TensorSpec) -> Structure:
    if spec.structure is None:
        raise RuntimeError("a tensor that wraps nothing")
    return spec.structure


def _equal(wanted: Sequence[Any], found: Sequence[Any]) -> bool:
    """Whether sizes are equal but for ragged ones, which are other ones on a tape."""
    pairs = list(zip(wanted, found, strict=False))
    return len(wanted) == len(found) and all(
        is_ragged(one) or is_ragged(other) or number_of(one) == number_of(other) or one == other
        for one, other in pairs
    )


def _check_made_again(real: Any, made: Any, shape: Sequence[Any], stride: Sequence[Any]) -> None:
    """Refuse a wrapper that its class doesn't make again as it was."""
    looks = [(what, getattr(real, what), getattr(made, what)) for what in ("dtype", "layout")]
    looks += [
        (what, getattr(real, what)(), getattr(made, what)()) for what in ("is_conj", "is_neg")
    ]
    given = {"shape": (shape, tuple(made.shape)), "stride": (stride, tuple(made.stride()))}
    looks += [(what, *pair) for what, pair in given.items() if not _equal(*pair)]
    for what, wanted, found in looks:
        if what in given or wanted != found:
            apart, again = names_of_functions(type(real))
            raise UnsupportedError(
                f"A {type(real).__name__} of {what} {wanted} is one of {found} after {apart} and "
                f"{again}.",
                remedy="pass outer_size and outer_stride on to _make_wrapper_subclass.",
            )
    lost = sorted(attributes_of(real).keys() - attributes_of(made).keys())
    if lost:
        apart, again = names_of_functions(type(real))
        raise UnsupportedError(
            f"A {type(real).__name__} has attributes that {again} doesn't give back: "
            f"{', '.join(lost)}. What a program reads of them couldn't be compared.",
            remedy=f"let {apart} name them, among the inner tensors or as metadata.",
        )
