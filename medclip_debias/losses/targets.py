"""Cross-entropy to a target distribution over the candidates (X-CLR, SupCon)."""

from __future__ import annotations

import torch
from torch import Tensor

from medclip_debias.losses.anchors import Anchors, masked_logsumexp


def soft_cross_entropy(anchors: Anchors, target: Tensor) -> Tensor:
    """``sum_k q_k (log Z - s_k)`` with ``Z = exp(s+) + sum_n W_n exp(s_n)``.

    Args:
        anchors: logits and weighted negatives.
        target: ``[A, C]`` rows that sum to 1; what lies outside positives counts as well.

    Returns:
        ``[A]``; 0 with gradient 0 where the positive is the only candidate.
    """
    relative = anchors.relative_logits
    log_z = masked_logsumexp(anchors.weighted_logits(relative), anchors.negatives | anchors.is_own)
    return log_z - (target * relative).sum(dim=1)


def soft_targets(similarity: Tensor, mask: Tensor, temperature: float) -> Tensor:
    """``softmax(similarity / temperature)`` over the candidates in ``mask``, 0 elsewhere."""
    return torch.softmax((similarity / temperature).masked_fill(~mask, -torch.inf), dim=1)
