"""A model folder, another group's or one of this project's, as the start of a training run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from medclip_debias.config import SimilaritySettings, StartSettings
from medclip_debias.errors import UserError
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.load import load_model
from medclip_debias.models.peers.fusion import SimilarityAttention
from medclip_debias.models.peers.peer import Peer

TrainableModel: TypeAlias = DualEncoder | Peer
"""What a run trains: two encoders, each a `medclip_debias.models.tower.Tower`."""

_UNTRAINABLE = {
    "words": "scores by words and regions as published; import it with --score whole",
    "none": "reads images alone; give its folder to model.image.weights of a new model",
}
"""Why a model whose text is read in such a form does not train."""
_NON_COMMERCIAL = re.compile(r"\bNC\b|non-?commercial", re.IGNORECASE)


@dataclass(frozen=True)
class Start:
    """Where a run's weights come from.

    ``imported`` are hashes of a peer's published files; ``scale`` is what scores are multiplied by
    at the first step, ``own_scale`` says whether it was learned; ``bias`` is SigLIP's;
    ``read_text`` says whether it was trained on text, which may be other than the run's.
    """

    folder: Path
    hash: str
    kind: str
    licence: str | None
    imported: dict[str, str]
    scale: float
    own_scale: bool
    score: str
    bias: float | None = None
    read_text: bool = True

    @property
    def provenance(self) -> dict[str, Any]:
        """What a run and its model say of the start: no path of this machine."""
        content: dict[str, Any] = {"hash": self.hash, "kind": self.kind, "licence": self.licence}
        return content | ({"imported": self.imported} if self.imported else {})

    def sentences(self) -> list[str]:
        """What a user is to know before the first step: the start, its licence, and the score."""
        named = f"starting from {self.folder} ({self.kind}, hash {self.hash})"
        if self.licence is None:
            said = "it names no licence: see that of its authors before you pass weights on"
        else:
            said = f"its licence is {self.licence}"
            if _NON_COMMERCIAL.search(self.licence):
                said += ": non-commercial, and so are weights trained from it"
        learned = "learned before" if self.own_scale else "which the start does not say"
        score = f"an image scores by {self.score}, times {self.scale:.4g} ({learned})"
        if self.bias is not None:
            score += f"; a pairwise sigmoid loss starts with its bias, {self.bias:.4g}"
        return [f"{named}; {said}", score]


def start_training(settings: StartSettings, where: str) -> tuple[TrainableModel, Start]:
    """Read the model that a run starts from, ready to be trained on."""
    folder, changed = settings.start_from, settings.similarity
    model = load_model(folder)
    assert isinstance(model, DualEncoder | Peer)
    if reason := _UNTRAINABLE.get(model.outputs.text_form):
        raise UserError(
            f"{where}: setting 'model.start_from' is {folder}, but that model {reason}."
        )
    longest = model.text_encoder.longest if isinstance(model, DualEncoder) else model.max_tokens
    if settings.max_tokens is not None and settings.max_tokens > longest:
        raise UserError(
            f"{where}: setting 'model.max_tokens' is {settings.max_tokens}, but the model in "
            f"{folder} reads at most {longest} tokens."
        )
    scale, bias = model.learned_scale, None
    if isinstance(changed, SimilaritySettings):
        if changed.aggregator == "local_words" and isinstance(model, Peer):
            raise UserError(
                f"{where}: setting 'model.similarity.aggregator' is 'local_words', but another"
                " group's model gives one vector a sentence and none of its words; choose another"
                " aggregator."
            )
        if reason := changed.misfit(model.dim):
            raise UserError(f"{where}: with model.start_from, setting model.{reason} of the model.")
    elif isinstance(model, Peer) and model.settings.bias is not None and scale is not None:
        # SigLIP's bias is smaller by as much as its scale lies above the bound of those trained
        # here: so all logits shrink alike, and no pair changes sides.
        bias = model.settings.bias * scale / (model.settings.scale or scale)
    own = not isinstance(changed, SimilaritySettings)
    model.begin_training(None if isinstance(changed, str) else changed, settings.max_tokens)
    score = "the cosine of its whole-image vector, as published"
    if isinstance(model, Peer) and isinstance(model.fusion, SimilarityAttention):
        score = "attention by cosine over its class token and regions, as published"
    if not model.outputs.has_whole:
        score = f"'{model.similarity.settings.aggregator}' of its regions"
        score += ", as the start" if own else ", unlike the start"
    provenance = model.provenance
    licence = provenance.get("licence", provenance.get("license"))
    imported, train = provenance.get("imported"), provenance.get("train")
    start = Start(
        folder=folder,
        hash=str(model.content_hash),
        kind=model.settings.kind if isinstance(model, Peer) else "medclip_debias",
        licence=licence if isinstance(licence, str) else None,
        imported=dict(imported) if isinstance(imported, dict) else {},
        scale=float(model.similarity.scale.detach()),
        own_scale=scale is not None,
        score=score,
        bias=bias,
        read_text=not isinstance(train, dict) or train.get("task") != "two_view",
    )
    return model, start
