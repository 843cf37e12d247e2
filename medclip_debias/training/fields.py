"""What an objective asks for beside the similarities, gathered for each batch of a run.

`READERS` has a function of the run's data for each field of `ContrastiveBatch` that a run can give.
Its value has one row for each distinct sentence (axis ``text``), for each study (``image``), the
unit vector of each distinct sentence (``pair``), or is one value (``batch``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from medclip_debias.data.agreement import read_agreement
from medclip_debias.data.layout import STUDY_COLUMNS
from medclip_debias.data.loader import Batch, TrainingStudies
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.evidence import Evidence
from medclip_debias.errors import UserError
from medclip_debias.language.class_probability import eta_table, log_probabilities
from medclip_debias.losses.batch import FIELDS
from medclip_debias.losses.debiased import LanguageModelEta, TableEta
from medclip_debias.losses.keywords import load_keywords
from medclip_debias.losses.objective import LossSettings, Objective
from medclip_debias.models.start import TrainableModel
from medclip_debias.models.text_encoder import SentenceTokenizer, TextEncoder, token_mean


@dataclass(frozen=True)
class RunData:
    """What the readers read.

    Attributes:
        text_folder: folder that the text encoder starts from: scores must come from it unless
            the settings name another, and it gives the frozen text embeddings. None for a run that
            trains a model on, whose own sentence vectors at the start are taken.
        several_views: a batch may hold several images of one study.
        model: before its first step, where there is no ``text_folder``.
    """

    objective: Objective
    settings: LossSettings
    prepared: PreparedSet
    studies: TrainingStudies
    text_folder: Path | None
    max_tokens: int
    device: torch.device
    where: str
    several_views: bool = False
    model: TrainableModel | None = None

    def parts(self, *kinds: str) -> list[Any]:
        """Modules of the objective of these kinds."""
        return [part for part in self.objective.modules() if getattr(part, "kind", "") in kinds]

    @property
    def fields(self) -> frozenset[str]:
        """Fields that a batch needs, and those that it shall have if the data has them."""
        names = self.objective.requires
        if self.several_views:
            names |= {"study_of_image"}
        if names & {"labels", "sample_ids"}:  # diagnostics of per-sample state use labels
            names |= {"labels", "label_names"}
        return names

    @cached_property
    def label_table(self) -> pd.DataFrame | None:
        """Labels of each study of the set, None if it has none and the objective needs none."""
        studies = self.prepared.studies
        names = [name for name in studies.columns if name not in STUDY_COLUMNS]
        table = studies.set_index("study_id")[names]
        if names and table.notna().to_numpy().any():
            return table
        if "labels" not in self.objective.requires:
            return None
        raise UserError(
            f"{self.prepared.folder}: its studies have no labels, but the objective reads them; "
            "prepare the set from a source with a label table, or choose another policy."
        )

    @cached_property
    def evidence(self) -> tuple[Evidence, Any]:
        """The claims of the set, by the rules of the objective's settings."""
        claims = [part.settings for part in self.parts("claims")]
        if len({(settings.always, settings.uncertain) for settings in claims}) > 1:
            raise UserError(
                f"{self.where}: the evidence 'claims' is set with other values of 'always' or "
                "'uncertain' in two places; make them equal."
            )
        always = claims[0].always if claims[0].always <= 1 else ()
        return Evidence.open(self.prepared, always), claims[0]


def setting_of(loss: Any, name: str, place: str = "loss.") -> tuple[Any, str]:
    """The setting ``name`` of a loss or of its innermost core that has one; its place.

    None where there is none; the place is as ``loss.core.``.
    """
    inside = setting_of(loss.core, name, f"{place}core.") if hasattr(loss, "core") else (None, "")
    return (getattr(loss, name, None), place) if inside[0] is None else inside


def _log_prob(run: RunData) -> Tensor:
    eta, place = setting_of(run.settings, "eta")
    folder = eta.language_model if isinstance(eta, LanguageModelEta) else None
    folder = folder or run.text_folder
    if folder is None:
        raise UserError(
            f"{run.where}: setting '{place}eta.language_model' is missing; name the language model "
            "that scored the set, for model.start_from names none."
        )
    values = log_probabilities(run.prepared, run.studies.texts, folder)
    return torch.from_numpy(values).float()


def _eta(run: RunData) -> Tensor:
    eta, place = setting_of(run.settings, "eta")
    if not isinstance(eta, TableEta) or eta.path is None:
        raise UserError(
            f"{run.where}: setting '{place}eta.path' is missing; name the table of eta."
        )
    return torch.from_numpy(eta_table(eta.path, run.studies.texts)).float()


def _keywords(run: RunData) -> Tensor | None:
    words, place = setting_of(run.settings, "words")
    if words is None:
        return None
    classes = load_keywords(words).classify(run.studies.texts)
    if not any(classes):
        raise UserError(
            f"{run.where}: no sentence of the training set holds a word of the keyword list "
            f"'{words}'; choose another in '{place}words'."
        )
    return torch.tensor(classes)


def _text_vectors(run: RunData) -> Tensor:
    model, texts = run.model, run.studies.texts
    if run.text_folder is not None:
        return frozen_embeddings(run.text_folder, texts, run.max_tokens, run.device)
    assert model is not None  # of the run that starts from it, which puts it into training mode
    with torch.no_grad():
        return model.eval().encode_sentences(texts)


def _labels(run: RunData) -> Tensor | None:
    if run.label_table is None:
        return None
    rows = run.label_table.loc[study_ids(run.prepared, run.studies)]
    return torch.from_numpy(rows.to_numpy(dtype="float32", copy=True))


def _agreement(run: RunData) -> Tensor:
    """Rows of the training studies, columns of their distinct sentences; all tables joined."""
    names = study_ids(run.prepared, run.studies)
    known = np.zeros((len(names), len(run.studies.texts)), dtype=bool)
    for part in run.parts("remove_known", "known"):
        if part.settings.path is None:
            what = "policy" if part.kind == "remove_known" else "evidence"
            raise UserError(
                f"{run.where}: the {what} '{part.kind}' needs a 'path'; name its table."
            )
        known |= read_agreement(part.settings.path, run.studies.texts, names)
    return torch.from_numpy(known)


@dataclass(frozen=True, eq=False)
class StatedRows:
    """What the reports of the training studies state about every claim, looked up by batch.

    A matrix of all studies and claims would take gigabytes for a large archive.
    """

    evidence: Evidence
    numbers: NDArray[np.integer[Any]]
    uncertain: float
    device: torch.device

    def __getitem__(self, studies: Tensor) -> Tensor:
        """``[B, P]`` hundredths; see `ContrastiveBatch.stated`."""
        rows = self.evidence.stated(self.numbers[studies.numpy()], self.uncertain)
        return torch.from_numpy(rows).to(self.device, non_blocking=True)


def _stated(run: RunData) -> StatedRows:
    evidence, settings = run.evidence
    ids = pd.Index(run.prepared.studies["study_id"].astype(str))
    numbers = ids.get_indexer(pd.Index(study_ids(run.prepared, run.studies)))
    return StatedRows(evidence, numbers, settings.uncertain, run.device)


def _claims(run: RunData) -> Tensor:
    numbers = pd.Index(run.prepared.texts).get_indexer(pd.Index(run.studies.texts))
    return torch.from_numpy(run.evidence[0].claim_numbers(numbers))


def _graph(run: RunData) -> None:
    raise UserError(
        f"{run.where}: setting 'loss.graph' is 'given', which is for those who pass the "
        "matrix themselves; choose 'text' or 'labels'."
    )


Reader = Callable[[RunData], Any]
READERS: dict[str, Reader] = {
    "text_ids": lambda run: torch.arange(len(run.studies.texts)),
    "sample_ids": lambda run: torch.arange(len(run.studies)),
    "study_of_image": lambda run: torch.arange(len(run.studies)),
    "log_prob": _log_prob,
    "eta": _eta,
    "keywords": _keywords,
    "text_similarity": _text_vectors,
    "labels": _labels,
    "label_names": lambda run: None if run.label_table is None else tuple(run.label_table),
    "agreement": _agreement,
    "stated": _stated,
    "claims": _claims,
    "graph": _graph,
}
"""The reader of each field; None from one leaves the field out."""
OF_STEP = frozenset({"seed", "done"})
"""Fields that the step gives, not the run's data."""
_OF_IMAGES = {"sample_ids", "study_of_image", "labels", "label_names", "graph"}
OF_SENTENCES = frozenset(READERS) - _OF_IMAGES
"""What a two-view batch, which has no sentences, cannot give to an objective."""


class BatchFields:
    """The optional fields of `ContrastiveBatch` that an objective reads.

    Whatever belongs to a sentence is computed once for each distinct sentence of the run, and
    whatever belongs to a study once for each study; a batch only looks them up.

    Raises:
        UserError: the data lacks something that the objective reads.
    """

    def __init__(self, run: RunData) -> None:
        unknown = run.fields - {*READERS, *OF_STEP}
        if unknown:
            raise ValueError(f"the field '{min(unknown)}' has no reader in {__name__}")
        self.device = run.device
        self.of_step = run.fields & OF_STEP
        self.values: dict[str, Any] = {}
        for name, read in READERS.items():
            value = read(run) if name in run.fields else None
            if value is not None:
                self.values[name] = value.to(run.device) if isinstance(value, Tensor) else value

    def of(self, batch: Batch, seed: int, done: float = 0.0) -> dict[str, Any]:
        """The fields of one process's share, as `gather_batch` and `gather_views` take them.

        ``done``: share of the run's steps that lie before this one.
        """
        places = batch.studies[: len(batch.studies) // 2] if batch.two_view else batch.studies
        texts, studies = (x.to(self.device, non_blocking=True) for x in (batch.texts, places))
        step = {"seed": seed, "done": done}
        fields: dict[str, Any] = {name: step[name] for name in sorted(self.of_step)}
        for name, values in self.values.items():
            match FIELDS[name].axis:
                case "text":
                    fields[name] = values[texts]
                case "image":
                    on_processor = isinstance(values, StatedRows)
                    fields[name] = values[places if on_processor else studies]
                case "pair":  # the matrix is made of what is gathered
                    fields["text_vectors"] = values[texts]
                case "batch":
                    fields[name] = values
        return fields


_EXCLUDING = {"mask_same_study", "mask_identical_text", "remove_by_text", "weigh_by_evidence"}


def excludes_own_study(loss: Any) -> bool:
    """Whether a loss, by its settings, takes no image of an anchor's own study for a negative."""
    if loss.kind == "multi_positive" and loss.schedule is None and loss.weight == 1:
        return True
    if hasattr(loss, "core"):
        return excludes_own_study(loss.core)
    if loss.kind == "supcon" or getattr(loss, "positives", "pair") == "study":
        return True
    return any(
        policy.kind in _EXCLUDING and policy.schedule is None and not getattr(policy, "agree", 0)
        for policy in loss.negatives
    )


def study_ids(prepared: PreparedSet, studies: TrainingStudies) -> list[str]:
    """Id of each training study."""
    column = prepared.images["study_id"]
    return [str(column.iloc[rows[0]]) for rows in studies.rows]


@torch.no_grad()
def frozen_embeddings(
    folder: Path, texts: list[str], max_tokens: int, device: torch.device, group: int = 256
) -> Tensor:
    """Unit vectors ``[len(texts), width]`` of the untrained text encoder in ``folder``.

    CXR-BERT-specialized gives what its projection head was trained for; any other BERT the mean
    over a sentence's tokens, since its [CLS] vector was trained for nothing.
    """
    encoder = TextEncoder.from_folder(folder).to(device).eval()
    tokenizer = SentenceTokenizer.load(folder)
    encoded = tokenizer.encode(texts, max_tokens)
    # Sentences of like length share a batch, so that little of the work is padding.
    order = sorted(range(len(encoded)), key=lambda number: len(encoded[number]))
    result = torch.empty(len(texts), encoder.width, device=device)
    for start in range(0, len(order), group):
        chosen = order[start : start + group]
        ids, mask = (x.to(device) for x in tokenizer.pad([encoded[n] for n in chosen]))
        if encoder.head is not None:
            vectors = encoder(ids, mask)
        else:
            vectors = token_mean(encoder.hidden(ids, mask), mask)
        result[torch.tensor(chosen, device=device)] = F.normalize(vectors.float(), dim=-1)
    return result
