"""What is kept for a backward, against eager: values, errors, and how much."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import funcaot
from funcaot.errors import FuncaotError

POLICIES = ("balanced", "memory", "save_all")


def gradients(function, inputs, seed=1):
    torch.manual_seed(seed)
    return torch.autograd.grad(function(*inputs), inputs)


def kept(compiled):
    """Names of computed residuals of the first entry."""
    residuals = funcaot.report(compiled).entries[0].residuals
    return [residual for residual in residuals if residual.origin == "intermediate"]


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def chain(x, w):
    return F.dropout(F.gelu(x @ w), 0.3).relu().mul(2).tanh().sum()


def norms(x, w):
    y = F.layer_norm(x @ w, (8,))
    return (F.softmax(y, -1) @ w).logsumexp(-1).sum()


def pieces(x, w):
    y = torch.cat([F.leaky_relu(x @ w, 0.2), F.relu6(3 * x), F.hardtanh(x)], 1)
    return F.threshold(y, 0.1, 0.0).square().sum()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("function", [chain, norms, pieces])
def test_gradients_equal_eagers(function, policy):
    inputs = (leaf(8, 8), leaf(8, 8))
    compiled = funcaot.compile(function, backend="eager", policy=policy)
    for _ in range(2):
        for mine, theirs in zip(
            gradients(compiled, inputs), gradients(function, inputs), strict=True
        ):
            assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("function", [chain, pieces])
def test_second_derivatives_equal_eagers(function, policy):
    inputs = (leaf(8, 8), leaf(8, 8))

    def penalty(f):
        torch.manual_seed(1)
        first = torch.autograd.grad(f(*inputs), inputs, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), inputs)

    compiled = funcaot.compile(function, backend="eager", policy=policy)
    for mine, theirs in zip(penalty(compiled), penalty(function), strict=True):
        assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_transforms_see_the_same_residuals(policy):
    def f(x):
        return F.relu(x.sin() * 2).mul(x.exp()).sum()

    compiled = funcaot.compile(f, backend="eager", policy=policy)
    x = torch.randn(4, 3)
    assert_close(torch.func.grad(compiled)(x), torch.func.grad(f)(x))
    assert_close(torch.func.hessian(compiled)(x), torch.func.hessian(f)(x))
    tangent = torch.randn(4, 3)
    assert_close(torch.func.jvp(compiled, (x,), (tangent,)), torch.func.jvp(f, (x,), (tangent,)))
    per_row = torch.func.vmap(torch.func.grad(compiled))
    assert_close(per_row(x), torch.func.vmap(torch.func.grad(f))(x))


def test_a_pointwise_chain_is_recomputed():
    compiled = funcaot.compile(chain, backend="eager")
    gradients(compiled, (leaf(8, 8), leaf(8, 8)))
    found = kept(compiled)
    assert [residual.dtype for residual in found] == [torch.float32, torch.bool]
    assert [residual.bytes for residual in found] == [256, 64]


def test_a_relu_keeps_a_mask():
    def f(x, w):
        return (x @ w).relu().sum()

    compiled = funcaot.compile(f, backend="eager", policy=lambda value: "le" in value.op or None)
    inputs = (leaf(8, 8), leaf(8, 8))
    for mine, theirs in zip(gradients(compiled, inputs), gradients(f, inputs), strict=True):
        assert_close(mine, theirs)
    (mask,) = kept(compiled)
    assert mask.dtype is torch.bool


def test_memory_recomputes_what_balanced_keeps():
    inputs = (leaf(8, 8), leaf(8, 8))
    sizes = {}
    for policy in POLICIES:
        compiled = funcaot.compile(norms, backend="eager", policy=policy)
        gradients(compiled, inputs)
        sizes[policy] = funcaot.report(compiled).entries[0].residual_bytes
    assert sizes["memory"] < sizes["balanced"] <= sizes["save_all"]


def test_a_long_chain_is_cut_into_pieces():
    def f(x):
        x = x * 1
        for _ in range(50):
            x = x.sin()
        return x.sum()

    counts = {}
    for policy in POLICIES:
        compiled = funcaot.compile(f, backend="eager", policy=policy)
        x = leaf(4)
        assert_close(gradients(compiled, (x,)), gradients(f, (x,)))
        counts[policy] = len(kept(compiled))
    assert counts == {"balanced": 4, "memory": 1, "save_all": 50}


def test_random_numbers_are_drawn_once():
    def f(x):
        noise = torch.rand_like(x)
        return (x * noise.exp()).cos().sum()

    for policy in POLICIES:
        compiled = funcaot.compile(f, backend="eager", policy=policy)
        x = leaf(16)
        assert_close(gradients(compiled, (x,)), gradients(f, (x,)))
        graph = funcaot.report(compiled).entries[0].backwards[0].graph
        assert not any("rand" in str(node.target) for node in graph.graph.nodes)


def test_a_users_function_runs_once():
    runs = []

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(x):
            runs.append(1)
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return 2 * x * gradient

    def f(x):
        return Square.apply(x.exp()).sin().sum()

    compiled = funcaot.compile(f, backend="eager", policy="memory")
    x = leaf(4)
    gradients(compiled, (x,))
    runs.clear()
    assert_close(gradients(compiled, (x,)), gradients(f, (x,)))
    assert len(runs) == 2  # one of them eager's


def test_tensors_stashed_on_the_context_are_kept():
    class Stash(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.hidden = {"noise": torch.rand_like(x)}
            return x * ctx.hidden["noise"]

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.hidden["noise"]

    def f(x):
        return Stash.apply(x.exp()).sum()

    compiled = funcaot.compile(f, backend="eager")
    x = leaf(4)
    assert_close(gradients(compiled, (x,)), gradients(f, (x,)))


class TestOverwriting:
    """Between forward and backward: an error exactly where eager has one."""

    def check(self, function, overwrite, *, error, policy):
        values, found = torch.randn(4), []
        for run in (function, funcaot.compile(function, backend="eager", policy=policy)):
            x = values.clone().requires_grad_()
            entered = x * 1
            y = run(entered)
            total = y.sum()
            with torch.no_grad():
                overwrite(entered, y)
            if error:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    total.backward()
            else:
                total.backward()
                found.append(x.grad)
        if not error:
            assert_close(*found)

    @pytest.mark.parametrize("policy", POLICIES)
    def test_an_input_that_eager_saved(self, policy):
        self.check(lambda x: x.sin(), lambda x, y: x.zero_(), error=True, policy=policy)

    @pytest.mark.parametrize("policy", POLICIES)
    def test_an_input_that_eager_did_not_save(self, policy):
        self.check(lambda x: (x + 1).sin(), lambda x, y: x.zero_(), error=False, policy=policy)

    @pytest.mark.parametrize("policy", POLICIES)
    def test_an_output_that_eager_saved(self, policy):
        self.check(lambda x: x.sigmoid(), lambda x, y: y.zero_(), error=True, policy=policy)
        self.check(lambda x: x.relu(), lambda x, y: y.zero_(), error=True, policy=policy)

    @pytest.mark.parametrize("policy", POLICIES)
    def test_an_output_that_eager_did_not_save(self, policy):
        self.check(lambda x: x.sin() * 2, lambda x, y: y.zero_(), error=False, policy=policy)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_checkpointed_regions_keep_their_inputs(reentrant, policy):
    weight = leaf(8, 8)

    def block(x):
        return ((F.dropout((x @ weight).relu(), 0.5)) @ weight).tanh()

    def f(x):
        for _ in range(3):
            x = checkpoint(block, x, use_reentrant=reentrant)
        return x.sum()

    def run(function):
        torch.manual_seed(1)
        x.grad = weight.grad = None
        function(x).backward()
        return x.grad, weight.grad

    x = leaf(8, 8)
    compiled = funcaot.compile(f, backend="eager", policy=policy)
    for mine, theirs in zip(run(compiled), run(f), strict=True):
        assert_close(mine, theirs)
    assert [(item.dtype, item.bytes) for item in kept(compiled) if item.dtype != torch.bool] == [
        (torch.float32, 256)
    ] * (2 if policy != "save_all" else 2 + 3)
    graph = funcaot.report(compiled).entries[0].backwards[0].graph
    # Two products a block for the gradients' two operands each; what leads to a kept result of a
    # block doesn't run again.
    assert sum("mm" in node.name for node in graph.graph.nodes) == 12 + 4


def test_residuals_say_where_they_come_from_and_why():
    compiled = funcaot.compile(chain, backend="eager")
    gradients(compiled, (leaf(8, 8), leaf(8, 8)))
    product, mask = kept(compiled)
    line = chain.__code__.co_firstlineno + 1
    assert product.source == (__file__, line)
    assert "aten.mm" in product.reason
    assert "GeluBackward0" in product.consumers
    assert "random" in mask.reason
    assert f"test_partition.py:{line}" in str(funcaot.report(compiled))


def test_a_policy_of_ones_own():
    seen = []

    def keep_tanh(candidate):
        seen.append(candidate)
        return "tanh" in candidate.op or None

    def f(x, w):
        return (x @ w).sin().tanh().exp().cos().sum()

    compiled = funcaot.compile(f, backend="eager", policy=keep_tanh)
    inputs = (leaf(8, 8), leaf(8, 8))
    for mine, theirs in zip(gradients(compiled, inputs), gradients(f, inputs), strict=True):
        assert_close(mine, theirs)
    assert "aten.tanh.default" in [candidate.op for candidate in seen]
    assert "keep_tanh" in " ".join(residual.reason for residual in kept(compiled))


def test_an_unknown_policy_is_refused():
    with pytest.raises(FuncaotError, match="no policy 'most'"):
        funcaot.compile(chain, policy="most")


@pytest.mark.parametrize("policy", POLICIES)
def test_views_of_one_product_are_kept_as_the_product(policy):
    def f(x, w):
        query, key, value = (part.unsqueeze(0) for part in (x @ w).chunk(3, -1))
        return F.scaled_dot_product_attention(query, key, value).sum()

    compiled = funcaot.compile(f, backend="eager", policy=policy)
    inputs = (leaf(8, 8), leaf(8, 24))
    for mine, theirs in zip(gradients(compiled, inputs), gradients(f, inputs), strict=True):
        assert_close(mine, theirs)
    graph = funcaot.report(compiled).entries[0].backwards[0].graph
    assert sum(node.target is torch.ops.aten.mm.default for node in graph.graph.nodes) == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_running_statistics_are_updated_once(policy):
    original = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
    x = torch.randn(16, 4)
    states = []
    for compiled in (False, True):
        model = copy.deepcopy(original)
        run = funcaot.compile(model, backend="eager", policy=policy) if compiled else model
        for _ in range(2):
            run(x).square().sum().backward()
        states.append([*model.buffers(), *(parameter.grad for parameter in model.parameters())])
    for mine, theirs in zip(*states, strict=True):
        assert_close(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_inductor_keeps_no_alias_of_an_output(policy):
    def f(x, w):
        y = x @ w
        return y, F.dropout(F.gelu(y + 1), 0.5).sin().sum()

    compiled = funcaot.compile(f, policy=policy)
    x, w = leaf(8, 8), leaf(8, 8)
    torch.manual_seed(3)
    y, loss = compiled(x, w)
    expected = torch.autograd.grad(loss, (x, w), retain_graph=True)
    with torch.no_grad():
        y.zero_()
    for mine, theirs in zip(torch.autograd.grad(loss, (x, w)), expected, strict=True):
        assert_close(mine, theirs)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_batch_draws_once_too(policy):
    compiled = funcaot.compile(lambda x: F.dropout(x, 0.5), backend="eager", policy=policy)

    def value_and_gradient(x):
        y, pull = torch.func.vjp(compiled, x)
        return y, *pull(torch.ones_like(x))

    x = torch.rand(64, 8) + 1
    y, noise = torch.func.vmap(value_and_gradient, randomness="different")(x)
    assert_close(y, x * noise)
    assert not bool((noise == noise[0]).all())


OPS = (
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: x @ y,
    lambda x, y: F.relu(x - y),
    lambda x, y: F.dropout(x, 0.4),
    lambda x, y: x.sigmoid(),
    lambda x, y: y.t(),
    lambda x, y: x.transpose(0, 1).reshape(4, 4),
    lambda x, y: torch.cat([x[:2], y[2:]]),
    lambda x, y: F.layer_norm(x, (4,)),
    lambda x, y: F.softmax(y, 0) * x,
    lambda x, y: x.clone().mul_(y).relu_(),
    lambda x, y: (x - x.mean(0)).abs() + 0.1,
    lambda x, y: torch.where(x > y, x, y * 0.5),
    lambda x, y: x.chunk(2)[0].repeat(2, 1),
    lambda x, y: torch.bernoulli(x.detach().sigmoid()) * y,
    lambda x, y: checkpoint(lambda a, b: (a @ b).tanh().relu(), x, y, use_reentrant=False),
    lambda x, y: F.hardtanh(x) + F.leaky_relu(y),
)


def program(seed):
    """A function drawn at random: ops on earlier values, of which it returns a few."""
    import random

    draw = random.Random(seed)
    steps = [(draw.choice(OPS), draw.random(), draw.random()) for _ in range(12)]
    returned = [draw.random() for _ in range(2)]

    def f(x, y):
        values = [x, y]
        for op, first, second in steps:
            recent = values[-4:]
            values.append(op(recent[int(first * len(recent))], recent[int(second * len(recent))]))
        return (values[-1], *(values[int(place * len(values))].sin() for place in returned))

    return f


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(12))
def test_programs_drawn_at_random(seed, policy):
    f, inputs = program(seed), (leaf(4, 4), leaf(4, 4))
    compiled = funcaot.compile(f, backend="eager", policy=policy)
    found = []
    for run in (f, compiled):
        torch.manual_seed(seed)
        outputs = run(*inputs)
        total = sum(output.square().sum() for output in outputs)
        found.append(torch.autograd.grad(total, inputs, allow_unused=True))
    for mine, theirs in zip(*found, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert_close(mine, theirs)


@pytest.mark.parametrize("policy", ["balanced", "memory", "save_all"])
@pytest.mark.parametrize("layer", ["product", "linear", "view of a sum", "chain"])
def test_second_derivatives_of_checkpointed_layers(layer, policy):
    """A view that leaves a region is made again from what it shows."""
    blocks = {
        "product": lambda x, w: (x @ w.t()).sin(),
        "linear": lambda x, w: F.silu(F.linear(x, w)).tanh(),
        "view of a sum": lambda x, w: ((x + w).t() @ w).sin() * x.sum(),
        "chain": lambda x, w: torch.tanh(F.linear(torch.tanh(F.linear(x, w)), w.t().exp())),
    }

    def f(x, w):
        for _ in range(2):
            x = checkpoint(blocks[layer], x, w, use_reentrant=False)
        return x.square().sum()

    def run(function):
        first = torch.autograd.grad(function(x, w), (x, w), create_graph=True)
        return first, torch.autograd.grad(sum(each.pow(2).sum() for each in first), (x, w))

    x, w = leaf(4, 4), leaf(4, 4)
    compiled = funcaot.compile(f, backend="eager", policy=policy)
    for _ in range(2):
        assert_close(run(compiled), run(f))


def rows(x, y):
    """The gradient of each of these asks which elements equal the largest."""
    largest = torch.tanh(x * y).amax(1)
    chosen = torch.exp(x * y)
    return largest.sum() + torch.where(chosen == chosen.amax(0), x, y).sum()


def test_what_is_compared_is_kept():
    """Inductor's formula for a whole vector gives other last digits than that for one number."""
    torch.manual_seed(0)
    compiled = funcaot.compile(rows)
    for _ in range(6):
        inputs = tuple(torch.rand(5, 7).add(0.1).requires_grad_() for _ in range(2))
        assert_close(gradients(compiled, inputs), gradients(rows, inputs))
    found = [residual.dtype for residual in kept(compiled) if residual.bytes > 32]
    assert sorted(map(str, found)) == ["torch.bool", "torch.float32"]
