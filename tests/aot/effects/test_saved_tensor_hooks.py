"""Saved-tensor hooks and checkpoints around compiled functions: called as often as eager's."""

import contextlib
import functools

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import checkpoint

import funcaot

BACKENDS = ["eager", "inductor"]
CALLS = 5


class Product(torch.autograd.Function):
    """Keeps its operands and its result, and another operand as an attribute."""

    @staticmethod
    def forward(ctx, x, w):
        result = (x * w).exp()
        ctx.save_for_backward(x, w, result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        x, w, result = ctx.saved_tensors
        return gradient * w * result, gradient * x * result


FUNCTIONS = {
    "chain": lambda x, w: (x * w).sin().tanh(),
    "a result is kept": lambda x, w: (x * w).exp(),
    "a Function": lambda x, w: Product.apply(x, w),
    "a Function among others": lambda x, w: Product.apply(x.sin(), w).tanh(),
    "two results": lambda x, w: (x.tanh() * w, (x * w).sigmoid()),
    "a view": lambda x, w: (x @ w).exp().t(),
    "nothing kept": lambda x, w: x + 2 * w,
}


class Counted:
    """Hooks that number what they pack, and note what is unpacked."""

    def __init__(self):
        self.packed = 0
        self.unpacked = []

    def pack(self, tensor):
        self.packed += 1
        return self.packed - 1, tensor

    def unpack(self, packed):
        self.unpacked.append(packed[0])
        return packed[1]

    def __enter__(self):
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error):
        self._hooks.__exit__(*error)

    def taken(self):
        """What was unpacked since the last time."""
        found, self.unpacked = sorted(self.unpacked), []
        return found


def _operands():
    return [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]


def _total(result):
    outputs = result if isinstance(result, tuple) else (result,)
    return sum((k + 1) * output.sin().sum() for k, output in enumerate(outputs))


@pytest.fixture(params=["generated", "general"])
def path(request):
    with funcaot.config.patch(fast_path=request.param == "generated"):
        yield request.param


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_each_saved_tensor_is_packed_once_and_unpacked_once_in_each_backward(
    function, backend, path
):
    compiled = funcaot.compile(function, backend=backend)
    counts = set()
    for _ in range(CALLS):
        x, w = _operands()
        with Counted() as hooks:
            result = compiled(x, w)
        kept = hooks.packed
        total = _total(result)
        expected = torch.autograd.grad(_total(function(x, w)), (x, w))
        for again in (True, True, False):
            found = torch.autograd.grad(total, (x, w), retain_graph=again)
            assert_close(found, expected)
            assert hooks.taken() == list(range(kept))
        counts.add(kept)
    assert len(counts) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_user_function_alone_has_the_counts_of_eager(backend, path):
    def counts(function):
        x, w = _operands()
        with Counted() as hooks:
            result = function(x, w)
        found = [hooks.packed]
        result.sum().backward()
        return [*found, hooks.taken()]

    compiled = funcaot.compile(lambda x, w: Product.apply(x, w), backend=backend)
    expected = counts(Product.apply)
    for _ in range(CALLS):
        assert counts(compiled) == expected


def test_gradients_of_all_kinds_in_a_row(path):
    """Several cases are generated; what doesn't fit the first is tried with the others."""
    function = FUNCTIONS["two results"]
    compiled = funcaot.compile(function, backend="eager")
    given = [
        lambda t: torch.ones_like(t),
        lambda t: torch.ones(()).double().expand_as(t),
        lambda t: torch.ones_like(t).t().contiguous().t(),
        lambda t: None,
    ]
    for k in range(24):
        x, w = _operands()
        with Counted() as hooks:
            results = compiled(x, w)
        kept = hooks.packed
        wanted = (x, w) if k % 5 else (x,)
        made = [given[(k + i) % 4](result) for i, result in enumerate(results)]
        places = [i for i, tangent in enumerate(made) if tangent is not None]
        tangents = [made[i] for i in places]
        create_graph = k % 3 == 0
        with Counted():
            found = torch.autograd.grad(
                [results[i] for i in places], wanted, tangents, create_graph=create_graph
            )
        assert hooks.taken() == list(range(kept))
        expected = function(x, w)
        expected = torch.autograd.grad([expected[i] for i in places], wanted, tangents)
        assert_close(found, expected)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_at_higher_orders_nothing_is_unpacked_twice(function, path):
    compiled = funcaot.compile(function, backend="eager")
    counts = []
    for _ in range(CALLS):
        x, w = _operands()
        with Counted() as hooks:
            total, packed = _total(compiled(x, w)), []
            for _ in range(3):
                packed.append(hooks.packed)
                gradients = torch.autograd.grad(total, (x, w), create_graph=True)
                taken = hooks.taken()
                assert len(taken) == len(set(taken))
                total = sum(gradient.square().sum() for gradient in gradients)
        counts.append(packed)
    assert all(found == counts[0] for found in counts)


def test_open_sizes(path):
    function = FUNCTIONS["chain"]
    compiled = funcaot.compile(function, backend="eager", dynamic=True)
    for size in (4, 5, 4, 7, 2, 6):
        x, w = (torch.randn(size, requires_grad=True) for _ in range(2))
        with Counted() as hooks:
            result = compiled(x, w)
        kept = hooks.packed
        found = torch.autograd.grad(result.sum(), (x, w))
        assert hooks.taken() == list(range(kept))
        assert_close(found, torch.autograd.grad(function(x, w).sum(), (x, w)))


def test_a_freed_graph_is_an_error():
    compiled = funcaot.compile(FUNCTIONS["chain"], backend="eager")
    for _ in range(CALLS):
        result = compiled(*_operands()).sum()
        result.backward()
        with pytest.raises(RuntimeError, match="second time"):
            result.backward()


# Checkpoints.


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        return x + self.second(nn.functional.gelu(self.first(x)))


def _gradients(run, inputs, parameters=()):
    torch.manual_seed(5)
    inputs = [value.detach().clone().requires_grad_() for value in inputs]
    result = run(*inputs)
    return [result.detach(), *torch.autograd.grad(_total(result), (*inputs, *parameters))]


EARLY = {"early stop": True, "to the end": False}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("early", EARLY.values(), ids=EARLY)
@pytest.mark.parametrize("name", ["chain", "a Function among others", "a view"])
def test_checkpoint_of_a_compiled_function(name, early, backend, path):
    function = FUNCTIONS[name]
    compiled = funcaot.compile(function, backend=backend)
    for _ in range(CALLS):
        inputs = _operands()
        with checkpoints.set_checkpoint_early_stop(early):
            found = _gradients(functools.partial(checkpoint, compiled, use_reentrant=False), inputs)
        assert_close(found, _gradients(function, inputs))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_of_a_compiled_module(reentrant):
    block = Block()
    compiled = funcaot.compile(block)
    for _ in range(CALLS):
        inputs = [torch.randn(2, 4)]
        run = functools.partial(checkpoint, compiled, use_reentrant=reentrant)
        parameters = list(block.parameters())

        def backward(run, inputs=inputs, parameters=parameters):
            (x,) = (value.clone().requires_grad_() for value in inputs)
            for parameter in parameters:
                parameter.grad = None
            _total(run(x)).backward()
            return [x.grad, *(parameter.grad for parameter in parameters)]

        assert_close(backward(run), backward(block))


@pytest.mark.parametrize("early", EARLY.values(), ids=EARLY)
def test_checkpoints_in_a_row_and_one_in_another(early):
    blocks = nn.ModuleList(Block() for _ in range(3))
    compiled = [funcaot.compile(block, backend="eager") for block in blocks]

    def run(functions, x):
        for function in functions:
            x = checkpoint(function, x, use_reentrant=False)
        return x

    def nested(functions, x):
        def inner(x):
            return checkpoint(functions[1], functions[0](x).sin(), use_reentrant=False)

        def outer(x):
            return functions[2](checkpoint(inner, x, use_reentrant=False)).cos()

        return checkpoint(outer, x, use_reentrant=False)

    parameters = list(blocks.parameters())
    for _ in range(CALLS):
        inputs = [torch.randn(2, 4)]
        for program in (run, nested):
            with checkpoints.set_checkpoint_early_stop(early):
                found = _gradients(functools.partial(program, compiled), inputs, parameters)
            expected = _gradients(functools.partial(program, list(blocks)), inputs, parameters)
            assert_close(found, expected)


def test_checkpoint_with_a_graph_of_the_backward():
    function = FUNCTIONS["chain"]
    compiled = funcaot.compile(function, backend="eager")

    def twice(run):
        x, w = (torch.full((3,), value, requires_grad=True) for value in (0.3, 0.7))
        gradients = torch.autograd.grad(run(x, w).sum(), (x, w), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in gradients), (x, w))

    for _ in range(CALLS):
        found = twice(functools.partial(checkpoint, compiled, use_reentrant=False))
        assert_close(found, twice(function))


def test_checkpoint_that_is_retained_runs_again_for_each_backward():
    function = FUNCTIONS["a Function among others"]
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(CALLS):
        x, w = _operands()
        result = checkpoint(compiled, x, w, use_reentrant=False).sum()
        expected = torch.autograd.grad(function(x, w).sum(), (x, w))
        for again in (True, True, False):
            assert_close(torch.autograd.grad(result, (x, w), retain_graph=again), expected)


def test_a_recomputation_that_captures():
    """Early stop raises in the middle of a call that is captured, as its programs were cleared."""
    function = FUNCTIONS["a Function among others"]
    compiled = funcaot.compile(function, backend="eager")
    for k in range(CALLS):
        x, w = _operands()
        total = _total(checkpoint(compiled, x.sin(), w, use_reentrant=False))
        if k % 2:
            compiled.clear()
        found = torch.autograd.grad(total, (x, w))
        assert_close(found, torch.autograd.grad(_total(function(x.sin(), w)), (x, w)))
        assert torch.is_grad_enabled()


def test_random_numbers_are_drawn_again():
    def function(x, w):
        return nn.functional.dropout(x * w, 0.5) * x

    compiled = funcaot.compile(function, backend="eager")
    for seed in range(CALLS):
        x, w = _operands()
        torch.manual_seed(seed)
        result = checkpoint(compiled, x, w, use_reentrant=False)
        torch.manual_seed(seed)
        plain = compiled(x, w)
        assert_close(result, plain)
        assert_close(
            torch.autograd.grad(result.sum(), (x, w)), torch.autograd.grad(plain.sum(), (x, w))
        )


def _save_products(ctx, op, *args, **kwargs):
    policy = checkpoints.CheckpointPolicy
    kept = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return policy.MUST_SAVE if kept else policy.PREFER_RECOMPUTE


@pytest.mark.parametrize("inside", [True, False], ids=["compiled inside", "compiled outside"])
def test_selective_checkpoints(inside):
    def contexts():
        return checkpoints.create_selective_checkpoint_contexts(_save_products)

    def function(x, w):
        return ((x @ w).sin() @ w).tanh()

    compiled = funcaot.compile(function, backend="eager")
    run = functools.partial(
        checkpoint, compiled if inside else function, use_reentrant=False, context_fn=contexts
    )
    run = run if inside else funcaot.compile(run, backend="eager")
    for _ in range(CALLS):
        inputs = _operands()
        assert_close(_gradients(run, inputs), _gradients(function, inputs))


@pytest.mark.parametrize("backend", BACKENDS)
def test_save_on_cpu(backend, path):
    block = Block().double()
    compiled = funcaot.compile(block, backend=backend)
    parameters = list(block.parameters())
    for k in range(CALLS):
        inputs = [torch.randn(2, 4, dtype=torch.float64)]
        hooks = torch.autograd.graph.save_on_cpu() if k != 2 else contextlib.nullcontext()
        with hooks:
            found = _gradients(compiled, inputs, parameters)
        assert_close(found, _gradients(block, inputs, parameters))


def test_hooks_that_give_freed_memory_back_only_once():
    """As libraries do that shard or offload: what was unpacked can't be unpacked again."""
    function = FUNCTIONS["chain"]
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(CALLS):
        held = {}

        def pack(tensor, held=held):
            held[len(held)] = tensor.detach().clone()
            return len(held) - 1

        x, w = _operands()
        with torch.autograd.graph.saved_tensors_hooks(pack, held.pop):
            result = compiled(x, w)
        found = torch.autograd.grad(result.sum(), (x, w))
        assert not held
        assert_close(found, torch.autograd.grad(function(x, w).sum(), (x, w)))


@pytest.mark.parametrize("early", EARLY.values(), ids=EARLY)
def test_a_recomputation_updates_buffers_as_in_eager(early):
    """Early stop raises when the last tensor is saved; eager's ops have written by then."""
    modules = [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU()) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    compiled = funcaot.compile(modules[0], backend="eager")
    for _ in range(CALLS):
        x = torch.randn(5, 4)
        for run in (compiled, modules[1]):
            with checkpoints.set_checkpoint_early_stop(early):
                checkpoint(run, x, use_reentrant=False).square().sum().backward()
        assert_close(list(modules[0].buffers()), list(modules[1].buffers()))
        gradients = [[p.grad for p in module.parameters()] for module in modules]
        assert_close(*gradients)


def test_an_error_of_a_hook_passes_through(path):
    def refuse(tensor):
        raise ValueError("not this one")

    def function(x, w):
        x.mul_(2)
        return (x * w).sin()

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(CALLS):
        x, w = _operands()
        hooks = torch.autograd.graph.saved_tensors_hooks(refuse, refuse)
        with pytest.raises(ValueError, match="not this one"), hooks:
            compiled(x.detach(), w)
        expected = torch.autograd.grad(function(x * 1, w).sum(), (x, w))
        assert_close(torch.autograd.grad(compiled(x * 1, w).sum(), (x, w)), expected)
