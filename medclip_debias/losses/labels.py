"""Read the label matrix of a batch: which studies are alike by their labels."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from medclip_debias.errors import UserError
from medclip_debias.losses.anchors import LossBatch

CHEX5_NAMES = ("Cardiomegaly", "Edema", "Pleural Effusion", "Pneumonia", "Pneumothorax")
"""The five labels of the paper's "remove by CheX5 labels"."""

Uncertain = Literal["as_negative", "as_positive", "ignore"]
Match = Literal["shared", "equal"]


def label_sets(
    batch: LossBatch, names: tuple[str, ...], uncertain: Uncertain
) -> tuple[Tensor, Tensor]:
    """Present labels and known labels of each image: two float matrices ``[I, L]`` of 0 and 1.

    A blank label counts as absent, as CheXpert's users count it, unless the study has no label at
    all; ``uncertain`` says whether -1 is absent, present, or not known. Without ``label_names`` in
    the batch every column is read.
    """
    labels: Tensor = batch["labels"]
    unlabelled = labels.isnan().all(dim=1, keepdim=True)
    columns = batch.fields.get("label_names")
    if columns is not None:
        missing = [name for name in names if name not in columns]
        if missing:
            raise UserError(
                f"the loss reads the label '{missing[0]}', which this data does not have; "
                f"it has: {', '.join(columns)}."
            )
        labels = labels[:, [columns.index(name) for name in names]]
    present = labels == 1
    known = (~unlabelled).expand_as(labels)
    if uncertain == "as_positive":
        present = present | (labels == -1)
    elif uncertain == "ignore":
        known = known & (labels != -1)
    dtype = batch.similarity.dtype
    return present.to(dtype), known.to(dtype)


def alike_by_labels(
    batch: LossBatch, match: Match, names: tuple[str, ...], uncertain: Uncertain
) -> Tensor:
    """``[I, I]`` bool: some label is present in both (``shared``), or no label known in both
    differs and there is such a label (``equal``); arguments as of `label_sets`."""
    present, known = label_sets(batch, names, uncertain)
    yes, no = present * known, (1 - present) * known
    if match == "shared":
        return (yes @ yes.T) > 0
    differ = yes @ no.T
    return (differ + differ.T == 0) & ((known @ known.T) > 0)


def jaccard(present: Tensor, known: Tensor) -> Tensor:
    """``[I, I]`` similarity of label sets: shared over any, over labels known in both.

    1 where neither has a label present but both are known, 0 where nothing is known in common.
    """
    yes, no = present * known, (1 - present) * known
    shared, differ = yes @ yes.T, yes @ no.T
    union = shared + differ + differ.T
    empty = ((known @ known.T) > 0).to(shared.dtype)
    similarity = torch.where(union > 0, shared / union.clamp(min=1), empty)
    return similarity.fill_diagonal_(1.0)
