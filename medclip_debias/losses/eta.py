"""Class probability eta of each anchor: constant, from a language model, or from a table.

Sample-specific debiasing, section 2.4: ``eta_LM(x) = a p_LM(x)^k``, here in log space only,
because p underflows for any longer sentence.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.config import Settings
from medclip_debias.losses.batch import ContrastiveBatch

ETA_MAX = 0.99
_STREAM = 21  # of the batch's random numbers


class ConstantEta(Settings):
    """The same eta for every anchor (Chuang et al. 2020)."""

    kind: Literal["constant"] = "constant"
    value: float = Field(0.1, ge=0, lt=1)


class SentenceEta(Settings):
    """An eta that differs from sentence to sentence.

    ``control: shuffled`` deals the values out anew over the sentences of each batch: the same dose,
    in every batch and so over all occurrences, but for no sentence in particular.
    """

    control: Literal["none", "shuffled"] = "none"


class LanguageModelEta(SentenceEta):
    """``log eta = log a + k log p(sentence)``; the paper's grid search gave a .2, k .35.

    ``language_model`` is the folder whose scores must be used; without it, the folder that the
    text encoder starts from.
    """

    kind: Literal["language_model"] = "language_model"
    a: float = Field(0.2, gt=0)
    k: float = Field(0.35, ge=0)
    language_model: Path | None = None


class TableEta(SentenceEta):
    """eta of each distinct sentence from a CSV or Parquet file with columns text, eta.

    ``factor`` multiplies it: training is stable only below a quarter to a half of the true
    probability (docs/theory.md).
    """

    kind: Literal["table"] = "table"
    path: Path | None = None
    factor: float = Field(1.0, gt=0, le=1)


EtaSettings = Annotated[
    ConstantEta | LanguageModelEta | TableEta,
    Field(discriminator="kind"),
]


def clip_eta(raw: Tensor) -> tuple[Tensor, Tensor]:
    """eta cut to [0, `ETA_MAX`], and how many were cut on either side."""
    eta = raw.clamp(0, ETA_MAX)
    return eta, ((raw < 0) | (raw > ETA_MAX)).sum()


def fields_of(settings: ConstantEta | LanguageModelEta | TableEta) -> frozenset[str]:
    """Fields of the batch that `eta_of` reads."""
    match settings:
        case ConstantEta():
            return frozenset()
        case LanguageModelEta():
            fields = {"log_prob"}
        case TableEta():
            fields = {"eta"}
    return frozenset(fields | ({"seed"} if settings.control != "none" else set()))


def eta_of(settings: ConstantEta | LanguageModelEta | TableEta, batch: ContrastiveBatch) -> Tensor:
    """eta of every sentence of the batch, ``[T]``, before clipping to `ETA_MAX`.

    Raises:
        ValueError: the batch lacks the log probabilities or the table's values.
    """
    like = batch.similarity
    match settings:
        case ConstantEta():
            return like.new_full((len(batch.owners),), settings.value)
        case LanguageModelEta():
            eta = (math.log(settings.a) + settings.k * batch["log_prob"].to(like.dtype)).exp()
        case TableEta():
            eta = batch["eta"].to(like.dtype) * settings.factor
    if settings.control == "none":
        return eta
    order = torch.randperm(len(eta), generator=batch.generator(_STREAM))
    return eta[order.to(eta.device)]
