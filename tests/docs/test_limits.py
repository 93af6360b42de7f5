"""The limits that the documentation lists raise as it says; one that is lifted fails here."""

import tempfile
import warnings

import pytest
import torch

import funcaot
from funcaot.errors import (
    ArtifactError,
    FuncaotError,
    MissingRuleError,
    RuleError,
    UnsupportedError,
)


class Plain(funcaot.Function):
    @staticmethod
    def forward(x):
        return x * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Nonlinear(Plain):
    generate_jvp_rule = True

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output**2 + 1


class OnceDifferentiable(Plain):
    generate_jvp_rule = True

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        return grad_output


class ReshapesItsGradient(Plain):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.unsqueeze_(0)[0]


class TwoGradients(Plain):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, grad_output


def ones(*shape):
    return torch.ones(*shape or (3,), requires_grad=False)


def compiled(function):
    return funcaot.compile(function, backend="eager")


def reading_in_a_hook():
    """The backward of a call that doesn't keep what a hook reads."""

    def function(x, number):
        y = x.sin()
        y.grad_fn.register_hook(lambda found, _: (found[0] * 2,) if number > 4 else found)
        return y * 2

    compiled(function)(torch.ones(2, requires_grad=True), torch.tensor(4)).sum().backward()


def without_values(function):
    with funcaot.config.patch(specialize_on_values=False):
        return compiled(function)(ones())


def under_jvp(function):
    return torch.func.jvp(function.apply, (ones(),), (ones(),))


def gradient(function):
    function(ones().requires_grad_()).sum().backward()


def between(function):
    """What keeps a transform from being compiled with the function."""
    return lambda *operands: function(*operands)


def write_to_the_first(x, y):
    x.add_(1)
    return x + y


def write_without_grad(x):
    with torch.no_grad():
        x.mul_(2)
    return x * 1


def write_twice(x):
    x.detach().mul_(2)
    with torch.no_grad():
        x.mul_(2)
    return x * 1


def pushed(function):
    return lambda x: torch.func.jvp(lambda x: function(x * 1), (x,), (x.cos(),))[1]


def gradient_of_tangents(function):
    return torch.func.grad(lambda x: pushed(function)(x).sum())


def rows():
    storage = ones(2, 4)
    return storage[:, :3], storage[:, 1:]


def write_to_turned_bytes(x):
    turned = x.view(torch.int16).t()
    return turned.masked_fill_(turned > 0, 1)


def grow_the_first(x, y):
    return x.resize_(9).zero_().sum() + y.sum()


def give_back_what_it_had(x, y):
    before = x.detach()
    with torch.no_grad():
        x.set_(y.detach())
    return before


def assign_data(x):
    x.data = (x * 2).double()
    return x


def scripted_fork():
    def halved(x):
        return x / 2

    def forked(x):
        return torch.jit.wait(torch.jit.fork(halved, x))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        made = torch.jit.script(forked)
    del made._torchdynamo_inline
    return made


def changed_after_call():
    kept = {"scale": 2.0}

    def function(x):
        return x.sin() * kept["scale"] if kept["scale"] > 1 else x.cos()

    with tempfile.TemporaryDirectory() as folder:
        compiled = funcaot.compile(function, backend="eager")
        compiled(torch.ones(3, requires_grad=True))
        compiled.save(f"{folder}/programs")
        again = funcaot.compile(function, backend="eager", artifacts=f"{folder}/programs")
        y = again(torch.ones(3, requires_grad=True))
        kept["scale"] = 0.0
        y.sum().backward()


class FillsGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        ctx.save_for_backward(x)
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            result = ctx.layer(x)
        result.backward(grad_output)
        return x.grad, None


def step_with_a_reversible_network():
    layer, first = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def step(x):
        FillsGradients.apply(first(x), layer).sum().backward()

    compiled(step)(torch.ones(2, 3))


def compressed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.eye(3).to_sparse_csr()


def exported(function, dynamic_shapes=None):
    with tempfile.TemporaryDirectory() as folder:
        funcaot.export(function, (ones(),), path=f"{folder}/f.pt2", dynamic_shapes=dynamic_shapes)


def sets_storage(x, y):
    with torch.no_grad():
        x.set_(y)
    return x * 2


@torch.library.custom_op("funcaot_limits::doubled_in_place", mutates_args=("x",))
def doubled_in_place(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x + 1


doubled_in_place.register_fake(torch.empty_like)


def with_a_triton_kernel(x):
    torch._higher_order_ops.triton_kernel_wrap.triton_kernel_wrapper_mutation(
        kernel_idx=0,
        constant_args_idx=0,
        grid=[(1, 1, 1)],
        tma_descriptor_metadata={},
        kwargs={"x": x},
    )
    return x


LIMITS = {
    "storage of a leaf that requires grad": (
        UnsupportedError,
        lambda: compiled(sets_storage)(ones().requires_grad_(), ones()),
    ),
    "a backward that fills gradients": (UnsupportedError, step_with_a_reversible_network),
    "a compressed sparse leaf": (
        UnsupportedError,
        lambda: compiled(lambda a, b: a @ b)(compressed().requires_grad_(), torch.ones(3, 3)),
    ),
    "a compressed sparse result": (
        UnsupportedError,
        lambda: compiled(lambda x: x.to_sparse_csr().to_dense())(torch.eye(3).requires_grad_()),
    ),
    "detached memory under jvp": (UnsupportedError, lambda: pushed(compiled(write_twice))(ones())),
    "data at several levels": (
        UnsupportedError,
        lambda: gradient_of_tangents(compiled(lambda x: x.data * x))(ones()),
    ),
    "no_grad under reverse over forward": (
        UnsupportedError,
        lambda: gradient_of_tangents(compiled(write_without_grad))(ones()),
    ),
    "strides under vmap": (
        UnsupportedError,
        lambda: torch.func.vmap(compiled(lambda x: x.as_strided_((3, 2), (1, 3))))(ones(4, 2, 3)),
    ),
    "no rule for vmap": (MissingRuleError, lambda: torch.func.vmap(Plain.apply)(ones(2, 3))),
    "no rule for jvp": (MissingRuleError, lambda: under_jvp(Plain)),
    "not linear": (RuleError, lambda: under_jvp(Nonlinear)),
    "once differentiable": (MissingRuleError, lambda: under_jvp(OnceDifferentiable)),
    "wrong number": (RuleError, lambda: gradient(TwoGradients.apply)),
    "a value in a hook": (UnsupportedError, lambda: reading_in_a_hook()),
    "a handle": (
        UnsupportedError,
        lambda: compiled(lambda x: (x * 2, x.register_hook(torch.sin)))(ones().requires_grad_()),
    ),
    "a value": (UnsupportedError, lambda: without_values(lambda x: x * x.sum().item())),
    "a branch": (UnsupportedError, lambda: without_values(lambda x: x if x.sum() > 0 else -x)),
    "a batched branch": (
        UnsupportedError,
        lambda: torch.func.vmap(compiled(lambda x: x if x.sum() > 0 else -x))(ones(2, 3)),
    ),
    "unhashable": (UnsupportedError, lambda: compiled(lambda x, part: x)(ones(), slice(ones()))),
    "scripted": (
        UnsupportedError,
        lambda: compiled(scripted_fork())(ones(2, 3)),
    ),
    "data": (UnsupportedError, lambda: compiled(assign_data)(ones(2, 3))),
    "expanded": (UnsupportedError, lambda: compiled(lambda x: x.add_(1))(ones(1).expand(3))),
    "turned view of another dtype": (
        UnsupportedError,
        lambda: compiled(write_to_turned_bytes)(ones(2, 3)),
    ),
    "resized and a leaf": (
        UnsupportedError,
        lambda: compiled(lambda x: x.resize_(3).requires_grad_() * 2)(ones(6)),
    ),
    "expanded out": (
        UnsupportedError,
        lambda: compiled(lambda x: torch.add(x, 1, out=x))(ones(1).expand(3)),
    ),
    "more elements of a detached one": (
        UnsupportedError,
        lambda: compiled(lambda x: x.detach().resize_(9).zero_() + x.sum())(ones(6)),
    ),
    "memory from before set_": (
        UnsupportedError,
        lambda: compiled(give_back_what_it_had)(ones(3), ones(3)),
    ),
    "another shape of what requires grad": (
        UnsupportedError,
        lambda: compiled(lambda x: torch.eye(3, out=x * 2))(ones(3).requires_grad_()),
    ),
    "a view that changes its shape after a place was named": (
        UnsupportedError,
        lambda: compiled(lambda x: (x.as_strided((2,), (1,), 1), x[:2].unsqueeze_(0))[0])(
            ones(4).requires_grad_() * 1
        ),
    ),
    "the base of a view": (
        UnsupportedError,
        lambda: compiled(lambda x: x._base.sum())(ones(4)[:2]),
    ),
    "a new leaf of what has a history": (
        UnsupportedError,
        lambda: compiled(lambda x: x.detach_().requires_grad_())(ones(4).requires_grad_() * 1),
    ),
    "more elements of shared memory": (
        UnsupportedError,
        lambda: compiled(grow_the_first)(*(x.detach() for x in [ones(6)] * 2)),
    ),
    "overlap": (
        UnsupportedError,
        lambda: torch.func.vmap(between(compiled(write_to_the_first)), (0, None))(*rows()),
    ),
    "grad_output": (UnsupportedError, lambda: gradient(compiled(ReshapesItsGradient.apply))),
    "partition": (
        FuncaotError,
        lambda: funcaot.aot_function(torch.sin, lambda g, _: g, partition_fn=min),
    ),
    "an effect of an artifact": (UnsupportedError, lambda: exported(lambda x: x.add_(1))),
    "a value in an artifact": (UnsupportedError, lambda: exported(lambda x: x * x.sum().item())),
    "a random artifact": (UnsupportedError, lambda: exported(torch.rand_like)),
    "an artifact that computes nothing": (UnsupportedError, lambda: exported(lambda x: x)),
    "a size of 1 in an artifact": (
        UnsupportedError,
        lambda: exported(torch.sin, ({0: torch.export.Dim("n", min=1)},)),
    ),
    "an artifact for one size": (
        UnsupportedError,
        lambda: exported(
            lambda x: x * len(range(x.shape[0])), ({0: torch.export.Dim("n", min=2, max=64)},)
        ),
    ),
    "a derivative of a changed function, not in its file": (UnsupportedError, changed_after_call),
    "forward mode of an op that writes": (
        MissingRuleError,
        lambda: compiled(lambda x: torch.func.jvp(doubled_in_place, (x.clone(),), (x,)))(ones()),
    ),
    "a Triton kernel": (UnsupportedError, lambda: compiled(with_a_triton_kernel)(ones())),
    "no artifact": (ArtifactError, lambda: funcaot.load("missing.pt2")),
    "backend": (FuncaotError, lambda: funcaot.compile(torch.sin, backend="no such")),
}


@pytest.mark.parametrize(("error", "run"), LIMITS.values(), ids=LIMITS)
def test_the_limit_is_an_error_with_a_remedy(error, run):
    with pytest.raises(error, match="Instead: ") as caught:
        run()
    assert type(caught.value) is error
