"""What is known of the pair of an anchor and a candidate, looked up in what the batch knows."""

from __future__ import annotations

import torch
from torch import Tensor

from medclip_debias.losses.batch import Anchors, ContrastiveBatch


def images_of(anchors: Anchors, batch: ContrastiveBatch) -> tuple[Tensor, Tensor]:
    """Image (or view) index of each anchor ``[A]`` and of each candidate ``[C]``."""
    if anchors.side == "view":
        return anchors.rows, anchors.columns
    candidates = anchors.columns if anchors.side == "text" else batch.owners[anchors.columns]
    return batch.owners[anchors.rows], candidates


def between_images(matrix: Tensor, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
    """``[A, C]`` entries of a matrix over images ``[I, I]``."""
    rows, columns = images_of(anchors, batch)
    return matrix[rows][:, columns]


def between_texts(matrix: Tensor, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
    """``[A, C]`` entries of a matrix over sentences ``[T, T]``.

    A candidate image is known by its sentences: the largest entry of them counts, since one
    sentence in common is enough to make it a false negative; 0 where it has none. With
    ``study_of_image`` they are those of all images of its study, which one report describes.
    """
    if anchors.side != "text":
        return matrix[anchors.rows][:, anchors.columns]
    entries, owners, first = matrix[anchors.rows], batch.owners, None
    if batch.study_of_image is not None:  # a study's first image stands for all of them
        study = batch.study_of_image
        first = (study[:, None] == study[None, :]).to(torch.uint8).argmax(dim=1)
        owners = first[owners]
    none = entries.new_zeros(anchors.logits.shape)
    owners = owners[None, :].expand_as(entries)
    largest = none.scatter_reduce(1, owners, entries, "amax", include_self=False)
    return largest if first is None else largest[:, first]


def image_with_text(matrix: Tensor, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
    """``[A, C]`` entries of a matrix of images and sentences ``[I, T]``.

    A view stands for its image where it is an anchor or a candidate, and for its study's text
    on the other side.
    """
    rows, columns = images_of(anchors, batch)
    if anchors.side == "image":
        return matrix[rows][:, anchors.columns]
    return matrix.T[anchors.rows][:, columns]


def same_text(anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
    """``[A, C]`` bool: the candidate has the sentence of the anchor (equal ``text_ids``)."""
    ids = batch["text_ids"]
    return between_texts((ids[:, None] == ids[None, :]).float(), anchors, batch) > 0


def same_study(anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
    """``[A, C]`` bool: the candidate has the ``sample_ids`` of the anchor's image."""
    rows, columns = images_of(anchors, batch)
    studies = batch["sample_ids"]
    same: Tensor = studies[rows][:, None] == studies[columns][None, :]
    if anchors.side == "view":  # a view is no candidate of its own
        same = same & (anchors.rows[:, None] != anchors.columns[None, :])
    return same
