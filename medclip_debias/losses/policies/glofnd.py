"""Policy: drop the negatives above a threshold learned for each training sample (GloFND).

Balmaseda et al. (2025), equations 2 to 4. The threshold of a sample follows the ``1 - alpha``
quantile of its similarity to all other samples, although a batch shows only a few of them.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.anchors import Anchors, LossBatch, same_study
from medclip_debias.losses.pairs import between_images
from medclip_debias.losses.policy import LateStart, LateStartSettings, register
from medclip_debias.losses.samples import Groups, PerSide, SampleTable, cosines


class GloFNDSettings(LateStartSettings):
    """Settings of `GloFND`.

    ``alpha``: share of negatives to remove. ``optimizer``: ``sgd`` (equation 4) or ``adam``
    (published code). ``init``: thresholds start at 1 and come down by at most ``lr`` a visit
    (``one``), or at the batch's quantile at the first visit (``quantile``, for short runs).
    ``start_step`` (or ``start_epoch``): from which thresholds are learned; ``filter_step``: from
    which they filter. ``samples``: size of the training set, to make room at once.
    """

    kind: Literal["glofnd"] = "glofnd"
    keep_mass: bool = True
    alpha: float = Field(0.01, ge=0, lt=1)
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = Field(0.05, gt=0)
    betas: tuple[float, float] = (0.9, 0.98)
    init: Literal["one", "quantile"] = "one"
    filter_step: int | None = Field(None, ge=0)
    samples: int | None = Field(None, ge=1)


@register(
    "glofnd",
    GloFNDSettings,
    reads={"sample_ids"},
    formula="W = 0 where sim_jn > lambda_j; lambda_j moves against alpha - mean_n 1[sim_jn > "
    "lambda_j]",
    paper="GloFND, Balmaseda et al. (2025), eq. 2-4",
)
class GloFND(LateStart):
    """``W = 0`` where the cosine exceeds the anchor's own threshold ``lambda``.

    At each training step the thresholds of the batch's samples move first, against the gradient
    ``alpha - mean_n 1[sim_n > lambda]`` and within [-1, 1], once a sample, by the mean over its
    anchors; its own study is no negative in it. Adam's bias correction counts a sample's own
    updates. docs/methods.md has the differences from the published code.

    The state takes 16 bytes a sample for each side that has anchors; the two views of an image
    share one. In evaluation mode thresholds filter, but do not move.
    """

    settings: GloFNDSettings

    def __init__(self, settings: GloFNDSettings | None = None) -> None:
        super().__init__(settings)
        s = self.settings
        columns = {"threshold": 1.0, "m": 0.0, "v": 0.0, "visits": 0}
        self.tables = PerSide(lambda: SampleTable(columns, s.samples))
        self._sums: dict[str, Tensor] = {}

    @torch.no_grad()
    def forward(self, anchors: Anchors, batch: LossBatch) -> Tensor:
        """Weights ``[A, C]``, 0 or 1; in training mode, after an update of the thresholds."""
        s = self.settings
        table, ids = self.tables.of(anchors, batch)
        # Rounding puts cosines of equal vectors a hair above 1, the highest threshold.
        similarity = cosines(anchors, batch)
        capped = similarity.clamp(max=1.0)
        others = anchors.negatives & ~same_study(anchors, batch)
        count = others.sum(dim=1)
        step = int(table.steps)
        quantile = upper_quantile(similarity, others, count, s.alpha)
        if self.training:
            table.steps += 1
            if step >= self.start:
                above = capped > table["threshold"][ids].to(similarity.dtype)[:, None]
                share = (above & others).sum(dim=1).double() / count.clamp(min=1)
                self._learn(table, Groups(ids, count > 0), share, quantile)
        removed = capped > table["threshold"][ids].to(similarity.dtype)[:, None]
        removed &= anchors.negatives
        filters = step >= (self.start if s.filter_step is None else s.filter_step)
        if s.alpha == 0 or not filters:
            removed = torch.zeros_like(removed)
        valid = count > 0
        thresholds = table["threshold"][ids][valid].double()
        error = (table["threshold"][ids] - quantile)[valid].double()
        sums = {
            "negatives": anchors.negatives.sum(),
            "removed": removed.sum(),
            "anchors": valid.sum(),
            "lambda": thresholds.sum(),
            "absolute": error.abs().sum(),
            "square": (error**2).sum(),
        }
        if "labels" in batch.fields:
            present = (batch["labels"] == 1).to(batch.similarity.dtype)
            true = between_images(present @ present.T > 0, anchors) & anchors.negatives
            sums |= {"true": true.sum(), "hits": (true & removed).sum()}
        for name, value in sums.items():  # a symmetric loss calls twice before `figures`
            self._sums[name] = self._sums.get(name, 0) + value
        return ~removed

    def _learn(self, table: SampleTable, groups: Groups, share: Tensor, quantile: Tensor) -> None:
        """Move the thresholds by the ``share`` ``[A]`` of each anchor's negatives above them."""
        s, rows = self.settings, groups.samples
        gradient = (s.alpha - groups.mean(share)).float()
        visits = table["visits"][rows] + 1
        first = (visits == 1) & (s.init == "quantile")
        if s.optimizer == "adam":
            taken = visits - 1 if s.init == "quantile" else visits
            change = table.adam(rows, gradient, taken, s.lr, s.betas)
        else:
            change = s.lr * gradient
        start = groups.mean(quantile).float()
        moved = (table["threshold"][rows] - change).clamp(-1.0, 1.0)
        table["threshold"][rows] = torch.where(first, start.clamp(-1.0, 1.0), moved)
        table["visits"][rows] = visits

    def figures(self) -> dict[str, Tensor]:
        """Named scalar diagnostics of the calls since this was last asked."""
        sums, self._sums = self._sums, {}
        if not sums:
            return {}
        anchors, removed = sums["anchors"].clamp(min=1), sums["removed"]
        result = {
            "glofnd_removed": removed / sums["negatives"].clamp(min=1),
            "glofnd_lambda": sums["lambda"] / anchors,
            "glofnd_mae": sums["absolute"] / anchors,
            "glofnd_rmse": (sums["square"] / anchors).sqrt(),
        }
        if "true" in sums:
            hits, true = sums["hits"], sums["true"]
            result |= {
                "glofnd_precision": hits / removed.clamp(min=1),
                "glofnd_recall": hits / true.clamp(min=1),
                "glofnd_f1": 2 * hits / (removed + true).clamp(min=1),
            }
        return result


def upper_quantile(values: Tensor, mask: Tensor, count: Tensor, alpha: float) -> Tensor:
    """``1 - alpha`` quantile ``[A]`` of each row where ``mask``; 1 for a row of none."""
    if not values.shape[1]:
        return values.new_ones(len(values))
    # Position from the top, among the `count` values in descending order.
    place = alpha * (count - 1).clamp(min=0).double()
    below = place.floor().long()
    # topk does less than a sort, and alpha is small.
    deepest = min(int(alpha * (values.shape[1] - 1)) + 2, values.shape[1])
    top = torch.where(mask, values, -torch.inf).topk(deepest, dim=1).values
    upper = top.gather(1, below[:, None]).squeeze(1)
    lower = top.gather(1, (below + 1).clamp(max=deepest - 1)[:, None]).squeeze(1)
    part = (place - below).to(values.dtype)
    # Where the position is whole, the next value may be the -inf of a short row.
    mixed = torch.where(part > 0, upper + part * (lower - upper), upper)
    return torch.where(count > 0, mixed, 1.0)
