"""Inputs that the graph itself writes to: nothing but time tells it from the epilogue."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError


def momentum(p, m, g):
    with torch.no_grad():
        m.mul_(0.9).add_(g)
        p.sub_(m)
    return m.sum()


def returns_what_it_writes(p, m, g):
    with torch.no_grad():
        new = p * 2
        p.copy_(new)
        m.copy_(g)
    return new, new[0], p


def returns_what_was_there(p, m, g):
    with torch.no_grad():
        before = p.clone()
        p.add_(1)
        m.copy_(p)
    return before, p.t(), m[0]


def swaps(p, m, g):
    with torch.no_grad():
        q = p.clone()
        p.copy_(m)
        m.copy_(q)


def crosses(p, m, g):
    with torch.no_grad():
        new = m * 2 + p
        m.copy_(p.t() * 3)
        p.copy_(new)
    return m[0, 0] + p[0, 0]


def shifts(p, m, g):
    with torch.no_grad():
        old = p.t().clone()
        p.copy_(g)
        m.copy_(old)
    return m.sum()


def writes_the_same_to_both(p, m, g):
    with torch.no_grad():
        new = p + g
        p.copy_(new)
        m.copy_(new)
    return new.sum()


def writes_parts(p, m, g):
    with torch.no_grad():
        p[0] = g[1]
        m.t().mul_(g)
        m[:, 1].zero_()
    return p[0] + 1


def writes_through_data(p, m, g):
    p.data.mul_(2)
    m.add_(g)
    return p.detach() + 0


def copies_one_to_the_other(p, m, g):
    with torch.no_grad():
        m.copy_(p.t())
        p.copy_(g)


def copies_around(p, m, g):
    with torch.no_grad():
        m.copy_(p)
        p.copy_(g * 2)
        g.copy_(m.t())


PROGRAMS = [
    momentum,
    returns_what_it_writes,
    returns_what_was_there,
    swaps,
    crosses,
    shifts,
    writes_the_same_to_both,
    writes_parts,
    writes_through_data,
    copies_one_to_the_other,
    copies_around,
]
BACKENDS = ["eager", pytest.param("inductor", marks=pytest.mark.slow)]


def tensors(layout="contiguous"):
    generator = torch.Generator().manual_seed(0)
    p, m, g = (torch.randn(3, 3, dtype=torch.float64, generator=generator) for _ in range(3))
    if layout == "transposed":
        p = p.t()
    return nn.Parameter(p), m, g


def flat(result):
    return [] if result is None else [result] if isinstance(result, torch.Tensor) else [*result]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager(program, layout, backend):
    compiled = funcaot.compile(program, backend=backend)
    ours, theirs = tensors(layout), tensors(layout)
    kept = []
    for _ in range(4):
        actual, expected = flat(compiled(*ours)), flat(program(*theirs))
        assert_close(actual, expected)
        assert_close(ours, theirs)
        assert [t._version for t in ours] == [t._version for t in theirs]
        kept += zip(actual, expected, strict=True)
        # What was returned is its own, or shares memory with an input, as in eager.
        for one, other in kept:
            assert_close(one, other)
            assert one.requires_grad == other.requires_grad


def test_the_graph_writes():
    compiled = funcaot.compile(momentum, backend="eager")
    p, m, g = tensors()
    compiled(p, m, g)
    (entry,) = funcaot.report(compiled).entries
    (graph,) = [graph for graph in entry.graphs if graph.compiler]
    assert entry.mutations == entry.in_place == (0, 1)
    assert "inside the graph [0, 1]" in str(funcaot.report(compiled))
    assert graph.compiler == "eager"


def test_what_another_write_reads_is_left_to_the_epilogue():
    compiled = funcaot.compile(swaps, backend="eager")
    compiled(*tensors())
    (entry,) = funcaot.report(compiled).entries
    assert entry.mutations == (0, 1)
    assert entry.in_place == ()


def test_inputs_that_share_memory_are_told_apart_at_every_call():
    compiled = funcaot.compile(momentum, backend="eager")
    for share in (False, False, False, True, False, True):
        results = []
        for function in (momentum, compiled):
            p, m, g = tensors()
            m = p.detach() if share else m
            with torch.no_grad():
                total = function(p, m, g)
            results.append([total, p, m, p._version, m._version])
        assert_close(results[1], results[0])


def test_views_of_one_tensor_count_changes_together():
    compiled = funcaot.compile(momentum, backend="eager")
    for _ in range(4):
        counts = []
        for function in (momentum, compiled):
            both = torch.zeros(2, 3, 3)
            with torch.no_grad():
                function(both[0], both[1], torch.ones(3, 3))
            counts.append(both._version)
        assert counts[1] == counts[0]


def in_place(compiled):
    """Inputs that graphs write to, a tuple per signature."""
    return [entry.in_place for entry in funcaot.report(compiled).entries]


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_in_every_grad_mode(mode):
    compiled = funcaot.compile(momentum, backend="eager")
    results = []
    for function in (momentum, compiled):
        p, _, g = tensors()
        with mode():
            made = torch.zeros(3, 3, dtype=torch.float64)
            totals = [function(p, made, g) for _ in range(3)]
        results.append([totals, p, made])
    assert_close(results[1], results[0])


def test_under_transforms_the_epilogue_writes():
    compiled = funcaot.compile(momentum, backend="eager")

    def run(function):
        m = torch.zeros(5, 3, dtype=torch.float64)
        p = torch.ones(5, 3, dtype=torch.float64)
        g = torch.arange(15, dtype=torch.float64).view(5, 3)
        total = torch.func.vmap(function)(p, m, g)
        return total, p, m

    assert_close(run(compiled), run(momentum))
    assert_close(compiled(*tensors()), momentum(*tensors()))


def test_a_custom_backend_gets_a_functional_graph():
    seen = []

    def backend(graph, inputs):
        seen.extend(node.target for node in graph.graph.nodes)
        return graph

    p, m, g = tensors()
    funcaot.compile(momentum, backend=backend)(p, m, g)
    assert seen
    assert torch.ops.aten.copy_.default not in seen


def test_open_sizes_leave_it_to_the_epilogue():
    def step(p, x):
        with torch.no_grad():
            p.add_(x.sum(0))
        return p.sum()

    compiled = funcaot.compile(step, backend="eager")
    ours, theirs = torch.zeros(2, 3, dtype=torch.float64)
    for count in (4, 5, 6, 7, 4):
        x = torch.randn(count, 3, dtype=torch.float64)
        assert_close(compiled(ours, x), step(theirs, x))
        assert_close(ours, theirs)
        assert ours._version == theirs._version
    assert in_place(compiled)[0] == (0,)
    assert in_place(compiled)[1:] == [()]


def test_a_program_that_may_be_left_leaves_it_to_the_epilogue():
    def step(p, x):
        with torch.no_grad():
            p.add_(x)
            if p.sum() > 0:
                p.mul_(2)
            return p[0] + p.sum().item()

    compiled = funcaot.compile(step, backend="eager")
    ours, theirs = torch.zeros(2, 3, dtype=torch.float64)
    for value in (1.0, -3.0, 2.0, 1.0, -5.0):
        x = torch.full((3,), value, dtype=torch.float64)
        assert_close(compiled(ours, x), step(theirs, x))
        assert_close(ours, theirs)
    assert set(in_place(compiled)) == {()}


SPARSE = {
    "coo": lambda values: torch.sparse_coo_tensor(
        [[0, 1], [1, 0]], values, (2, 2), check_invariants=True, is_coalesced=True
    ),
    "csr": lambda values: torch.sparse_csr_tensor(
        [0, 1, 2], [1, 0], values, (2, 2), check_invariants=True
    ),
    "csc": lambda values: torch.sparse_csc_tensor(
        [0, 1, 2], [1, 0], values, (2, 2), check_invariants=True
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta:UserWarning")
@pytest.mark.parametrize("sparse", SPARSE.values(), ids=SPARSE)
def test_a_sparse_input_beside_one_that_is_written_to(sparse):
    def step(p, x):
        with torch.no_grad():
            p.mul_(2)
        return x @ p

    compiled = funcaot.compile(step, backend="eager")
    p, values = torch.ones(2), torch.ones(2)
    assert_close(compiled(p, sparse(values)), step(torch.ones(2), sparse(values)))
    assert_close(p, torch.full((2,), 2.0))
    assert in_place(compiled) == [()]
    with pytest.raises(UnsupportedError, match="sparse"):
        compiled(values, sparse(values))


def test_state_and_gradients_keep_what_they_are_given():
    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
            self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))
            self.history, self.last = [], None

        def forward(self, x):
            loss = (self.weight * x).square().sum()
            loss.backward()
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x)
                self.history.append(self.weight.clone())
                self.last = self.mean
                new = self.weight - 0.1 * self.weight.grad
                self.weight.copy_(new)
                self.kept = new
            return loss.detach()

    ours, theirs = Step(), Step()
    compiled = funcaot.compile(ours, backend="eager")
    for k in range(5):
        x = torch.full((3,), 0.1 * k, dtype=torch.float64)
        assert_close(compiled(x), theirs(x))
        assert_close(list(ours.state_dict().values()), list(theirs.state_dict().values()))
        assert_close(ours.history, theirs.history)
        assert_close([ours.kept, ours.weight.grad], [theirs.kept, theirs.weight.grad])
        assert ours.last is ours.mean
        assert ours.weight._version == theirs.weight._version
