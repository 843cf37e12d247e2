"""What is known of pairs of an anchor and a candidate, and the cross-entropy to targets from it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from medclip_debias.losses.anchors import Anchors, LossBatch, masked_logsumexp


def between_images(matrix: Tensor, anchors: Anchors) -> Tensor:
    """``[A, C]`` entries of a matrix over images ``[I, I]``."""
    return matrix[anchors.images][:, anchors.candidates]


def between_texts(matrix: Tensor, anchors: Anchors, batch: LossBatch) -> Tensor:
    """``[A, C]`` entries of a matrix over sentences ``[T, T]``.

    A candidate image is known by the largest entry of its sentences, 0 where it has none; with
    ``study_of_image`` by those of all images of its study, which one report describes.
    """
    entries, owners, first = matrix[anchors.rows], batch.owners, None
    if anchors.side != "text":
        return entries
    if batch.study_of_image is not None:  # a study's first image stands for all of them
        study = batch.study_of_image
        first = (study[:, None] == study[None, :]).to(torch.uint8).argmax(dim=1)
        owners = first[owners]
    none = entries.new_zeros(anchors.logits.shape)
    owners = owners[None, :].expand_as(entries)
    largest = none.scatter_reduce(1, owners, entries, "amax", include_self=False)
    return largest if first is None else largest[:, first]


def image_with_text(matrix: Tensor, anchors: Anchors) -> Tensor:
    """``[A, C]`` entries of a matrix of images and sentences ``[I, T]``; a view stands for both."""
    if anchors.side == "image":
        return matrix[anchors.images]
    return matrix.T[anchors.rows][:, anchors.candidates]


def same_text(anchors: Anchors, batch: LossBatch) -> Tensor:
    """``[A, C]`` bool: the candidate has the sentence of the anchor (equal ``text_ids``)."""
    ids = batch["text_ids"]
    return between_texts((ids[:, None] == ids[None, :]).float(), anchors, batch) > 0


def soft_cross_entropy(anchors: Anchors, target: Tensor) -> Tensor:
    """``sum_k q_k (log Z - s_k)`` ``[A]`` with ``Z = exp(s+) + sum_n W_n exp(s_n)``.

    The rows of ``target`` ``[A, C]`` sum to 1; 0 where the positive is the only candidate.
    """
    relative = anchors.relative_logits
    log_z = masked_logsumexp(
        anchors.weighted_logits(relative), anchors.negatives | anchors.is_positive
    )
    return log_z - (target * relative).sum(dim=1)


def with_candidates(anchors: Anchors, kept: Tensor) -> Anchors:
    """The anchors with the candidates in ``kept`` back at weight 1, whatever policies did."""
    weights = anchors.weights
    if weights is not None:
        weights = torch.where(kept, torch.ones_like(weights), weights)
    return replace(anchors, negatives=anchors.negatives | kept, weights=weights)
