"""Read the label matrix of a batch: which labels count as present, and which are known."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from medclip_debias.errors import UserError
from medclip_debias.losses.batch import ContrastiveBatch

CHEX5_NAMES = ("Cardiomegaly", "Edema", "Pleural Effusion", "Pneumonia", "Pneumothorax")
"""The five labels of the paper's "remove by CheX5 labels"."""

Uncertain = Literal["as_negative", "as_positive", "ignore"]


def label_sets(
    batch: ContrastiveBatch, names: tuple[str, ...], uncertain: Uncertain, reader: str
) -> tuple[Tensor, Tensor]:
    """Present labels and known labels of each image.

    A blank (unmentioned) label counts as absent, as CheXpert's users count it, unless the
    study has no label at all: then nothing of it is known.

    Args:
        batch: with ``labels``; without ``label_names`` every column is read.
        names: labels to read.
        uncertain: what -1 means: absent, present, or not known.
        reader: who asks, for the messages.

    Returns:
        Two float matrices ``[I, L]`` of 0 and 1.

    Raises:
        UserError: the batch has names, but lacks one that is asked for.
    """
    labels: Tensor = batch.needed("labels", reader)
    blank = labels.isnan()
    unlabelled = blank.all(dim=1, keepdim=True)
    if batch.label_names is not None:
        absent = [name for name in names if name not in batch.label_names]
        if absent:
            raise UserError(
                f"'{reader}' reads the label '{absent[0]}', which this data does not have; "
                f"it has: {', '.join(batch.label_names)}."
            )
        columns = [batch.label_names.index(name) for name in names]
        labels = labels[:, columns]
    present = labels == 1
    known = (~unlabelled).expand_as(labels)
    if uncertain == "as_positive":
        present = present | (labels == -1)
    elif uncertain == "ignore":
        known = known & (labels != -1)
    dtype = batch.similarity.dtype
    return present.to(dtype), known.to(dtype)


def shared_present(present: Tensor, known: Tensor) -> Tensor:
    """``[I, I]`` bool: some label is present in both."""
    both = present * known
    return (both @ both.T) > 0


def equal_vectors(present: Tensor, known: Tensor) -> Tensor:
    """``[I, I]`` bool: no label that is known in both differs, and there is such a label."""
    yes, no = present * known, (1 - present) * known
    differ = yes @ no.T
    return (differ + differ.T == 0) & ((known @ known.T) > 0)


def jaccard(present: Tensor, known: Tensor) -> Tensor:
    """``[I, I]`` similarity of label sets: shared over any, over labels known in both.

    1 where neither has any label present but both are known (two studies without a finding are
    alike), 0 where nothing is known in common; 1 on the diagonal.
    """
    yes, no = present * known, (1 - present) * known
    shared, differ = yes @ yes.T, yes @ no.T
    union = shared + differ + differ.T
    empty = ((known @ known.T) > 0).to(shared.dtype)
    similarity = torch.where(union > 0, shared / union.clamp(min=1), empty)
    return similarity.fill_diagonal_(1.0)
