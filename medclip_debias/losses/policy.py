"""Policies on negatives: a weight ``W_jn >= 0`` for each negative of each anchor.

Every contrastive loss computes ``neg = sum_n W_jn exp(s_jn)``. The ``negatives`` of its settings
list policies of the folder ``policies``, each of which sees what the ones before it have left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from medclip_debias.config import Settings
from medclip_debias.losses.annealing import Schedule, strength
from medclip_debias.losses.batch import Anchors, ContrastiveBatch
from medclip_debias.losses.objective import POLICIES
from medclip_debias.registry import Chosen, class_of

W = TypeVar("W")


class PolicySettings(Settings):
    """Base of every policy's settings.

    ``keep_mass`` rescales the weights so that removal does not shrink the denominator: the
    mean over what is kept, times the number there was. ``schedule`` fades the policy: at strength
    c of the schedule a weight W counts as ``1 - c (1 - W)``.
    """

    kind: str = ""
    keep_mass: bool = False
    schedule: Schedule | None = None


class Policy(Chosen, nn.Module):
    """Base of every policy; what `register` makes of a function of weights.

    Class attributes, beside those of `Chosen`:
        reads: optional fields of the batch that it reads.
        rowwise: an anchor's weights depend on its own row alone, so that several processes can
            share the loss (`medclip_debias.losses.sharded`).
    """

    reads: ClassVar[Collection[str]] = ()
    rowwise: ClassVar[bool] = False

    @property
    def requires(self) -> frozenset[str]:
        """Optional fields of the batch that this policy, so set, reads."""
        scheduled = self.settings.schedule is not None
        return frozenset(self.reads) | (frozenset({"done"}) if scheduled else frozenset())

    def forward(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """Weights ``[A, C]`` (bool: 0 or 1); those outside ``anchors.negatives`` do not matter."""
        raise NotImplementedError

    def figures(self) -> dict[str, Tensor]:
        """Named scalar diagnostics of the calls since this was last asked."""
        return {}

    def apply_to(self, anchors: Anchors, batch: ContrastiveBatch) -> Anchors:
        """The anchors with this policy's weights multiplied in and removed negatives gone."""
        weights = self(anchors, batch).detach()
        c = strength(self.settings.schedule, batch)
        if c == 0:
            return anchors
        if c < 1:
            weights = 1 + c * (weights.to(anchors.logits.dtype) - 1)
        if weights.dtype == torch.bool and anchors.weights is None and not self.settings.keep_mass:
            return replace(anchors, negatives=anchors.negatives & weights)  # all weights stay 1
        weights = weights.to(anchors.logits.dtype)
        if anchors.weights is not None:
            weights = weights * anchors.weights
        weights = weights * anchors.negatives
        if self.settings.keep_mass:
            total = weights.sum(dim=1, keepdim=True)
            # A row that lost everything stays empty.
            weights = weights * (anchors.mass[:, None] / torch.where(total > 0, total, 1.0))
        return replace(anchors, weights=weights, negatives=weights > 0)


def register(kind: str, settings: type[PolicySettings], **attributes: Any) -> Callable[[W], W]:
    """Decorator: add a function ``(anchors, batch, settings) -> weights``, or a `Policy`.

    Args:
        kind: its name in ``negatives: [{kind: ...}]``.
        settings: class of its settings; `PolicySettings` where it has none of its own.
        **attributes: of the policy: ``formula``, ``paper``, ``reads``, ``rowwise``.
    """

    def add(weights: W) -> W:
        policy = weights if isinstance(weights, type) else class_of(weights, Policy, "forward")
        POLICIES.register(kind, settings, **attributes)(policy)
        return weights

    return add
