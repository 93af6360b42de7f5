"""``ctc_loss`` of a batch of batches, where no example's lengths are known."""

import pytest
import torch
from torch import func
from torch.nn import functional as F
from torch.testing import assert_close

import funcaot
from tests.hostile import COMPILER

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
STEPS, LENGTHS = torch.tensor([5, 4]), torch.tensor([3, 2])


def example(options, log_probs, targets):
    return F.ctc_loss(log_probs, targets, STEPS, LENGTHS, **options)


def given(rows=5):
    made = torch.Generator().manual_seed(0)
    log_probs = torch.randn(3, rows, 2, 4, generator=made).log_softmax(-1)
    return log_probs, torch.randint(1, 4, (3, 2, 3), generator=made)


@pytest.mark.parametrize(
    "options",
    [{}, {"reduction": "sum"}, {"reduction": "none"}, {"zero_infinity": True}, {"blank": 0}],
    ids=str,
)
def test_as_in_eager(options):
    log_probs, targets = given()

    def loss(log_probs, targets):
        return example(options, log_probs, targets)

    for dims in ((0, 0), (0, None)):
        labels = targets if dims[1] == 0 else targets[0]
        expected = func.vmap(loss, dims)(log_probs, labels)
        assert_close(
            funcaot.compile(func.vmap(loss, dims), backend=COMPILER)(log_probs, labels), expected
        )


def test_gradients_of_each_example():
    log_probs, targets = given()

    def loss(log_probs, targets):
        return example({}, log_probs, targets)

    compiled = funcaot.compile(func.vmap(func.grad(loss)), backend=COMPILER)
    each = zip(log_probs, targets, strict=True)
    assert_close(compiled(log_probs, targets), torch.stack([func.grad(loss)(*one) for one in each]))


def test_what_has_no_alignment():
    log_probs, targets = given()
    repeated = torch.ones_like(targets)

    def loss(log_probs, targets):
        return F.ctc_loss(log_probs, targets, torch.tensor([3, 3]), LENGTHS, reduction="none")

    found = funcaot.compile(func.vmap(loss), backend=COMPILER)(log_probs, repeated)
    assert_close(found, func.vmap(loss)(log_probs, repeated))
