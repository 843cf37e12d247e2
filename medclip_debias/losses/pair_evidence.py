"""Evidence about a pair: does what is known say that the image agrees with the sentence?

A kind of the folder ``evidence`` gives a number in [-1, 1] for every anchor and candidate: above 0
where they agree (a false negative, so a positive), below 0 where they contradict each other (a
hard negative), 0 where nothing is known. The policy ``weigh_by_evidence`` turns it into weights of
negatives, the objective ``multi_positive`` into targets::

    loss:
      kind: multi_positive
      core: {kind: infonce, negatives: [{kind: weigh_by_evidence, contradict: 2}]}
      evidence: {kind: claims}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor, nn

from medclip_debias.config import Settings, validate
from medclip_debias.losses.anchors import Anchors
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.registry import Chosen, Registry

# Streams of the batch's random numbers, apart from those of the policies that sample.
_STREAMS = {"text": 11, "image": 12, "view": 13}


class EvidenceSettings(Settings):
    """Base of the settings of every kind of evidence; each subclass names its ``kind``.

    ``control`` spoils the evidence for a comparison of equal dose: ``random`` deals each anchor's
    values out anew among its own negatives, ``permuted`` gives each anchor the values of another
    one. A gain that stays under a control does not come from the evidence.
    """

    kind: str = ""
    control: Literal["none", "random", "permuted"] = "none"


E = TypeVar("E", bound=EvidenceSettings)

EVIDENCE: Registry[type[PairEvidence[Any]]] = Registry(
    "evidence", "medclip_debias.losses.evidence", known="known kinds of evidence"
)


class PairEvidence(Chosen[E], nn.Module):
    """Base of every kind of evidence; it has no state.

    A subclass names its settings class in brackets, whose ``kind`` is its name in
    ``evidence: {kind: ...}``; the class attributes are those of `Chosen`.
    """

    registry: ClassVar[Registry[Any]] = EVIDENCE

    @property
    def whole_batch(self) -> str | None:
        """Why several processes cannot share the loss: a control deals out over all anchors."""
        control = self.settings.control
        return None if control == "none" else f"deals out evidence at random (control: {control})"

    @property
    def requires(self) -> frozenset[str]:
        """Optional fields of the batch that this evidence, so set, reads."""
        return self.reads | ({"seed"} if self.settings.control != "none" else frozenset())

    @property
    def reads(self) -> frozenset[str]:
        """Optional fields of the batch that this kind reads."""
        raise NotImplementedError

    def forward(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """``[A, C]`` in [-1, 1] at the negatives of each anchor, 0 elsewhere; no gradient.

        Candidates of the anchor's own study, where the batch has several images of one, agree by
        definition: its report is about all of them. No control deals that away.
        """
        with torch.no_grad():
            own = _of_own_study(anchors, batch)
            others = anchors.negatives if own is None else anchors.negatives & ~own
            value = self.values(anchors, batch).to(anchors.logits.dtype) * others
            control = self.settings.control
            if control != "none":
                generator = batch.generator(self.kind, _STREAMS[anchors.side])
                if control == "permuted":
                    rows = torch.randperm(len(value), generator=generator).to(value.device)
                    value = value[rows] * others
                else:
                    value = _dealt_out(value, others, generator)
            return value if own is None else torch.where(own & anchors.negatives, 1.0, value)

    def values(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """``[A, C]`` evidence of each pair; what lies outside the negatives does not matter."""
        raise NotImplementedError


def _of_own_study(anchors: Anchors, batch: ContrastiveBatch) -> Tensor | None:
    """``[A, C]`` bool, the candidate is of the anchor's study; None where each has one image."""
    studies = batch.study_of_image
    if studies is None or anchors.side == "view":
        return None
    rows, columns = anchors.images(batch)
    return studies[rows][:, None] == studies[columns][None, :]


def of_pairs(matrix: Tensor, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
    """``[A, C]`` entries of a matrix of images and sentences ``[I, T]``.

    A view stands for its image where it is an anchor or a candidate, and for its study's text
    on the other side.
    """
    rows, columns = anchors.images(batch)
    if anchors.side == "image":
        return matrix[rows][:, anchors.columns]
    return matrix.T[anchors.rows][:, columns]


def _dealt_out(values: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
    """Each row's ``values`` where ``mask`` in a random order; the row keeps all of them."""
    keys = torch.rand(values.shape, generator=generator).to(values.device)
    shuffled = torch.where(mask, keys, 2.0).argsort(dim=1)
    ordered = (~mask).to(torch.uint8).argsort(dim=1, stable=True)
    return torch.zeros_like(values).scatter(1, shuffled, values.gather(1, ordered)) * mask


def evidence_kinds() -> dict[str, type[PairEvidence[Any]]]:
    """All kinds of evidence by name, in alphabetical order."""
    return EVIDENCE.all()


def evidence_settings(content: Any, where: str, prefix: str = "evidence.") -> EvidenceSettings:
    """Validate an ``evidence`` entry by the kind it names.

    Args:
        content: mapping with a ``kind``, or settings that are validated already.
        where: file the entry came from, for the message.
        prefix: place in it, as ``loss.evidence.``.

    Raises:
        UserError: the kind is missing or unknown, or a setting of it is wrong.
    """
    if isinstance(content, EvidenceSettings):
        return content
    if not isinstance(content, Mapping):
        raise EVIDENCE.unknown(content, where, f"{prefix}kind")
    found = EVIDENCE.find(content.get("kind"), where, f"{prefix}kind")
    settings: EvidenceSettings = validate(found.settings_class, content, where, prefix)
    return settings


def build_evidence(settings: EvidenceSettings) -> PairEvidence[Any]:
    """Build the evidence of validated ``settings``."""
    return evidence_kinds()[settings.kind](settings)


def _entry(value: Any) -> Any:
    return evidence_settings(value, "evidence", "")


Evidence = Annotated[SerializeAsAny[EvidenceSettings], BeforeValidator(_entry)]
"""Field type of a choice of evidence, validated by the kind it names."""
