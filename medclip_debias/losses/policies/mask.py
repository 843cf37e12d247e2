"""Policies that mask: never push an anchor from its own study, or from the same sentence."""

from __future__ import annotations

from torch import Tensor

from medclip_debias.losses.batch import Anchors, ContrastiveBatch
from medclip_debias.losses.pairs import same_study, same_text
from medclip_debias.losses.policy import PolicySettings, register


@register(
    "mask_same_study",
    PolicySettings,
    reads={"sample_ids"},
    rowwise=True,
    formula="W = 0 where anchor and candidate are of one study",
    paper="this project",
)
def mask_same_study(anchors: Anchors, batch: ContrastiveBatch, settings: PolicySettings) -> Tensor:  # noqa: ARG001
    """``W = 0`` where anchor and candidate have the same ``sample_ids`` (two views of a study).

    Example:
        >>> import torch
        >>> studies = torch.tensor([7, 7, 9])
        >>> batch = ContrastiveBatch(torch.zeros(3, 3), torch.tensor(1.0), sample_ids=studies)
        >>> mask_same_study(batch.anchors("text_to_image")[0], batch, PolicySettings())
        tensor([[False, False,  True],
                [False, False,  True],
                [ True,  True, False]])
    """
    return ~same_study(anchors, batch)


@register(
    "mask_identical_text",
    PolicySettings,
    reads={"text_ids"},
    rowwise=True,
    formula="W = 0 where anchor and candidate have the same sentence",
    paper="this project",
)
def mask_identical_text(
    anchors: Anchors,
    batch: ContrastiveBatch,
    settings: PolicySettings,  # noqa: ARG001
) -> Tensor:
    """``W = 0`` where anchor and candidate have the same sentence (equal ``text_ids``).

    Example:
        >>> import torch
        >>> texts = torch.tensor([5, 5, 6])
        >>> batch = ContrastiveBatch(torch.zeros(3, 3), torch.tensor(1.0), text_ids=texts)
        >>> mask_identical_text(batch.anchors("image_to_text")[0], batch, PolicySettings())
        tensor([[False, False,  True],
                [False, False,  True],
                [ True,  True, False]])
    """
    return ~same_text(anchors, batch)
