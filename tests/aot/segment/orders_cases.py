"""Small programs with odd rules, shared by the tests of orders and transforms."""

import torch
from torch import nn

import funcaot


class Third(torch.autograd.Function):
    """Cosine, with minus five times its argument as derivative."""

    @staticmethod
    def forward(x):
        return x.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * -5

    generate_vmap_rule = True


class Second(torch.autograd.Function):
    """Square, whose derivative is thrice the cosine (of odd derivative) of its argument."""

    @staticmethod
    def forward(x):
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * Third.apply(x)

    generate_vmap_rule = True


class First(torch.autograd.Function):
    """Sine, whose derivative is the square with the odd derivative."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * Second.apply(x)

    generate_vmap_rule = True


class OldStyle(torch.autograd.Function):
    """The exponential by ``forward(ctx, ...)``; its derivative is doubled."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y * 2


class KeptResult(torch.autograd.Function):
    """The exponential, kept by its result: with setup_context, double backward goes through it."""

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y

    generate_vmap_rule = True


def mlp_like(x, w):
    return ((x @ w).tanh() @ w.t()).softmax(-1) * x


def with_constants(x, w):
    y = x * w.sum(0)
    return (y * torch.arange(4, dtype=x.dtype)).logsumexp(-1) + y.detach().sum(-1)


def no_grad_region(x, w):
    with torch.no_grad():
        scale = (x * x).mean()
    return (x * scale) @ w


def in_place(x, w):
    y = (x @ w).sin()
    y.mul_(x[:, :4]).add_(1)
    y[:, 1:3].pow_(2)
    return y


def normed(x, w):
    return torch.nn.functional.layer_norm(x @ w, (4,)) ** 2


def normed_written_out(x, w):
    return written_out(x @ w, 1e-5) ** 2


def written_out(x, eps):
    """Layer norm in ops that torch differentiates rightly three times, which its own isn't."""
    centered = x - x.mean(-1, keepdim=True)
    return centered * ((centered * centered).mean(-1, keepdim=True) + eps).rsqrt()


def convolved(x, w):
    image = x.reshape(1, 1, *x.shape)
    kernel = w[None, None, :2, :2]
    return torch.nn.functional.conv2d(image, kernel, padding=1).sigmoid()


def indexed(x, w):
    return x[:, torch.tensor([0, 2, 1])] @ w[:3] + torch.where(x > 0, x, x**3)


def odd_rules(x, w):
    return First.apply(x @ w) * w[0]


def odd_rules_twice(x, w):
    return First.apply(Second.apply(x) @ w).sum() * Third.apply(w)


def kept_result(x, w):
    return KeptResult.apply(x.sin()) @ w


def reuses_function(x, w):
    y = First.apply(x)
    return First.apply(y * 0.5) @ w + y


PROGRAMS = {
    function.__name__: function
    for function in (
        mlp_like,
        with_constants,
        no_grad_region,
        in_place,
        normed,
        convolved,
        indexed,
        odd_rules,
        odd_rules_twice,
        kept_result,
        reuses_function,
    )
}


# What is right where eager isn't.
ORACLES = {**PROGRAMS, "normed": normed_written_out}


def operands(requires_grad=True):
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=requires_grad)
    w = torch.randn(4, 4, dtype=torch.float64, requires_grad=requires_grad)
    return x, w


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 5)
        self.norm = nn.LayerNorm(5)
        self.out = nn.Linear(5, 2)
        self.double()

    def forward(self, x):
        return self.out(self.norm(self.hidden(x)).tanh())


class WrittenOut(nn.LayerNorm):
    def forward(self, x):
        return written_out(x, self.eps) * self.weight + self.bias


def compiled(function, backend="eager"):
    return funcaot.compile(function, backend=backend)
