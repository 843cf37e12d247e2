"""Policies on negatives: a weight ``W_jn >= 0`` for each negative of each anchor.

Every contrastive core computes ``neg = sum_n W_jn exp(s_jn)``; a policy of the folder
``policies`` gives the weights. In a core's settings they form a list::

    negatives:
      - {kind: mask_identical_text}
      - {kind: remove_by_text, threshold: 0.9}

and act one after the other: each sees only the negatives that the ones before it have left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor, nn

from medclip_debias.config import Settings, validate
from medclip_debias.losses.anchors import Anchors
from medclip_debias.losses.annealing import Schedule
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.pair_evidence import evidence_settings
from medclip_debias.registry import Chosen, Registry


class PolicySettings(Settings):
    """Base of every policy's settings; each subclass names its ``kind``.

    ``keep_mass`` rescales the weights so that removal does not shrink the denominator: the
    mean over what is kept, times the number there was. ``schedule`` fades the policy: at strength
    c of the schedule a weight W counts as ``1 - c (1 - W)``.
    """

    kind: str = ""
    keep_mass: bool = False
    schedule: Schedule | None = None


P = TypeVar("P", bound=PolicySettings)

POLICIES: Registry[type[NegativePolicy[Any]]] = Registry(
    "policy", "medclip_debias.losses.policies", known="known policies"
)


class NegativePolicy(Chosen[P], nn.Module):
    """Base of every policy: `forward` gives weights, state (if any) lives in buffers.

    A subclass names its settings class in brackets, whose ``kind`` is its name in
    ``negatives: [{kind: ...}]``; the class attributes are those of `Chosen`.
    """

    registry: ClassVar[Registry[Any]] = POLICIES
    whole_batch: str | None = "does not say that it weighs an anchor by its own row alone"
    """Why several processes cannot share the loss; None if they can."""

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
        schedule = self.settings.schedule
        if schedule is not None:
            strength = schedule.strength(batch.needed("done", f"{self.kind}: schedule"))
            if strength == 0:
                return anchors
            if strength < 1:
                weights = 1 + strength * (weights.to(anchors.logits.dtype) - 1)
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


def policies() -> dict[str, type[NegativePolicy[Any]]]:
    """All policies by kind, in alphabetical order."""
    return POLICIES.all()


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
    if not isinstance(content, Mapping):
        raise POLICIES.unknown(content, where, f"{prefix}kind")
    policy = POLICIES.find(content.get("kind"), where, f"{prefix}kind")
    content = dict(content)
    if "evidence" in content:
        content["evidence"] = evidence_settings(content["evidence"], where, f"{prefix}evidence.")
    settings: PolicySettings = validate(policy.settings_class, content, where, prefix)
    return settings


def _entries(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    return tuple(
        policy_settings(entry, "negatives", f"{place}.") for place, entry in enumerate(value)
    )


Negatives = Annotated[tuple[SerializeAsAny[PolicySettings], ...], BeforeValidator(_entries)]
"""Field type of a list of policies; entries are validated by the policy they name."""
