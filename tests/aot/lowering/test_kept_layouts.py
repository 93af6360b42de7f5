"""What a forward keeps lies in memory as the compiler likes; all others see eager's layouts."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import funcaot
from funcaot._torch.inductor.inductor import FREE_LAYOUTS
from funcaot.aot.lowering import kept_layouts
from funcaot.backends.compiler import Compiler

shown = []


def channels_last(module, examples, kind):
    """Runs graphs op by op, but lays out every image that it may as channels last."""
    output = next(iter(reversed(module.graph.nodes)))
    free = output.meta[FREE_LAYOUTS]
    strides = [example.stride() for example in examples]

    def run(operands):
        assert [operand.stride() for operand in operands] == strides
        shown.append((kind, {s for s, e in zip(strides, examples, strict=True) if e.dim() == 4}))
        made = list(module(*operands))
        for index in free:
            if made[index].dim() == 4:
                made[index] = made[index].contiguous(memory_format=torch.channels_last)
        return made

    return run


BACKEND = Compiler(
    "channels last", channels_last, decompositions=dict, checks_layouts=False, chooses_layouts=True
)


class Watching(TorchDispatchMode):
    """While it is active, graphs run op by op."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Sheared(torch.autograd.Function):
    """Looks at the memory of what it saved."""

    @staticmethod
    def forward(x):
        y = x.exp()
        return y.sum(), y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, gradient, _):
        (y,) = ctx.saved_tensors
        return gradient * y.as_strided(y.shape, y.stride()) + y.as_strided((), ())


class Slope(Sheared):
    """Its gradient is what it saved."""

    @staticmethod
    def backward(ctx, gradient, _):
        return ctx.saved_tensors[0]


class Net(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1)
        self.norm, self.last = nn.BatchNorm2d(4), last
        self.scale = nn.Parameter(torch.randn(2, 4, 4, 3))

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        return self.last(torch.sigmoid(self.second(x).exp()) * self.scale)


LASTS = {
    "sum": torch.sum,
    "view": lambda x: (x * x).view(x.shape[0], -1).sin().sum(),
    "as_strided": lambda x: Sheared.apply(x)[0],
    "transposed": lambda x: (x.transpose(0, 1).contiguous().exp() * 2).sum(),
}


def nets(last, backend=BACKEND):
    net = Net(LASTS[last])
    return net, funcaot.compile(copy.deepcopy(net), backend=backend)


def inputs():
    return torch.randn(2, 3, 6, 5, requires_grad=True)


def gradients_of(net, x, **keywords):
    return torch.autograd.grad(net(x), [x, *net.parameters()], **keywords)


def check(compiled, eager):
    for found, wanted in zip(compiled, eager, strict=True):
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()


@pytest.mark.parametrize("last", LASTS)
def test_gradients_and_their_strides_are_eagers(last):
    net, compiled = nets(last)
    x = inputs()
    for _ in range(3):
        check(gradients_of(compiled, x), gradients_of(net, x))


def test_a_backward_is_compiled_for_what_was_kept():
    _, compiled = nets("sum")
    shown.clear()
    x = inputs()
    for _ in range(3):
        gradients_of(compiled, x)
    backwards = [strides for kind, strides in shown if kind == "backward"]
    assert len(backwards) == 3
    assert all((48, 1, 12, 4) in strides for strides in backwards)


@pytest.mark.parametrize("last", ["sum", "as_strided"])
def test_kept_values_that_come_back_in_another_layout(last):
    net, compiled = nets(last)
    x = inputs()
    expected = gradients_of(net, x)
    for pack in (torch.Tensor.contiguous, lambda tensor: tensor):
        with torch.autograd.graph.saved_tensors_hooks(pack, torch.Tensor.contiguous):
            check(gradients_of(compiled, x), expected)
        check(gradients_of(compiled, x), expected)


@pytest.mark.parametrize("last", LASTS)
def test_second_derivatives(last):
    net, compiled = nets(last)
    x = inputs()

    def penalty(net):
        (gradient,) = torch.autograd.grad(net(x), x, create_graph=True)
        return torch.autograd.grad((gradient * gradient).sum(), list(net.parameters())[:3])

    if last == "as_strided":
        pytest.skip("eager's second derivative of as_strided takes the saved tensor's geometry")
    for _ in range(2):
        check(penalty(compiled), penalty(net))


@pytest.mark.parametrize("last", LASTS)
def test_a_backward_that_is_not_compiled(last):
    net, compiled = nets(last)
    x = inputs()
    for _ in range(2):
        loss = compiled(x)
        with Watching():
            found = torch.autograd.grad(loss, [x, *compiled.parameters()])
        check(found, gradients_of(net, x))


@pytest.mark.parametrize("last", ["sum", "view", "transposed"])
def test_batches_of_tangents(last):
    net, compiled = nets(last)
    x, tangents = inputs(), torch.randn(3)

    def jacobian(net):
        return torch.autograd.grad(net(x), x, tangents, is_grads_batched=True)

    for _ in range(2):
        check(jacobian(compiled), jacobian(net))


@pytest.mark.parametrize("last", LASTS)
def test_under_transforms(last):
    net, compiled = nets(last)
    x = inputs().detach()
    for either in (net, compiled):
        gradients_of(either, x.clone().requires_grad_())
    net.eval(), compiled.eval()
    check([torch.func.grad(compiled)(x)], [torch.func.grad(net)(x)])
    value, pull = torch.func.vjp(compiled, x)
    expected, pull_eager = torch.func.vjp(net, x)
    torch.testing.assert_close(value, expected)
    tangents = torch.randn(3)
    if last != "as_strided":
        check(torch.vmap(pull)(tangents), torch.vmap(pull_eager)(tangents))


def test_a_gradient_that_is_what_was_kept():
    def function(x, weight, shift):
        return Slope.apply(F.conv2d(x, weight) + shift)[0]

    operands = [torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 3), torch.randn(2, 4, 4, 3)]
    for operand in operands:
        operand.requires_grad_()
    compiled = funcaot.compile(function, backend=BACKEND)
    for _ in range(3):
        found = torch.autograd.grad(compiled(*operands), operands)
        check(found, torch.autograd.grad(function(*operands), operands))


@pytest.mark.slow
@pytest.mark.parametrize("last", ["view", "as_strided"])
def test_inductor_keeps_images_as_it_computes_them(last):
    net, compiled = nets(last, "inductor")
    x = inputs()
    loss = compiled(x)
    kept = [tensor for tensor in loss.grad_fn.saved_tensors if tensor.shape == (2, 4, 4, 3)]
    assert (48, 1, 12, 4) in {tensor.stride() for tensor in kept}
    for _ in range(3):
        check(gradients_of(compiled, x), gradients_of(net, x))


@pytest.mark.parametrize("wrapped", [False, True], ids=["fake", "wrapped"])
def test_a_value_that_is_no_fake_tensor_itself(wrapped):
    """A level's wrapper around one says nothing by which a graph could be laid out anew."""
    seen = []

    def traced(value):
        graph = fx.Graph()
        node = graph.placeholder("x")
        result = graph.call_function(torch.ops.aten.sin.default, (node,))
        node.meta["val"], result.meta["val"] = value, value.sin()
        graph.output([result])
        module = fx.GraphModule({}, graph)
        layouts = kept_layouts.chosen(module, {0: torch.empty(4, 3).t()})
        relaid = kept_layouts.relaid(module, layouts)
        seen.append(next(iter(relaid.graph.nodes)).meta["val"].stride())
        return value.sum()

    with FakeTensorMode():
        fake = torch.empty(3, 4)
        (torch.func.grad(traced) if wrapped else traced)(fake)
    assert seen == [(4, 1) if wrapped else (1, 3)]
