"""Text towers on BERT and its kin; those of CLIP's kin are in `..clip_towers`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.models.peers.clip_towers import HfClipText, OpenClipText
from medclip_debias.models.peers.images import Embedding, State, norm_or_linear, rows
from medclip_debias.models.peers.settings import PeerSettings
from medclip_debias.models.text_encoder import (
    SentenceTokenizer,
    TextEncoder,
    text_config,
    token_mean,
)
from medclip_debias.models.tower import Tower

TOKEN: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "first": lambda hidden, _: hidden[:, 0],
    "last": lambda hidden, mask: hidden[
        torch.arange(len(mask), device=mask.device), mask.sum(dim=1) - 1
    ],
    "mean": token_mean,
}
"""Of the last layer ``[T, L, D]`` and the mask ``[T, L]``, what stands for a sentence."""


class BertTower(Tower):
    """BERT and one vector of a sentence, computed as ``settings.pooling`` says."""

    layer_lists = ("bert.encoder.layer",)
    after_layers = ("bert.pooler",)
    into_space = ("head",)

    def __init__(self, peer: PeerSettings, state: State) -> None:
        from transformers import BertModel

        super().__init__()
        settings, dim = peer.text, peer.dim
        self.positions = settings.positions
        self.pooling, self.token = settings.pooling, settings.token
        config = text_config(settings.config)
        self.bert = BertModel(config, add_pooling_layer=settings.token == "pooler")
        width, bias = config.hidden_size, "affine" in settings.pooling
        self.head: nn.Module = nn.Identity()
        if settings.pooling in ("mlp", "affine_mlp"):
            hidden = rows(state, "text.head.0.weight")
            first, last = nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, dim, bias=bias)
            self.head = nn.Sequential(first, nn.GELU(), last)
        elif settings.pooling in ("linear", "affine", "three_layers"):
            self.head = nn.Linear(width, dim, bias=bias)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        several = self.pooling in ("last4", "three_layers")
        out = self.bert(input_ids=ids, attention_mask=mask, output_hidden_states=several)
        if self.pooling == "last4":
            # GLoRIA adds the pieces of a word, then takes the mean over words: but for the
            # length, which a cosine does not see, that is the sum over all tokens.
            states = torch.stack(out.hidden_states[-4:]).sum(dim=0)
            # AFLoc's vectors have their length: the mean is over all positions, most of them zero.
            count = self.positions or mask.sum(dim=1, keepdim=True)
            return (states * mask[..., None]).sum(dim=1) / count
        if self.pooling == "three_layers":
            states = torch.stack([out.hidden_states[layer] for layer in (1, 2, -1)])
            pooled = token_mean(states.mean(dim=0), mask)
        elif self.token == "pooler":
            pooled = out.pooler_output
        else:
            pooled = TOKEN[self.token](out.last_hidden_state, mask)
        return self.head(pooled)

    def words(self, ids: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        """GLoRIA's sentence, of unit length, and its words ``[T, 1 + W, D]``, padded with zeros.

        Pieces of a word and the last four layers are added up; [CLS] and [SEP] are left out.
        """
        out = self.bert(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        states = torch.stack(out.hidden_states[-4:]).sum(dim=0).float()
        whole = F.normalize((states * mask[..., None]).sum(dim=1), dim=-1)
        words = word_sums(states, places)[:, 1:-1]
        number = torch.arange(1, 1 + words.shape[1], device=ids.device)
        inside = number < places.amax(dim=1, keepdim=True)
        return torch.cat([whole[:, None], words * inside[..., None]], dim=1)


class EncoderText(Tower):
    """A sentence's [CLS] or mean token, then a layer norm (RadZero) or a linear map (CoNNS)."""

    layer_lists = ("encoder.layers",)
    into_space = ("head",)

    def __init__(self, peer: PeerSettings, state: State) -> None:
        super().__init__()
        settings = peer.text
        pooling: Any = settings.pooling
        self.encoder = TextEncoder(settings.config, pooling=pooling)
        self.after_layers = tuple(f"encoder.{place}" for place in self.encoder.after_layers)
        self.head = norm_or_linear(state, "text.head.weight", self.encoder.width, peer.dim)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.encoder(ids, mask))


class WordsText(Tower):
    """A BERT whose words count.

    CARZero's (with ``positions``) sentence, the mean of its words over all positions, and words are
    standardised, ``[T, 1 + W, D]``, padded with zeros; [CLS] and [SEP] are words too. MGCA has
    [CLS] in the space of whole images and the mean word in that of regions, ``[T, 2, D]``.
    """

    by_words: ClassVar[bool] = True

    def __init__(self, peer: PeerSettings, state: State) -> None:
        from transformers import BertModel

        super().__init__()
        settings = peer.text
        config = text_config(settings.config)
        self.positions = settings.positions
        self.bert = BertModel(config, add_pooling_layer=False)
        if not self.positions:
            width = config.hidden_size
            self.global_embed = Embedding(width, state, "text.global_embed", peer.dim)
            self.local_embed = Embedding(width, state, "text.local_embed", peer.dim)

    def forward(self, ids: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        """Token ids, mask and `word_places`, each ``[T, L]``."""
        if self.positions:
            out = self.bert(input_ids=ids, attention_mask=mask, output_hidden_states=True)
            words = word_sums(torch.stack(out.hidden_states[-4:]).sum(dim=0), places)
            whole = words.sum(dim=1, keepdim=True) / self.positions
            vectors = torch.cat([whole, words], dim=1)
            return F.layer_norm(vectors, vectors.shape[-1:]) / math.sqrt(vectors.shape[-1])
        # The authors' code gives the token types, which are all 0, where their BERT takes the
        # positions: its weights were trained with every token at position 0.
        at = torch.zeros_like(ids)
        hidden = self.bert(input_ids=ids, attention_mask=mask, position_ids=at).last_hidden_state
        words = word_sums(hidden, places)
        number = torch.arange(words.shape[1], device=ids.device)
        # Without the first, [CLS], and the last, [SEP].
        inside = (number > 0) & (number < places.amax(dim=1, keepdim=True))
        local = F.normalize(self.local_embed(words), dim=-1) * inside[..., None]
        count = inside.sum(dim=1, keepdim=True).clamp_min(1)
        whole = F.normalize(self.global_embed(hidden[:, 0]), dim=-1)
        return torch.stack([whole, local.sum(dim=1) / count], dim=1)


def word_places(tokenizer: SentenceTokenizer, ids: Sequence[Sequence[int]]) -> Tensor:
    """The word that each token belongs to, from 0 ([CLS]); -1 for padding: ``[T, L]``."""
    places = torch.full((len(ids), max(len(row) for row in ids)), -1)
    for row, tokens in enumerate(ids):
        number = -1
        for column, token in enumerate(tokenizer.tokens(tokens)):
            number += number < 0 or not token.startswith("##")
            places[row, column] = number
    return places


def word_sums(states: Tensor, places: Tensor) -> Tensor:
    """Tokens ``[T, L, D]`` added up word by word: ``[T, W, D]``, W of the longest sentence."""
    count = int(places.max()) + 1
    kept = (places >= 0).to(states)[..., None]
    words = states.new_zeros(len(states), count, states.shape[-1])
    index = places.clamp_min(0)[..., None].expand_as(states)
    return words.scatter_add(1, index, states * kept)


def text_tower(peer: PeerSettings, state: State) -> Tower:
    """The text tower of a peer, with weights at random; an empty one where it reads no text."""
    text = peer.text
    if text.kind == "bert" and text.pooling == "projection":
        return TextEncoder(text.config, use_projection_head=True)
    towers: Mapping[str, Callable[[PeerSettings, State], Tower]] = {
        "open_clip": OpenClipText,
        "hf_clip": HfClipText,
        "bert": BertTower,
        "encoder": EncoderText,
        "words": WordsText,
        "none": lambda *_: Tower(),
    }
    return towers[text.kind](peer, state)
