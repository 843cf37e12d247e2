"""The masked-language-model term that some objectives add to their loss (BioViL)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.language.masked_lm import mask_tokens
from medclip_debias.losses.biovil import MaskedLMSettings
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.start import TrainableModel
from medclip_debias.models.text_encoder import load_masked_lm


class MaskedSentences(NamedTuple):
    """Sentences with tokens to predict."""

    inputs: Tensor  # [T, L] token ids after masking
    mask: Tensor  # [T, L] 1 where there is a token
    places: Tensor  # [T, L] bool, the tokens to predict
    targets: Tensor  # [P] their true ids


class MaskedLMTerm(nn.Module):
    """``weight`` times the cross-entropy of masked tokens under the text encoder being trained.

    The prediction head starts from the language model's folder; its output layer is the
    encoder's own word embedding, as in BERT.
    """

    def __init__(self, settings: MaskedLMSettings, folder: Path, model: DualEncoder) -> None:
        super().__init__()
        self.settings = settings
        self.head: nn.Module = load_masked_lm(folder).cls.to(model.device).train()
        self.head.predictions.decoder.weight = (
            model.text_encoder.bert.embeddings.word_embeddings.weight
        )

    def mask(
        self, model: TrainableModel, ids: Sequence[Sequence[int]], rng: np.random.Generator
    ) -> MaskedSentences:
        """Choose what is to be predicted."""
        assert isinstance(model, DualEncoder)  # as the one given at the start
        padded, mask = model.tokenizer.pad(ids)
        share = self.settings.mask_share
        inputs, places, targets = mask_tokens(padded, mask, model.tokenizer, share, rng)
        return MaskedSentences(inputs, mask, places, targets)

    def forward(self, model: TrainableModel, sentences: MaskedSentences) -> Tensor:
        """Mean cross-entropy, in nats a masked token, before ``weight``."""
        assert isinstance(model, DualEncoder)
        device = model.device
        hidden = model.text_encoder.bert(
            input_ids=sentences.inputs.to(device), attention_mask=sentences.mask.to(device)
        ).last_hidden_state
        predicted = self.head(hidden[sentences.places.to(device)]).float()
        return F.cross_entropy(predicted, sentences.targets.to(device))
