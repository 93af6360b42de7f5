"""What ``sessions`` can do in a world: each action is called once in every world, in one order.

An action takes the world and numbers that were drawn for both, and returns what a user would see.
"""

from __future__ import annotations

import contextlib
import copy

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from tests.sessions.worlds import FEATURES, OPTIMIZERS, WIDTH

ACTIONS = {}


def action(weight=1):
    """Register an action; those with more weight are drawn more often."""

    def decorate(function):
        ACTIONS[function.__name__] = (function, weight)
        return function

    return decorate


def batch(draw, world):
    """Data of a drawn size and layout, in the type of the model."""
    size = draw.choice([1, 3, 3, 3, 5, 8])
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    layout = draw.choice(["plain", "plain", "transposed", "sliced", "leaf"])
    if layout == "transposed":
        x = torch.randn(FEATURES, size, generator=generator).t()
    elif layout == "sliced":
        x = torch.randn(size, 2 * FEATURES, generator=generator)[:, ::2]
    else:
        x = torch.randn(size, FEATURES, generator=generator)
    x = x.to(next(world.net.parameters()).dtype)
    return x.requires_grad_() if layout == "leaf" else x


def parameter(draw, world):
    """One of the parameters, with its owner and name."""
    names = [name for name, _ in world.net.named_parameters()]
    name = names[draw.randrange(len(names))]
    owner, _, last = name.rpartition(".")
    module = world.net.get_submodule(owner)
    return module, last, getattr(module, last)


# --- what computes ---------------------------------------------------------------------------


@action(8)
def train_by_model(world, draw):
    x = batch(draw, world)
    world.optimizer.zero_grad(set_to_none=draw.random() < 0.5)
    output = world.call(x)
    loss = ((output - world.target) ** 2).mean()
    loss.backward()
    world.optimizer.step()
    return output, loss, x.grad


@action(4)
def train_by_loss(world, draw):
    x = batch(draw, world)
    loss = world.loss(x)
    loss.backward()
    if draw.random() < 0.5:
        nn.utils.clip_grad_norm_(world.net.parameters(), 0.5)
    world.optimizer.step()
    return loss, x.grad


@action(6)
def train_by_step(world, draw):
    return world.step(batch(draw, world))


@action(4)
def train_by_forces(world, draw):
    x = batch(draw, world)
    energy, force = world.forces(x)
    (energy + force.mean()).backward()
    world.optimizer.step()
    return energy, force


@action(3)
def gradient_penalty(world, draw):
    x = batch(draw, world).detach().requires_grad_()
    output = world.call(x)
    (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    (slope**2).sum().backward()
    return output, slope, x.grad


@action(3)
def evaluate(world, draw):
    modes = [torch.no_grad, torch.inference_mode, contextlib.nullcontext]
    with modes[draw.randrange(3)]():
        return world.call(batch(draw, world))


@action(2)
def two_backwards(world, draw):
    output = world.call(batch(draw, world))
    output.sum().backward(retain_graph=draw.random() < 0.6)
    output.sin().sum().backward()
    return output


@action(2)
def two_forwards(world, draw):
    """Two calls before one backward, which goes the other way round."""
    first, second = world.call(batch(draw, world)), world.call(batch(draw, world))
    (second.sum() * 2 + first.sum()).backward()
    return first, second


@action(2)
def backward_later(world, draw):
    """The backward of an output that an earlier action left."""
    held, world.held = world.held, None
    if held is None:
        world.held = world.call(batch(draw, world))
        return None
    held.sum().backward()
    return held


@action(2)
def write_to_the_output(world, draw):
    output = world.call(batch(draw, world))
    with torch.no_grad() if draw.random() < 0.5 else contextlib.nullcontext():
        output.mul_(3)
    output.sum().backward()
    return output


@action(2)
def write_to_the_input(world, draw):
    x = batch(draw, world).detach()
    output = world.call(x)
    x.zero_()
    output.sum().backward()
    return output


@action()
def write_to_what_is_kept(world, draw):
    output = world.call(batch(draw, world))
    if isinstance(world.net.kept, torch.Tensor):
        with torch.no_grad():
            world.net.kept.add_(1)
    output.sum().backward()
    return output, world.net.kept


@action()
def functional(world, draw):
    named = dict(world.net.named_parameters())
    scaled = {name: (value * 0.5).detach().requires_grad_() for name, value in named.items()}
    output = torch.func.functional_call(world.call, scaled, (batch(draw, world),))
    grads = torch.autograd.grad(output.sum(), list(scaled.values()), allow_unused=True)
    return output, grads


@action()
def forward_mode(world, draw):
    x = batch(draw, world).detach()
    return torch.func.jvp(world.call, (x,), (torch.ones_like(x),))


@action()
def gradient_by_func(world, draw):
    return torch.func.grad(lambda x: world.call(x).sum())(batch(draw, world).detach())


@action()
def checkpointed(world, draw):
    x = batch(draw, world).detach().requires_grad_()
    output = checkpoint(world.call, x, use_reentrant=False)
    output.sum().backward()
    return output, x.grad


@action()
def a_copy(world, draw):
    other = copy.deepcopy(world.call)
    output = other(batch(draw, world))
    output.sum().backward()
    return output, [each.grad for each in other.parameters()]


@action(2)
def with_arguments(world, draw):
    shift = draw.choice([0.0, 0.5, 1, torch.tensor(0.25), None])
    given = {} if shift is None else {"shift": shift}
    result = world.call(batch(draw, world), whole=draw.random() < 0.7, **given)
    logits = result if isinstance(result, torch.Tensor) else result.logits
    logits.sum().backward()
    return result


@action(2)
def two_at_a_time(world, draw):
    """A gradient of one compiled function is added to another's."""
    x = batch(draw, world)
    loss = world.loss(x) + world.call(x).mean()
    loss.backward()
    return loss


@action()
def by_vmap(world, draw):
    world.net.eval()
    x = torch.stack([batch(draw, world).detach()[:1] for _ in range(2)])
    return torch.func.vmap(world.call)(x)


@action()
def jacobian(world, draw):
    return torch.func.jacrev(world.call)(batch(draw, world).detach()[:2])


# --- what changes -----------------------------------------------------------------------------


@action(2)
def mode(world, draw):
    world.net.train(draw.random() < 0.5)


@action(2)
def mode_of_a_part(world, draw):
    part = draw.choice(["norm", "drop"])
    getattr(world.net, part).train(draw.random() < 0.5)


@action(2)
def freeze(world, draw):
    parameter(draw, world)[2].requires_grad_(draw.random() < 0.5)


@action()
def replace_data(world, draw):
    _, _, value = parameter(draw, world)
    value.data = value.data.flip(0).clone() if draw.random() < 0.5 else value.data * 0.9


@action()
def write_to_a_parameter(world, draw):
    with torch.no_grad():
        parameter(draw, world)[2].mul_(0.9)


@action()
def replace_a_parameter(world, draw):
    module, name, value = parameter(draw, world)
    if not parametrize.is_parametrized(world.net.blocks[0]):
        setattr(module, name, nn.Parameter(value.detach() * 0.5, value.requires_grad))


@action()
def tie(world, draw):
    blocks = world.net.blocks
    if len(blocks) > 1 and not parametrize.is_parametrized(blocks[0]):
        blocks[1].weight = blocks[0].weight


@action()
def more_blocks(world, draw):
    blocks = world.net.blocks
    if draw.random() < 0.5 and len(blocks) < 4:
        torch.manual_seed(draw.randrange(100))
        blocks.append(nn.Linear(WIDTH, WIDTH).to(next(world.net.parameters()).dtype))
    elif len(blocks) > 1:
        del blocks[len(blocks) - 1]


@action(3)
def attribute(world, draw):
    net = world.net
    kind = draw.randrange(8)
    if kind == 0:
        net.scale = draw.choice([1.5, 2.0, 3, -1.0])
    elif kind == 1:
        net.waves = not net.waves
    elif kind == 2:
        net.keeps = draw.choice(["nothing", "tensor", "detached", "list", "dict"])
    elif kind == 3:
        net.options["slope"] = draw.choice([0.5, 0.1, 1.0])
    elif kind == 4:
        net.options["power"] = draw.choice([2, 1, 3, None])
    elif kind == 5:
        net.drop.p = draw.choice([0.0, 0.3, 0.5])
    elif kind == 6:
        net.norm.momentum = draw.choice([0.1, 0.5, None])
    else:
        world.rate = draw.choice([0.5, 0.25, 2])


@action(2)
def branches(world, draw):
    world.net.branches = draw.choice(["none", "calls", "values", "mask", "item"])


@action()
def surgery(world, draw):
    net = world.net
    kind = draw.randrange(5)
    if kind == 0:
        net.activation = draw.choice([torch.tanh, torch.sigmoid, torch.nn.functional.gelu])
    elif kind == 1:
        net.drop = draw.choice([nn.Identity(), nn.Dropout(0.1)])
    elif kind == 2:
        type(net).gain = draw.choice([1.0, 2.0])
    elif kind == 3:
        torch.manual_seed(draw.randrange(100))
        dtype = next(net.parameters()).dtype
        net.last = nn.Linear(WIDTH, 2, bias=draw.random() < 0.5).to(dtype)
    else:
        net.activation = nn.PReLU(init=draw.choice([0.1, 0.3])).to(next(net.parameters()).dtype)


@action()
def fail(world, draw):
    """A call that raises, in the forward, before and after it wrote to buffers."""
    world.net.fails = draw.choice(["before", "after"])
    try:
        return world.call(batch(draw, world))
    finally:
        world.net.fails = ""


@action()
def buffers(world, draw):
    net = world.net
    kind = draw.randrange(4)
    if kind == 0:
        net.mask = torch.rand(WIDTH, generator=torch.Generator().manual_seed(draw.randrange(9)))
        net.mask = net.mask.to(next(net.parameters()).dtype)
    elif kind == 1:
        net.mask = None
    elif kind == 2:
        net.average = net.average.clone() + 1
    else:
        net.average.zero_()


@action()
def forget(world, draw):
    world.net.seen.clear()
    world.net.memory.pop("sum", None)
    world.net.kept = None
    world.held = None


@action()
def hooks(world, draw):
    kind = draw.randrange(5)
    net = world.net
    if kind == 0:
        handle = net.first.register_forward_hook(lambda module, args, output: output * 1.1)
    elif kind == 1:
        handle = net.register_forward_pre_hook(lambda module, args: (args[0] + 0.1,))
    elif kind == 2:
        handle = parameter(draw, world)[2]
        if not handle.requires_grad:
            return
        handle = handle.register_hook(lambda gradient: gradient * 2)
    elif kind == 3:
        handle = net.last.register_full_backward_hook(
            lambda module, inputs, outputs: tuple(
                each if each is None else each * 0.5 for each in inputs
            )
        )
    else:
        if world.handles:
            world.handles.pop(draw.randrange(len(world.handles))).remove()
        return
    world.handles.append(handle)


@action()
def load(world, draw):
    if draw.random() < 0.5:
        world.snapshot = copy.deepcopy(world.net.state_dict())
    else:
        world.net.load_state_dict(world.snapshot, assign=draw.random() < 0.3)


@action()
def precision(world, draw):
    world.net.to(draw.choice([torch.float64, torch.float32]))


@action()
def another_optimizer(world, draw):
    kind = OPTIMIZERS[draw.choice(list(OPTIMIZERS))]
    world.optimizer = kind(list(world.net.parameters()))


@action(2)
def optimizer_settings(world, draw):
    group = world.optimizer.param_groups[0]
    kind = draw.randrange(4)
    if kind == 0:
        group["lr"] = draw.choice([0.02, 0.01, 0.002])
    elif kind == 1:
        group["weight_decay"] = draw.choice([0.0, 0.1])
    elif kind == 2:
        world.optimizer.load_state_dict(copy.deepcopy(world.optimizer.state_dict()))
    else:
        world.optimizer.state.clear()


@action(2)
def gradients(world, draw):
    kind = draw.randrange(4)
    if kind == 0:
        world.optimizer.zero_grad(set_to_none=True)
    elif kind == 1:
        world.net.zero_grad(set_to_none=False)
    elif kind == 2:
        value = parameter(draw, world)[2]
        value.grad = torch.ones_like(value) if value.requires_grad else None
    else:
        for value in world.net.parameters():
            if value.grad is not None:
                value.grad.mul_(0.5)


@action()
def parametrized(world, draw):
    block = world.net.blocks[0]
    if parametrize.is_parametrized(block):
        parametrize.remove_parametrizations(block, "weight")
    elif draw.random() < 0.5:
        parametrizations.weight_norm(block)
    else:
        parametrizations.orthogonal(block, use_trivialization=False)
