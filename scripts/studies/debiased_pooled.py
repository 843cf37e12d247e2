"""Debiased loss whose same-class mean is estimated from more than one pair.

With one positive (M = 1) the true class probability collapses: the noise of ``eta exp(s+)`` is
larger than what is left of the negatives, and the floor takes over. Here ``v``, the mean of
``exp(s)`` over images that agree with the sentence, is pooled over the batch or over time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.anchors import Anchors, masked_logsumexp
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.core import ContrastiveCore, CoreSettings
from medclip_debias.losses.eta import (
    EtaSettings,
    LanguageModelEta,
    clip_eta,
    eta_of,
    fields_of,
)
from medclip_debias.losses.objective import LossOutput
from medclip_debias.losses.objectives.debiased import debiased_per_anchor
from medclip_debias.losses.samples import Groups, SampleTable


class PooledSettings(CoreSettings):
    """Settings of `PooledDebiased`.

    Attributes:
        eta: class probability, multiplied by ``shrink``.
        pool: ``pair`` the anchor's own pair (the paper's M = 1); ``text`` all images of the batch
            with a sentence whose frozen embedding has cosine ``threshold`` or more to the
            anchor's; ``running`` an average over time of the pairs of equal sentences, of which
            a new value takes ``gamma``, held constant in the gradient.
        floor: ``live`` is differentiated through the scale, as the paper's; ``detached`` not.
    """

    kind: Literal["debiased_pooled"] = "debiased_pooled"
    direction: Literal["text_to_image"] = "text_to_image"
    eta: EtaSettings = LanguageModelEta()
    shrink: float = Field(1.0, gt=0, le=1)
    pool: Literal["pair", "text", "running"] = "text"
    threshold: float = Field(0.95, ge=-1, le=1)
    gamma: float = Field(0.1, gt=0, le=1)
    floor: Literal["live", "detached"] = "live"


class PooledDebiased(ContrastiveCore[PooledSettings]):
    """The debiased loss with ``Ng = max((neg - N eta v) / (1 - eta), N exp(-g2))``, v pooled.

    Pooled images stay among the negatives: those are a sample of all images, which is what the
    estimate subtracts from.

    Diagnostics: ``clamped`` share of anchors on the floor, ``mean_eta``, ``eta_clipped`` number
    of anchors whose eta was cut to 0 or 0.99, ``pooled`` mean number of pairs behind ``v``, and
    those of the policies.

    Example:
        >>> from medclip_debias.losses.eta import ConstantEta
        >>> batch = ContrastiveBatch(
        ...     torch.eye(3), torch.tensor(14.0), text_similarity=torch.eye(3)
        ... )
        >>> PooledDebiased(PooledSettings(eta=ConstantEta(value=0.1)))(batch).per_anchor.shape
        torch.Size([3])
    """

    formula: ClassVar[str] = (
        "-log pos / (pos + Ng), Ng = max((neg - N eta v) / (1 - eta), N exp(-g2)), v a mean over "
        "pairs of like sentences"
    )
    paper: ClassVar[str] = "this project (study 'estimator')"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (  # 'running' holds v constant in gradients
        {"pool": "pair", "eta": {"kind": "table"}},
        {"threshold": 0.5, "shrink": 0.5},
    )

    def __init__(self, settings: PooledSettings | None = None) -> None:
        super().__init__(settings)
        self.table = SampleTable({"log_v": 0.0, "visits": 0})

    @property
    def requires(self) -> frozenset[str]:
        """What eta, the pool and the policies read."""
        found = super().requires
        found |= fields_of(self.settings.eta)
        pools = {"pair": set[str](), "text": {"text_similarity"}, "running": {"text_ids"}}
        return found | pools[self.settings.pool]

    def over(
        self, sets: list[Anchors], diagnostics: dict[str, Tensor], batch: ContrastiveBatch
    ) -> LossOutput:
        """Losses of the batch's sentences ``[T]``."""
        s = self.settings
        (anchors,) = sets
        eta, clipped = clip_eta(s.shrink * eta_of(s.eta, batch))
        log_v, pooled = self._log_mean(anchors, batch)
        loss, floored = debiased_per_anchor(anchors, eta, log_v, live_floor=s.floor == "live")
        diagnostics |= {
            "clamped": floored.to(loss.dtype).mean(),
            "mean_eta": eta.mean().detach(),
            "eta_clipped": clipped,
            "pooled": pooled,
        }
        return LossOutput(loss, diagnostics)

    def _log_mean(self, anchors: Anchors, batch: ContrastiveBatch) -> tuple[Tensor, Tensor]:
        """``log v`` of each anchor ``[A]``, and the mean number of pairs behind it."""
        one = torch.ones((), device=anchors.logits.device)
        match self.settings.pool:
            case "text":
                like = anchors.between_texts(batch.needed("text_similarity", self.kind), batch)
                members = (like >= self.settings.threshold) | anchors.is_own
                count = members.sum(dim=1).to(anchors.logits.dtype)
                return masked_logsumexp(anchors.logits, members) - count.log(), count.mean()
            case "running":
                return self._running(anchors, batch)
            case _:
                return anchors.positive, one

    def _running(self, anchors: Anchors, batch: ContrastiveBatch) -> tuple[Tensor, Tensor]:
        ids = batch.needed("text_ids", self.kind)[anchors.rows].long()
        table = self.table
        table.reserve(ids)
        groups = Groups(ids, torch.ones_like(ids, dtype=torch.bool))
        rows = groups.samples
        with torch.no_grad():
            new = groups.log_mean_exp(anchors.positive)
            old, gamma = table["log_v"][rows].double(), self.settings.gamma
            mixed = torch.logaddexp(
                old + torch.log1p(torch.tensor(-gamma, dtype=old.dtype)),
                new + torch.tensor(gamma, dtype=old.dtype).log(),
            )
            seen = table["visits"][rows] > 0
            value = torch.where(seen, mixed, new) if gamma < 1 else new
            if self.training:
                table["log_v"][rows] = value.to(table["log_v"].dtype)
                table["visits"][rows] += groups.count.to(table["visits"].dtype)
                table.steps += 1
        return value.to(anchors.logits.dtype)[groups.place], table["visits"][rows].float().mean()
