"""Low-rank adapters against the sum written out, and merged into a plain state dict."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from medclip_debias.models.lora import add_adapters, merged_state


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.ModuleDict({"query": nn.Linear(6, 6), "key": nn.Linear(6, 4)})
        self.mlp = nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3)

    def forward(self, x):
        return self.norm(self.mlp(self.attention["key"](self.attention["query"](x))))


@pytest.mark.parametrize(("targets", "count"), [("attention", 2), ("linear", 3)])
def test_an_adapter_adds_its_low_rank_sum_and_nothing_at_first(targets, count):
    torch.manual_seed(0)
    layer = Layer().double()
    x = torch.randn(5, 6, dtype=torch.float64)
    before, names = layer(x), set(layer.state_dict())
    plain = copy.deepcopy(layer)
    new = add_adapters([layer.requires_grad_(False)], 4, 6.0, targets)
    assert len(new) == 2 * count
    assert {p for p in layer.parameters() if p.requires_grad} == set(new)
    assert torch.equal(layer(x), before)
    for parameter in new:
        nn.init.normal_(parameter)
    down, up = new[0], new[1]  # of the query
    adapted = plain.attention["query"].weight + 6.0 / 4 * up @ down
    torch.testing.assert_close(layer.attention["query"].weight, adapted)
    assert torch.linalg.matrix_rank(adapted - plain.attention["query"].weight) == 4
    merged = merged_state(layer)
    assert set(merged) == names
    plain.load_state_dict(merged)
    assert not torch.allclose(plain(x), before)
    torch.testing.assert_close(plain(x), layer(x))


def test_the_rank_is_at_most_the_smaller_side_of_a_matrix():
    layer = Layer()
    new = add_adapters([layer], 100, 8.0, "linear")
    assert [p.shape[0] for p in new[::2]] == [6, 4, 3]


def test_a_network_without_linear_maps_gets_no_adapter():
    assert add_adapters([nn.Conv2d(1, 1, 3)], 4, 8.0, "linear") == []


@pytest.mark.parametrize("targets", ["attention", "linear"])
@torch.no_grad()
def test_attention_of_torch_is_adapted_by_its_stacked_matrix_and_its_output(targets):
    """CLIP's blocks: queries, keys and values lie in one matrix that is no linear layer."""
    torch.manual_seed(0)
    block = nn.ModuleDict({"attn": nn.MultiheadAttention(8, 2, batch_first=True)}).double()
    attn, plain = block["attn"], copy.deepcopy(block)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    before = attn(x, x, x)[0]
    new = add_adapters([block.requires_grad_(False)], 2, 4.0, targets)
    assert [p.shape for p in new] == [(2, 8), (24, 2), (2, 8), (8, 2)]
    torch.testing.assert_close(attn(x, x, x)[0], before)
    for parameter in new:
        nn.init.normal_(parameter)
    merged = merged_state(block)
    stacked = plain["attn"].in_proj_weight + 2 * new[1] @ new[0]
    torch.testing.assert_close(merged["attn.in_proj_weight"], stacked)
    plain.load_state_dict(merged)
    torch.testing.assert_close(plain["attn"](x, x, x)[0], attn(x, x, x)[0])
    assert not torch.allclose(attn(x, x, x)[0], before)
