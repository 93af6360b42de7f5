"""Generated flattening: a call's arguments to leaves, and results to the function's value."""

from __future__ import annotations

from typing import Any

from funcaot._torch.tensors.pytree import NAMEDTUPLE, TreeSpec, flattener_of
from funcaot.aot.graph.source import Source, listed, unpacked
from funcaot.aot.signature.signature import ByContents, Constant, Identity

# Python's parser takes 200 open brackets.
_DEEPEST = 100


def write_arguments(source: Source, tree: TreeSpec) -> list[str]:
    """Write the lines that take ``args, kwargs`` apart, leaving where the structure differs.

    Args:
        source: The function being written; its namespace has ``MISS``.
        tree: Structure of ``(args, kwargs)``.

    Returns:
        Name of the variable that holds each leaf.
    """
    positional, keyword = tree.children()
    if positional.num_children:
        require(source, f"len(args) == {positional.num_children}")
    else:
        require(source, "not args")
    names = [source.name("a") for _ in positional.children()]
    if names:
        source.line(unpacked(names, "args"))
    leaves = _open_all(source, names, positional)
    return leaves + (_open_dictionary(source, "kwargs", keyword))


def require(source: Source, condition: str) -> None:
    """Leave with ``MISS`` unless a condition holds."""
    source.line(f"if not ({condition}): return MISS")


def _open_all(source: Source, names: list[str], tree: TreeSpec) -> list[str]:
    leaves: list[str] = []
    for name, child in zip(names, tree.children(), strict=True):
        leaves += _open(source, name, child)
    return leaves


def _open(source: Source, name: str, tree: TreeSpec) -> list[str]:
    if tree.is_leaf():
        return [name]
    if tree.type in (tuple, list):
        require(source, f"type({name}) is {tree.type.__name__} and len({name}) == {_arity(tree)}")
        return _take(source, name, tree)
    if tree.type is dict:
        require(source, f"type({name}) is dict")
        return _open_dictionary(source, name, tree)
    if tree.type is NAMEDTUPLE:
        require(source, f"type({name}) is {source.constant(tree.context, 'T')}")
        if tree.context.__dictoffset__:  # Attributes are refused where the signature is read.
            require(source, f"not {name}.__dict__")
        return _take(source, name, tree)
    return _open_registered(source, name, tree)


def _open_dictionary(source: Source, name: str, tree: TreeSpec) -> list[str]:
    if not tree.num_children:
        require(source, f"not {name}")
        return []
    require(source, f"[*{name}] == {source.constant(tree.context, 'K')}")
    return _take(source, f"{name}.values()", tree)


def _open_registered(source: Source, name: str, tree: TreeSpec) -> list[str]:
    children, context = source.name("children"), source.name("context")
    require(source, f"type({name}) is {source.constant(tree.type, 'T')}")
    source.line(f"{children}, {context} = {source.constant(flattener_of(tree.type), 'F')}({name})")
    source.line(f"{children} = [*{children}]")
    expected = source.constant(tree.context, "C")
    require(source, f"{context} == {expected} and len({children}) == {_arity(tree)}")
    return _take(source, children, tree)


def _take(source: Source, value: str, tree: TreeSpec) -> list[str]:
    names = [source.name("a") for _ in tree.children()]
    if names:
        source.line(unpacked(names, value))
    return _open_all(source, names, tree)


def _arity(tree: TreeSpec) -> int:
    return tree.num_children


def constant_condition(source: Source, name: str, constant: Constant) -> str:
    """The condition under which a variable holds a signature's constant."""
    value: Any = constant.value
    if value is None or value is True or value is False:
        return f"{name} is {value}"
    kind = source.constant(constant.kind, "T")
    if isinstance(value, Identity):
        return f"{source.constant(value.reference, 'R')}() is {name}"
    if value is ByContents.READ:
        return f"type({name}) is {kind}"
    if constant.by_text:
        return f"type({name}) is {kind} and repr({name}) == {value!r}"
    return f"type({name}) is {kind} and {name} == {source.constant(value)}"


def result_expression(source: Source, values: list[str], tree: TreeSpec, depth: int = 0) -> str:
    """The expression that builds a function's value from its flat outputs.

    Args:
        source: The function being written.
        values: The expression of each output.
        tree: Structure of the value.
        depth: How many brackets are open around it.
    """
    if tree.is_leaf():
        return values[0]
    written = tree.type in (tuple, list, dict) or tree.type is NAMEDTUPLE
    if written and depth < _DEEPEST:
        parts: list[str] = []
        start = 0
        for child in tree.children():
            part = values[start : start + child.num_leaves]
            parts.append(result_expression(source, part, child, depth + 1))
            start += child.num_leaves
        return _display(source, parts, tree)
    unflatten = source.constant(tree.unflatten, "U")
    return f"{unflatten}([{listed(values)}])"


def _display(source: Source, parts: list[str], tree: TreeSpec) -> str:
    if tree.type is tuple:
        return f"({''.join(f'{part}, ' for part in parts)})"
    if tree.type is list:
        return f"[{listed(parts)}]"
    if tree.type is dict:
        keys = [source.constant(key) for key in tree.context]
        pairs = [f"{key}: {part}" for key, part in zip(keys, parts, strict=True)]
        return f"{{{listed(pairs)}}}"
    return f"{source.constant(tree.context, 'T')}({listed(parts)})"
