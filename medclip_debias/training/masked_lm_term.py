"""The masked-language-model term that some objectives add to their loss (BioViL)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.language.masked_lm import mask_tokens
from medclip_debias.losses.base import MaskedLMSettings
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.text_encoder import load_masked_lm


class MaskedLMTerm(nn.Module):
    """``weight`` times the cross-entropy of masked tokens under the text encoder being trained.

    The prediction head starts from the language model's folder; its output layer is the
    encoder's own word embedding, as in BERT.

    Args:
        settings: weight and share of masked tokens.
        folder: BERT folder that the text encoder started from.
        model: model whose text encoder is trained.
    """

    def __init__(self, settings: MaskedLMSettings, folder: Path, model: DualEncoder) -> None:
        super().__init__()
        self.settings = settings
        self.head: nn.Module = load_masked_lm(folder).cls.to(model.device).train()
        self.head.predictions.decoder.weight = (
            model.text_encoder.bert.embeddings.word_embeddings.weight
        )

    def forward(
        self, model: DualEncoder, ids: Sequence[Sequence[int]], rng: np.random.Generator
    ) -> Tensor:
        """Mean cross-entropy, in nats a masked token, before ``weight``.

        Args:
            model: the one given at the start.
            ids: tokenised sentences of the batch.
            rng: chooses what is masked.
        """
        padded, mask = model.tokenizer.pad(ids)
        inputs, places, targets = mask_tokens(
            padded, mask, model.tokenizer, self.settings.mask_share, rng
        )
        device = model.device
        hidden = model.text_encoder.bert(
            input_ids=inputs.to(device), attention_mask=mask.to(device)
        ).last_hidden_state
        return F.cross_entropy(self.head(hidden[places.to(device)]).float(), targets.to(device))
