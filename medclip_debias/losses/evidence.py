"""Evidence about a pair: does what is known say that the image agrees with the sentence?

Each kind is a function that gives a number in [-1, 1] for every anchor and candidate: above 0
where they agree (a false negative), below 0 where they contradict each other (a hard negative), 0
where nothing is known. The policy ``weigh_by_evidence`` makes weights of it, the objective
``multi_positive`` targets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.anchors import SIDES, Anchors, LossBatch
from medclip_debias.losses.labels import CHEX5_NAMES, Match, Uncertain, alike_by_labels
from medclip_debias.losses.objective import EVIDENCE, ChosenSettings, Reader
from medclip_debias.losses.pairs import between_images, between_texts, image_with_text
from medclip_debias.registry import class_of

V = TypeVar("V")

_STREAM = 11  # first of the batch's random numbers, apart from those of policies that sample


class EvidenceSettings(ChosenSettings):
    """Base of the settings of every kind of evidence.

    ``control`` spoils the evidence for a comparison of equal dose: ``random`` deals each anchor's
    values out anew among its negatives, ``permuted`` gives each anchor those of another one.
    """

    control: Literal["none", "random", "permuted"] = "none"


class PairEvidence(Reader):
    """Base of every kind of evidence; what `register` makes of a function."""

    settings_class = EvidenceSettings

    def __init__(self, settings: EvidenceSettings | None = None) -> None:
        super().__init__(settings)
        self.rowwise = self.settings.control == "none"  # a control deals out over all anchors

    def chosen_fields(self) -> set[str]:
        """The seed of a control."""
        return set() if self.rowwise else {"seed"}

    def forward(self, anchors: Anchors, batch: LossBatch) -> Tensor:
        """``[A, C]`` in [-1, 1] at the negatives of each anchor, 0 elsewhere; no gradient.

        Candidates of the anchor's own study agree by definition; no control deals that away.
        """
        with torch.no_grad():
            dealt, same_study = anchors.negatives, torch.zeros_like(anchors.negatives)
            if batch.study_of_image is not None and anchors.side != "view":
                study = batch.study_of_image
                images, candidates = study[anchors.images], study[anchors.candidates]
                same_study = (images[:, None] == candidates[None, :]) & anchors.negatives
                dealt = dealt & ~same_study
            value = self.values(anchors, batch).to(anchors.logits.dtype) * dealt
            if self.settings.control != "none":
                generator = batch.generator(_STREAM + SIDES.index(anchors.side))
                if self.settings.control == "permuted":
                    order = torch.randperm(len(value), generator=generator).to(value.device)
                    value = value[order] * dealt
                else:
                    value = _dealt_out(value, dealt, generator)
            return torch.where(same_study, 1.0, value)

    def values(self, anchors: Anchors, batch: LossBatch) -> Tensor:
        """``[A, C]`` evidence of each pair; what lies outside the negatives does not matter."""
        raise NotImplementedError


def _dealt_out(values: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
    """Each row's ``values`` where ``mask`` in a random order; the row keeps all of them."""
    keys = torch.rand(values.shape, generator=generator).to(values.device)
    shuffled = torch.where(mask, keys, 2.0).argsort(dim=1)
    ordered = (~mask).to(torch.uint8).argsort(dim=1, stable=True)
    return torch.zeros_like(values).scatter(1, shuffled, values.gather(1, ordered)) * mask


def register(kind: str, **attributes: Any) -> Callable[[V], V]:
    """Decorator: add a function ``(anchors, batch, *, ...) -> values``; keywords are settings."""

    def add(function: V) -> V:
        cls = class_of(function, kind, PairEvidence, "values")
        EVIDENCE.register(kind, cls.settings_class, **attributes)(cls)
        return function

    return add


def claim_evidence(stated: Tensor, claims: Tensor) -> Tensor:
    """Least evidence over the claims of each sentence, for each image: ``[I, T]`` in [-1, 1].

    Args:
        stated: ``[I, P]`` what each image's report states about P propositions, from -100
            (certainly false) to 100 (certainly true); 0 unknown.
        claims: ``[T, L]``: ``p + 1`` where proposition p is stated true, ``-(p + 1)`` false, 0
            none.
    """
    if claims.numel() and (last := int(claims.abs().max())) > stated.shape[1]:
        raise ValueError(f"claims holds {last}, but stated has {stated.shape[1]} propositions")
    least = torch.full((len(stated), len(claims)), 100, device=stated.device, dtype=torch.int16)
    for claim in claims.unbind(dim=1):
        place = (claim.abs().long() - 1).clamp(min=0)
        value = stated[:, place].to(torch.int16) * claim.sign().to(torch.int16)
        least = torch.where(claim == 0, least, torch.minimum(least, value))
    says = (claims != 0).any(dim=1)
    return torch.where(says, least, 0) / 100


@register(
    "claims",
    reads={"stated", "claims"},
    formula="min over the claims of sentence j of what report i states about each",
    paper="this project; CoNNS and VECL decide pairs by evidence too",
)
def claims(
    anchors: Anchors,
    batch: LossBatch,
    *,
    always: Annotated[float, Field(gt=0, le=2)] = 0.5,  # noqa: ARG001  read with the data
    uncertain: Annotated[float, Field(ge=0, le=1)] = 0.5,  # noqa: ARG001
) -> Tensor:
    """The least that the image's report says for any claim of the sentence (`claim_evidence`).

    ``always`` is the share of the training reports that must mention a finding for "not mentioned"
    to mean absent (above 1 no finding is); ``uncertain`` the confidence of an uncertain claim.
    """
    return image_with_text(claim_evidence(batch["stated"], batch["claims"]), anchors)


@register(
    "known",
    reads={"agreement", "text_ids"},
    formula="1 where a table says that image and sentence agree, else -1",
    paper="this project (oracle)",
)
def known(
    anchors: Anchors,
    batch: LossBatch,
    *,
    path: Path | None = None,  # noqa: ARG001  read with the data
) -> Tensor:
    """1 where the table says that the image agrees with the sentence, -1 where it does not.

    ``path`` as `medclip_debias.data.agreement` writes it.
    """
    agree = batch["agreement"][:, batch["text_ids"]]  # [I, T]
    return image_with_text(2.0 * agree - 1.0, anchors)


@register(
    "label",
    reads={"labels"},
    formula="1 where the labels of anchor and candidate are equal, or one shared",
    paper="Khosla et al. (2020); sample-specific debiasing (2023), table 1",
)
def label(
    anchors: Anchors,
    batch: LossBatch,
    *,
    match: Match = "equal",
    labels: tuple[str, ...] = CHEX5_NAMES,
    uncertain: Uncertain = "as_negative",
) -> Tensor:
    """1 where the labels of both studies are equal (or one is shared), 0 elsewhere."""
    return between_images(alike_by_labels(batch, match, labels, uncertain), anchors)


@register(
    "text",
    reads={"text_similarity"},
    formula="1 where cos(text_j, text_n) > threshold",
    paper="sample-specific debiasing (2023), table 1, as positives",
)
def text(
    anchors: Anchors, batch: LossBatch, *, threshold: Annotated[float, Field(ge=-1, le=1)] = 0.9
) -> Tensor:
    """1 where a sentence of the candidate is nearly the anchor's, 0 elsewhere.

    ``threshold`` is a cosine of frozen text embeddings.
    """
    return between_texts(batch["text_similarity"], anchors, batch) > threshold


@register("study", formula="1 where anchor and candidate are of one study", paper="this project")
def study(anchors: Anchors, batch: LossBatch) -> Tensor:  # noqa: ARG001
    """1 for further images and sentences of the own study, as every kind says; 0 elsewhere."""
    return torch.zeros_like(anchors.logits)
