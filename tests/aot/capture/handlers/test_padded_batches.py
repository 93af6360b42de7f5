"""``nn.TransformerEncoder`` packs a batch with padding into a nested tensor, where it may."""

import warnings

import pytest
import torch
from torch import nn

import funcaot
from funcaot.errors import CaptureWarning, UnsupportedError

BEGINNING = torch.tensor([[False, False, True], [False, True, True]])
SCATTERED = torch.tensor([[False, False, True], [True, False, True]])


def encoder(norm=None):
    layer = nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.TransformerEncoder(layer, 1, norm=norm).eval()


def agree(compiled, module, *, packs, padding=BEGINNING, **given):
    x = torch.randn(2, 3, 4)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = compiled(x, src_key_padding_mask=padding, **given)
    wanted = module(x, src_key_padding_mask=padding, **given)
    torch.testing.assert_close(found, wanted)
    told = [each for each in seen if issubclass(each.category, CaptureWarning)]
    assert len(told) == packs, [str(each.message) for each in told]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padding_is_zeros_as_in_eager():
    module = encoder(nn.LayerNorm(4))
    compiled = funcaot.compile(module, backend="eager")
    with torch.no_grad():
        agree(compiled, module, packs=0, padding=SCATTERED)
        agree(compiled, module, packs=1)  # the same signature, with another answer
        agree(compiled, module, packs=0)  # told once


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_without_parameters_that_need_gradients():
    module = encoder().requires_grad_(False)
    agree(funcaot.compile(module, backend="eager"), module, packs=1)


@pytest.mark.long
def test_what_keeps_it_from_packing_is_compiled():
    module = encoder()
    compiled = funcaot.compile(module, backend="eager", fullgraph=True)
    agree(compiled, module, packs=0)
    with torch.no_grad():
        agree(compiled, module, packs=0, mask=torch.zeros(3, 3, dtype=torch.bool))
    assert funcaot.report(compiled).cache_misses == 2


def test_it_is_refused_where_all_is_to_be_compiled():
    compiled = funcaot.compile(encoder(), backend="eager", fullgraph=True)
    with torch.no_grad(), pytest.raises(UnsupportedError, match="enable_nested_tensor=False"):
        compiled(torch.randn(2, 3, 4), src_key_padding_mask=BEGINNING)
