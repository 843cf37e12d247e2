"""Policies on negatives: a weight ``W_jn >= 0`` for each negative of each anchor.

Every contrastive core computes ``neg = sum_n W_jn exp(s_jn)``; a policy is one file with its
settings and a `NegativePolicy` that gives the weights. In a core's settings they form a list::

    negatives:
      - {kind: mask_identical_text}
      - {kind: remove_by_text, threshold: 0.9}

and act one after the other: each sees only the negatives that the ones before it have left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import Tensor, nn

from medclip_debias.config import Settings, validate
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.losses.base import (
    Anchors,
    ContrastiveBatch,
    Direction,
    LossSettings,
    Objective,
)


class PolicySettings(Settings):
    """Base of every policy's settings; each subclass names its ``kind``.

    ``keep_mass`` rescales the weights so that removal does not shrink the denominator: the
    mean over what is kept, times the number there was.
    """

    kind: str = ""
    keep_mass: bool = False


class NegativePolicy(nn.Module):
    """Base of every policy: `forward` gives weights, state (if any) lives in buffers.

    Class attributes:
        kind: name in ``negatives: [{kind: ...}]``.
        settings_class: its validated settings.
        formula: one line.
        paper: where it comes from.
    """

    kind: ClassVar[str]
    settings_class: ClassVar[type[PolicySettings]]
    formula: ClassVar[str]
    paper: ClassVar[str]
    register: ClassVar[dict[str, type[NegativePolicy]]] = {}

    def __init__(self, settings: Any = None) -> None:
        super().__init__()
        self.settings = settings or self.settings_class()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.register[cls.kind] = cls

    @property
    def requires(self) -> frozenset[str]:
        """Optional fields of the batch that this policy, so set, reads."""
        return frozenset()

    def forward(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """Weights ``[A, C]`` (bool: 0 or 1); those outside ``anchors.negatives`` do not matter."""
        raise NotImplementedError

    def figures(self) -> dict[str, Tensor]:
        """Named scalar diagnostics of the last call."""
        return {}

    def apply_to(self, anchors: Anchors, batch: ContrastiveBatch) -> Anchors:
        """The anchors with this policy's weights multiplied in and removed negatives gone."""
        weights = self(anchors, batch).detach()
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


def largest(values: Tensor, mask: Tensor, count: Tensor) -> Tensor:
    """``[A, C]`` bool: the ``count`` ``[A]`` largest of each row's ``values`` where ``mask``.

    Exactly that many (or all there are), also among equal values.
    """
    result = torch.zeros_like(mask)
    most = min(int(count.max()), mask.shape[1]) if count.numel() else 0
    if most <= 0:
        return result
    columns = torch.where(mask, values, -torch.inf).topk(most, dim=1).indices
    wanted = torch.arange(most, device=count.device) < count[:, None]
    return result.scatter_(1, columns, wanted) & mask


def policies() -> dict[str, type[NegativePolicy]]:
    """All policies by kind, in alphabetical order."""
    from medclip_debias.losses.registry import import_all

    import_all()
    return dict(sorted(NegativePolicy.register.items()))


def policy_settings(content: Any, where: str, prefix: str) -> PolicySettings:
    """Validate one entry of ``negatives`` by the policy it names.

    Args:
        content: mapping with a ``kind``, or settings that are validated already.
        where: file the entry came from, for the message.
        prefix: place in it, as ``loss.negatives.0.``.

    Raises:
        UserError: the kind is missing or unknown, or a setting of it is wrong.
    """
    if isinstance(content, PolicySettings):
        return content
    known = policies()
    kind = content.get("kind") if isinstance(content, Mapping) else content
    if not isinstance(content, Mapping) or kind not in known:
        hint = did_you_mean(str(kind), known)
        raise UserError(
            f"{where}: setting '{prefix}kind' is {kind!r}{hint}; "
            f"known policies: {', '.join(known)}."
        )
    return validate(known[kind].settings_class, content, where, prefix)


def _entries(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    return tuple(
        policy_settings(entry, "negatives", f"{place}.") for place, entry in enumerate(value)
    )


Negatives = Annotated[tuple[SerializeAsAny[PolicySettings], ...], BeforeValidator(_entries)]
"""Field type of a list of policies; entries are validated by the policy they name."""


class CoreSettings(LossSettings):
    """What the settings of every contrastive core share."""

    direction: Direction = "text_to_image"
    negatives: Negatives = Field(())


class ContrastiveCore(Objective):
    """Base of the objectives that have anchors, positives and weighted negatives."""

    settings: CoreSettings

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        known = policies() if self.settings.negatives else {}
        self.policies = nn.ModuleList(known[s.kind](s) for s in self.settings.negatives)

    @property
    def _policies(self) -> list[NegativePolicy]:
        return [policy for policy in self.policies if isinstance(policy, NegativePolicy)]

    @property
    def requires(self) -> frozenset[str]:
        """What the policies read."""
        return frozenset().union(*(policy.requires for policy in self._policies))

    def candidates(self, batch: ContrastiveBatch) -> list[Anchors]:
        """The batch's anchors in the settings' direction, before any policy."""
        return batch.anchors(self.settings.direction)

    def anchors(self, batch: ContrastiveBatch) -> tuple[list[Anchors], dict[str, Tensor]]:
        """The batch's anchors in the settings' direction after every policy, and diagnostics.

        ``positive_similarity`` and ``negative_similarity`` are on the cosine scale and taken
        before any policy; ``removed``, the share of negatives that the policies took away, is
        there only when there are policies, beside what these report themselves.
        """
        before = after = self.candidates(batch)
        diagnostics: dict[str, Tensor] = {}
        for policy in self._policies:
            after = [policy.apply_to(anchors, batch) for anchors in after]
            diagnostics |= policy.figures()
        with torch.no_grad():
            first = before[0]
            diagnostics["positive_similarity"] = first.positive.mean() / batch.scale
            negative = _mean(first.logits[first.negatives])
            diagnostics["negative_similarity"] = negative / batch.scale
            if self._policies:
                total = sum(a.negatives.sum() for a in before)
                kept = sum(a.negatives.sum() for a in after)
                diagnostics["removed"] = 1 - kept / torch.clamp(torch.as_tensor(total), min=1)
        return after, diagnostics


def _mean(values: Tensor) -> Tensor:
    return values.mean() if values.numel() else values.new_zeros(())
