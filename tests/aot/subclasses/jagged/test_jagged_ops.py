"""Ops on jagged tensors as torch's own database of samples calls them, against eager.

Each sample is called three times, the third time with other lengths. What eager refuses has to be
refused, too.
"""

import pytest
import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import funcaot
from funcaot.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore")
SEEDS = (0, 0, 1)
ERRORS = (RuntimeError, ValueError, TypeError, AssertionError, AttributeError, UnsupportedError)
INNER = ("_values", "_offsets", "_lengths", "_min_seqlen_tensor", "_max_seqlen_tensor")
# Their samples carry an attribute of the tests' own, which no program compares.
OF_TESTS = ("unsqueeze", "_ndim")
OPS = (
    *("sum", "nn.functional.linear", "where"),
    *("all", "amax", "any", "argmax", "bmm", "chunk", "clone", "index_put", "masked_select"),
    *("matmul", "max.reduction_with_dim", "mean", "narrow", "nn.functional.embedding"),
    *("nn.functional.embedding_bag", "nn.functional.rms_norm", "prod", "select", "squeeze", "to"),
    *("unflatten", "unsqueeze", "abs", "add", "atan2", "copysign", "eq", "fmin", "clamp_min"),
    *("positive", "conj", "ceil"),
)


def name_of(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def samples(op, seed):
    torch.manual_seed(seed)
    return list(op.sample_inputs_func(op, "cpu", torch.float32, op.supports_autograd))


def tensors(value):
    return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]


def observed(function, sample):
    """Results and gradients, or the error; then which tensors inside are the arguments'."""
    given = tensors((sample.input, sample.args, sample.kwargs))
    try:
        found = tensors(function(sample.input, *sample.args, **sample.kwargs))
    except ERRORS as error:
        return error
    recorded = [each for each in found if each.requires_grad]
    wanted = [each for each in given if each.requires_grad]
    if recorded and wanted:
        plain = [each.values() if each.is_nested else each for each in recorded]
        total = sum(
            (each * torch.arange(1, each.numel() + 1).view_as(each)).sum() for each in plain
        )
        try:
            found += tensors(torch.autograd.grad(total, wanted, allow_unused=True))
        except ERRORS as error:
            found.append(error)
    return [part for each in found for part in described(each, given)]


def described(tensor, given):
    if isinstance(tensor, Exception):
        yield tensor
        return
    yield type(tensor).__name__, tensor.dtype, tensor.requires_grad, tensor.grad_fn is None
    if not tensor.is_nested:
        yield tuple(tensor.shape), tensor.stride() if tensor.numel() > 1 else None
        yield tensor.detach()
        return
    own = [getattr(each, name) for each in given if each.is_nested for name in INNER]
    for name in INNER:
        part = getattr(tensor, name)
        yield name, [part is each for each in own if each is not None]
        if part is not None:
            yield from described(part.detach(), ())


def alike(found, wanted):
    if isinstance(wanted, Exception) and not isinstance(found, list):
        # What torch fails at for reasons of its own is refused by name.
        assert isinstance(found, (type(wanted), UnsupportedError)), (found, wanted)
        return
    if isinstance(found, Exception):
        raise found
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        if isinstance(other, Exception):
            alike(one, other)
        elif isinstance(other, torch.Tensor):
            assert_close(one, other, equal_nan=True, rtol=1e-4, atol=1e-4)
        else:
            assert one == other


def is_named(error, op):
    """Whether it is refused by name what no program can have."""
    known = ("counts the elements of a jagged tensor with holes", OF_TESTS[1])
    return isinstance(error, UnsupportedError) and any(text in str(error) for text in known)


def check(op, backend, step):
    compared = 0
    every = [(samples(op, seed), samples(op, seed)) for seed in SEEDS]
    for place in range(0, len(every[0][0]), step):
        name = every[0][0][place].name
        compiled = funcaot.compile(lambda *args, **kwargs: op.op(*args, **kwargs), backend=backend)
        for ours, theirs in every:
            if place < len(ours) and ours[place].name == name:
                found, wanted = observed(compiled, ours[place]), observed(op.op, theirs[place])
                if not is_named(found, op):
                    alike(found, wanted)
                    compared += not isinstance(wanted, Exception)
    assert compared or name_of(op) == OF_TESTS[0]


def by_name(name):
    # Imported late: the database takes seconds to be made.
    from torch.testing._internal.opinfo.definitions.nested import njt_op_db

    return next(op for op in njt_op_db if name_of(op) == name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_as_eager(name):
    check(by_name(name), "eager", 9)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", OPS)
def test_on_the_default_backend(name):
    check(by_name(name), "inductor", 29)
