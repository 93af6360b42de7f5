"""Flex attention in compiled functions: torch's own operator, and a formula for later orders."""

import math

import pytest
import torch
from torch.nn.attention import flex_attention as module
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import funcaot
from tests.derivatives.attention import ASKED, leaves

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")
BATCH, HEADS, ROWS, COLUMNS, FEATURES = 2, 4, 5, 7, 4
DOCUMENTS = torch.tensor([0, 0, 1, 1, 1, 2, 2])


def drawn(*shape, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def operands(dtype=torch.float64, *, heads=HEADS, batch=BATCH, columns=COLUMNS):
    return (
        drawn(BATCH, HEADS, ROWS, FEATURES, seed=1, dtype=dtype),
        drawn(batch, heads, columns, FEATURES, seed=2, dtype=dtype),
        drawn(batch, heads, columns, FEATURES, seed=3, dtype=dtype),
    )


SLOPES = drawn(HEADS, seed=4)
TABLE = drawn(BATCH, HEADS, ROWS + COLUMNS, seed=5)


def biased(score, b, h, i, j):
    """Indices of every kind; tensors that it closes over."""
    return score * SLOPES.to(score.dtype)[h] + TABLE[b, h, i - j + COLUMNS].to(score.dtype)


def biased_at_once(scores, b, h, i, j):
    return scores * SLOPES[h].to(scores.dtype) + TABLE[b, h, i - j + COLUMNS].to(scores.dtype)


def capped(score, b, h, i, j):
    return 2 * torch.tanh(score / 2)


def hidden(score, b, h, i, j):
    """The third row sees nothing."""
    return torch.where(i == 2, -math.inf, score)


def causal(b, h, i, j):
    return i >= j


def of_documents(b, h, i, j):
    return DOCUMENTS[i] == DOCUMENTS[j]


def mask_of(sees, rows=ROWS, columns=COLUMNS):
    return create_block_mask(sees, None, None, rows, columns, device="cpu")


# The operands, the keywords of the call, and its scores' change for all indices at once.
KINDS = {
    "plain": (operands(), {}, None),
    "scale": (operands(), {"scale": 0.3}, None),
    "capped": (operands(), {"score_mod": capped}, capped),
    "biased": (operands(), {"score_mod": biased}, biased_at_once),
    "hidden": (operands(), {"score_mod": hidden}, hidden),
    "causal": (operands(), {"block_mask": mask_of(causal)}, None),
    "documents": (
        operands(),
        {"block_mask": mask_of(of_documents), "score_mod": capped},
        capped,
    ),
    "grouped": (operands(heads=2), {"enable_gqa": True, "score_mod": biased}, biased_at_once),
    "one_of_a_batch": (
        operands(batch=1),
        {"block_mask": create_block_mask(causal, BATCH, None, ROWS, COLUMNS, device="cpu")},
        None,
    ),
}


def attention(keywords):
    def run(query, key, value):
        return flex_attention(query, key, value, **keywords)

    return run


def written_out(keywords, change):
    """The same, for all scores at once, where no row is infinite."""

    def run(query, key, value):
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
        scores = query @ key.mT * keywords.get("scale", 1 / math.sqrt(FEATURES))
        shape = (query.shape[0], HEADS, ROWS, scores.shape[-1])
        places = torch.meshgrid(*(torch.arange(n) for n in shape), indexing="ij")
        if change is not None:
            scores = change(scores, *places)
        if "block_mask" in keywords:
            sees = keywords["block_mask"].mask_mod
            scores = torch.where(sees(*places), scores, -math.inf)
        blind = (scores == -math.inf).all(-1, keepdim=True)
        return torch.where(blind, 0, torch.where(blind, 0, scores).softmax(-1)) @ value

    return run


def by_the_operator(asked, function, tensors):
    """Torch's operator on the CPU has the gradients that the function in front of it refuses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_validate_device", lambda query, key, value: None)
        return asked(function, tensors)


def first_order(function, tensors):
    inputs = leaves(tensors)
    output = function(*inputs)
    grads = torch.autograd.grad((output * 1.3).sin().sum(), inputs)
    return [output.detach(), *grads]


def agree(actual, wanted, tolerance=1e-9):
    for one, other in zip(actual, wanted, strict=True):
        if not isinstance(one, torch.Tensor):
            agree(one, other, tolerance)
            continue
        assert one.dtype is other.dtype
        scale = 1 + other.abs().max()
        torch.testing.assert_close(one / scale, other / scale, rtol=0, atol=tolerance)


def listed(tree):
    return [tree] if isinstance(tree, torch.Tensor) else [x for part in tree for x in listed(part)]


@pytest.mark.parametrize("kind", KINDS)
def test_first_order_is_that_of_the_operator(kind):
    tensors, keywords, _ = KINDS[kind]
    wanted = by_the_operator(first_order, attention(keywords), tensors)
    compiled = funcaot.compile(attention(keywords), backend="eager")
    for _ in range(2):
        found = first_order(compiled, tensors)
        agree(found, wanted)
        assert found[0].stride() == wanted[0].stride()


def later_orders():
    fast = {
        ("plain", "jvp"), ("biased", "second"), ("hidden", "forward_over_reverse"),
        ("documents", "third"), ("grouped", "vmap_of_grad"), ("causal", "batched_gradients"),
    }  # fmt: skip
    for kind in KINDS:
        for asked in ASKED:
            marks = [] if (kind, asked) in fast else [pytest.mark.slow, pytest.mark.long]
            yield pytest.param(kind, asked, marks=marks, id=f"{kind}-{asked}")


@pytest.mark.parametrize(("kind", "asked"), list(later_orders()))
def test_any_order(kind, asked):
    tensors, keywords, change = KINDS[kind]
    found = ASKED[asked](funcaot.compile(attention(keywords), backend="eager"), tensors)
    wanted = ASKED[asked](written_out(keywords, change), tensors)
    agree(listed(found), listed(wanted), 1e-8)


def with_tensors_of_the_call(query, key, value, slopes, table):
    """What the scores are changed by has gradients, at places that occur many times."""

    def changed(score, b, h, i, j):
        return score * slopes[h] + table[h, i - j + COLUMNS]

    output, aux = flex_attention(
        query, key, value, score_mod=changed, return_aux=AuxRequest(lse=True)
    )
    return output * aux.lse.unsqueeze(-1)


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_of_what_a_score_is_changed_by(dtype, backend):
    tensors = [*operands(dtype), SLOPES.to(dtype), TABLE[0].to(dtype)]
    wanted = by_the_operator(first_order, with_tensors_of_the_call, tensors)
    compiled = funcaot.compile(with_tensors_of_the_call, backend=backend)
    for _ in range(2):
        agree(first_order(compiled, tensors), wanted, 1e-9 if dtype is torch.float64 else 1e-5)


def everything(query, key, value, slopes, table):
    """A mask, shared heads, statistics, and scores changed by tensors of the call."""

    def changed(score, b, h, i, j):
        return score * slopes[h] + table[h, i - j + COLUMNS]

    output, aux = flex_attention(
        query,
        key,
        value,
        score_mod=changed,
        block_mask=mask_of(causal),
        scale=0.4,
        enable_gqa=True,
        return_aux=AuxRequest(lse=True),
    )
    return output * aux.lse.unsqueeze(-1)


def everything_written_out(query, key, value, slopes, table):
    key, value = (x.repeat_interleave(HEADS // x.shape[1], 1) for x in (key, value))
    places = torch.meshgrid(*(torch.arange(n) for n in (HEADS, ROWS, COLUMNS)), indexing="ij")
    head, row, column = places
    scores = query @ key.mT * 0.4 * slopes[head] + table[head, row - column + COLUMNS]
    scores = scores.masked_fill(column > row, -math.inf)
    return scores.softmax(-1) @ value * scores.logsumexp(-1, keepdim=True)


@pytest.mark.parametrize("how", ["compiled", "installed"])
@pytest.mark.parametrize("asked", [
    asked if asked in ("second", "forward_over_reverse", "vmap_of_grad")
    else pytest.param(asked, marks=[pytest.mark.slow, pytest.mark.long])
    for asked in ASKED if asked != "vmap"  # which takes three operands
])  # fmt: skip
def test_any_order_by_what_a_score_is_changed_by(asked, how):
    tensors = (*operands(heads=2), SLOPES, TABLE[0])
    wanted = ASKED[asked](everything_written_out, tensors)
    if how == "compiled":
        found = ASKED[asked](funcaot.compile(everything, backend="eager"), tensors)
    else:
        with funcaot.install():
            found = ASKED[asked](everything, tensors)
    agree(listed(found), listed(wanted), 1e-8)


class Reader(torch.nn.Module):
    """A layer that holds its mask, and tables that learn."""

    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(FEATURES, 3 * FEATURES, dtype=torch.float64)
        self.slopes = torch.nn.Parameter(SLOPES[:2].clone())
        self.block_mask = mask_of(causal, COLUMNS)

    def forward(self, x):
        query, key, value = self.project(x).chunk(3, -1)
        return flex_attention(
            query,
            key,
            value,
            score_mod=lambda score, b, h, i, j: score - self.slopes[h] * (i - j),
            block_mask=self.block_mask,
        )


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo's, in eager
def test_a_layer_in_training():
    torch.manual_seed(0)
    layer = Reader()
    x = drawn(2, 2, COLUMNS, FEATURES, seed=9)
    compiled = funcaot.compile(layer, backend="eager")
    for step in range(3):
        if step == 2:
            layer.block_mask = mask_of(of_documents, COLUMNS)
        found = torch.autograd.grad(compiled(x).sin().sum(), list(layer.parameters()))
        wanted = by_the_operator(
            lambda function, _: torch.autograd.grad(
                function(x).sin().sum(), list(layer.parameters())
            ),
            layer,
            (),
        )
        agree(found, wanted)


def test_masks_that_are_given():
    """A mask is an argument, and what it is made of a tensor of the call."""

    def run(query, key, value, documents, block_mask=None):
        made = create_block_mask(
            lambda b, h, i, j: documents[i] == documents[j], 1, 1, ROWS, COLUMNS, device="cpu"
        )
        found = flex_attention(query, key, value, block_mask=made)
        return found + flex_attention(query, key, value, block_mask=block_mask)

    compiled = funcaot.compile(run, backend="eager")
    for documents in (DOCUMENTS, DOCUMENTS.flip(0), DOCUMENTS * 0):
        for sees in (causal, of_documents):
            given = (*operands(), documents, mask_of(sees))
            torch.testing.assert_close(compiled(*given), run(*given))


def test_open_sizes_and_layouts():
    compiled = funcaot.compile(attention({"score_mod": capped}), backend="eager", dynamic=True)
    for rows in (3, 6, 5):
        tensors = [drawn(2, rows, 2, FEATURES, seed=i).transpose(1, 2) for i in range(3)]
        for _ in range(2):
            found = first_order(compiled, tensors)
            wanted = by_the_operator(first_order, attention({"score_mod": capped}), tensors)
            agree(found, wanted)
            assert found[0].stride() == wanted[0].stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast(dtype):
    tensors = operands(dtype)

    def run(query, key, value):
        with torch.autocast("cpu", torch.bfloat16):
            return flex_attention(query, key, value, score_mod=biased)

    wanted = by_the_operator(first_order, run, tensors)
    found = first_order(funcaot.compile(run, backend="eager"), tensors)
    agree(found, wanted, 2e-2 if dtype is torch.float32 else 1e-9)


def test_bfloat16():
    tensors = operands(torch.bfloat16)
    wanted = by_the_operator(first_order, attention({"score_mod": biased}), tensors)
    agree(first_order(funcaot.compile(attention({"score_mod": biased})), tensors), wanted, 3e-2)


def test_torch_compile_of_it_inside():
    inner = torch.compile(flex_attention)
    tensors = operands()
    compiled = funcaot.compile(lambda *t: inner(*t, score_mod=capped), backend="eager")
    wanted = by_the_operator(first_order, attention({"score_mod": capped}), tensors)
    agree(first_order(compiled, tensors), wanted)


def test_errors_are_torch_s():
    query, key, value = operands()
    for run in (
        lambda: funcaot.compile(attention({}), backend="eager")(query, key[:, :2], value[:, :2]),
        lambda: flex_attention(query, key[:, :2], value[:, :2]),
    ):
        with pytest.raises(ValueError, match="same number of heads"):
            run()
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(query.requires_grad_(), key, value)
