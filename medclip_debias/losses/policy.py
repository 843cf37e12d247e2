"""Policies on negatives: a weight ``W_jn >= 0`` for each negative of each anchor.

``negatives`` of the settings lists policies of the folder ``policies``, each of which sees what the
ones before it have left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from medclip_debias.config import Schedule
from medclip_debias.losses.anchors import Anchors, LossBatch
from medclip_debias.losses.objective import POLICIES, ChosenSettings, Reader, strength
from medclip_debias.registry import class_of

W = TypeVar("W")


class PolicySettings(ChosenSettings):
    """Base of every policy's settings.

    ``keep_mass`` rescales the weights to the sum before. ``schedule`` fades the policy: at strength
    c a weight W counts as ``1 - c (1 - W)``.
    """

    keep_mass: bool = False
    schedule: Schedule | None = None


class Policy(Reader):
    """Base of every policy; what `register` makes of a function of weights."""

    settings_class = PolicySettings

    def forward(self, anchors: Anchors, batch: LossBatch) -> Tensor:
        """Weights ``[A, C]`` (bool: 0 or 1); those outside ``anchors.negatives`` do not matter."""
        raise NotImplementedError

    def figures(self) -> dict[str, Tensor]:
        """Named scalar diagnostics of the calls since this was last asked."""
        return {}

    def apply_to(self, anchors: Anchors, batch: LossBatch) -> Anchors:
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


def register(
    kind: str, settings: type[PolicySettings] | None = None, **attributes: Any
) -> Callable[[W], W]:
    """Decorator: add a function ``(anchors, batch, *, ...) -> weights``, or a `Policy`.

    The keywords of a function are its settings; ``settings`` those of a class.
    """

    def add(weights: W) -> W:
        policy: Any = weights
        if settings is None:
            policy = class_of(weights, kind, Policy, "forward")
        POLICIES.register(kind, settings or policy.settings_class, **attributes)(policy)
        return weights

    return add


class LateStartSettings(PolicySettings):
    """Settings of a policy that needs a network which has learned something already.

    It acts from ``start_step``, or from ``start_epoch`` in a run that tells its size
    (`Objective.begin`).
    """

    start_step: int = Field(0, ge=0)
    start_epoch: int | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _starts_once(self) -> LateStartSettings:
        if self.start_epoch is not None and self.start_step:
            raise ValueError("give start_step or start_epoch, not both")
        return self


class LateStart(Policy):
    """A policy with `LateStartSettings`, which knows the step at which it begins."""

    settings: LateStartSettings
    _steps_per_epoch: int | None = None

    def begin(self, *, samples: int, steps_per_epoch: int) -> None:  # noqa: ARG002
        """Remember how long an epoch is."""
        self._steps_per_epoch = steps_per_epoch

    @property
    def start(self) -> int:
        """Training step from which the policy acts."""
        s = self.settings
        if s.start_epoch is None:
            return s.start_step
        if self._steps_per_epoch is None:
            raise ValueError(
                f"'{s.kind}' has a start_epoch, but does not know how long an epoch is: call the "
                "objective's begin(samples=..., steps_per_epoch=...) first, or set start_step"
            )
        return s.start_epoch * self._steps_per_epoch
