"""The graphs that vmap batches: no op without a batching rule, nothing that reads strides."""

import pytest
import torch
from torch import fx

import funcaot
from funcaot._torch.tracing.make_fx import make_fx
from funcaot.aot.calls.batchable import batchable

aten = torch.ops.aten


def copied(whole, part):
    return aten.copy.default(whole, part)


def chosen(whole, part):
    return aten.as_strided.default(whole, [2, 2], [3, 1], 1)


def scattered(whole, part):
    return aten.as_strided_scatter.default(whole, part[:, :2], [2, 2], [3, 1], 1)


def cut(whole, part):
    return aten.slice_scatter.default(whole, part[:, 1:], 1, 1, 2**62)


def cut_from_the_end(whole, part):
    return aten.slice_scatter.default(whole, part[:, 1:], 1, -2)


def flattened(whole, part):
    return aten.view.default(whole, [6])


def check_as_loop(function, whole, part, dims, as_whole):
    """A batched graph gives what the function gives of each example, laid out as it is said."""
    graph = batchable(make_fx(function, tracing_mode="fake")(whole, part))
    torch.testing.assert_close(graph(whole, part), function(whole, part))
    batches = [
        tensor if dim is None else torch.stack([tensor, 2 * tensor], dim)
        for tensor, dim in zip((whole, part), dims, strict=True)
    ]
    rows = []
    for i in range(2):
        row = [b if dim is None else b.select(dim, i) for b, dim in zip(batches, dims, strict=True)]
        # as_strided counts from the first element of the storage.
        rows.append(function(as_whole(row[0]), contiguous(row[1])))
    result = torch.func.vmap(graph, in_dims=dims)(*batches)
    torch.testing.assert_close(result, torch.stack(rows))


def contiguous(tensor):
    return tensor.clone(memory_format=torch.contiguous_format)


@pytest.mark.parametrize("function", [copied, chosen, scattered, cut, cut_from_the_end, flattened])
@pytest.mark.parametrize("dims", [(0, 0), (1, 2), (None, 0), (0, None)])
def test_batched_is_a_loop(function, dims):
    check_as_loop(function, torch.rand(2, 3), torch.rand(2, 3), dims, contiguous)


@pytest.mark.parametrize("dims", [(0, 0), (2, 2), (None, 0), (0, None)])
@pytest.mark.parametrize("function", [chosen, scattered])
def test_places_of_a_tensor_in_another_order(function, dims):
    """The unbatched tensor says which elements ``as_strided`` means, whatever a batch's order."""
    whole, part = torch.rand(3, 2).t(), torch.rand(2, 3)
    check_as_loop(function, whole, part, dims, lambda each: contiguous(each.t()).t())


def test_copy_converts_and_expands():
    def function(whole, part):
        return aten.copy.default(whole, part)

    whole, part = torch.rand(2, 3), torch.rand(3, dtype=torch.float64)
    graph = batchable(make_fx(function, tracing_mode="fake")(whole, part))
    result = graph(whole, part)
    assert result.dtype == torch.float32
    assert result.is_contiguous()
    torch.testing.assert_close(result, part.float().expand(2, 3))


def test_what_reaches_beyond_a_tensor_stays():
    graph = fx.Graph()
    whole = graph.placeholder("whole")
    view = graph.call_function(aten.as_strided.default, (whole, [2], [1], 3))
    whole.meta["val"] = torch.rand(8)[:4]
    view.meta["val"] = torch.rand(2)
    graph.output(view)
    rewritten = batchable(fx.GraphModule(torch.nn.Module(), graph))
    assert any(node.target is aten.as_strided.default for node in rewritten.graph.nodes)


def test_in_place_on_a_view_is_batched_without_a_warning():
    def function(x):
        base = x.clone()
        base[..., :1].exp_()
        return base.sin().sum()

    x = torch.rand(4, 3, dtype=torch.float64)
    compiled = funcaot.compile(function, backend="eager")
    result = torch.func.vmap(torch.func.grad(compiled))(x)
    torch.testing.assert_close(result, torch.func.vmap(torch.func.grad(function))(x))
