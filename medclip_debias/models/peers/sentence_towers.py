"""Text towers of RadZero, CoNNS, CARZero and MGCA."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.models.hf_config import text_config
from medclip_debias.models.interface import Head
from medclip_debias.models.peers.settings import EncoderTextSettings, WordsTextSettings
from medclip_debias.models.peers.trunks import Embedding
from medclip_debias.models.text_encoder import SentenceTokenizer, TextEncoder


class EncoderText(nn.Module):
    """A sentence's [CLS] or mean token, then a layer norm (RadZero) or a linear map (CoNNS)."""

    def __init__(self, settings: EncoderTextSettings, dim: int) -> None:
        super().__init__()
        self.encoder = TextEncoder(settings.config, pooling=settings.pooling)
        width = self.encoder.width
        self.head: nn.Module = (
            nn.LayerNorm(width) if settings.head == "norm" else nn.Linear(width, dim, bias=False)
        )

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask ``[T, L]`` to ``[T, dim]``."""
        result: Tensor = self.head(self.encoder(ids, mask))
        return result

    @property
    def layers(self) -> list[nn.Module]:
        """The transformer's layers, the lowest first."""
        return self.encoder.layers

    @property
    def above(self) -> list[nn.Module]:
        """What comes after the last layer, before the head."""
        return self.encoder.above

    @property
    def heads(self) -> list[Head]:
        """The norm or the map into the shared space."""
        return [self.head]


class CarzeroText(nn.Module):
    """CARZero: the sentence and its words, standardised, ``[T, 1 + W, D]``.

    A word is the sum of its pieces and of BERT's last four layers; [CLS] and [SEP] are words too.
    The sentence is their mean over all ``positions``.
    """

    def __init__(self, settings: WordsTextSettings) -> None:
        from transformers import BertModel

        super().__init__()
        self.positions = settings.positions
        self.bert = BertModel(text_config(settings.config), add_pooling_layer=False)

    def forward(self, ids: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        """Token ids, mask and `word_places`, each ``[T, L]``; padded with zeros."""
        out = self.bert(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        words = word_sums(torch.stack(out.hidden_states[-4:]).sum(dim=0), places)
        whole = words.sum(dim=1, keepdim=True) / self.positions
        found = torch.cat([whole, words], dim=1)
        width = found.shape[-1]
        return F.layer_norm(found, (width,)) / math.sqrt(width)


class MgcaText(nn.Module):
    """MGCA: [CLS] in the space of whole images, the mean word in that of regions, ``[T, 2, D]``."""

    def __init__(self, settings: WordsTextSettings, dim: int) -> None:
        from transformers import BertModel

        super().__init__()
        config = text_config(settings.config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.global_embed = Embedding(config.hidden_size, settings.hidden, dim)
        self.local_embed = Embedding(config.hidden_size, settings.hidden, dim)

    def forward(self, ids: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        """Token ids, mask and `word_places`, each ``[T, L]``."""
        # The authors' code gives the token types, which are all 0, where their BERT takes the
        # positions: its weights were trained with every token at position 0.
        at = torch.zeros_like(ids)
        out = self.bert(input_ids=ids, attention_mask=mask, position_ids=at)
        hidden = out.last_hidden_state
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
    found = torch.full((len(ids), max(len(row) for row in ids)), -1)
    for row, own in enumerate(ids):
        number = -1
        for column, token in enumerate(tokenizer.tokens(own)):
            number += number < 0 or not token.startswith("##")
            found[row, column] = number
    return found


def word_sums(states: Tensor, places: Tensor) -> Tensor:
    """Tokens ``[T, L, D]`` added up word by word: ``[T, W, D]``, W of the longest sentence."""
    count = int(places.max()) + 1
    there = (places >= 0).to(states)[..., None]
    words = states.new_zeros(len(states), count, states.shape[-1])
    index = places.clamp_min(0)[..., None].expand_as(states)
    return words.scatter_add(1, index, states * there)
