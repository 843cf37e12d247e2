"""What an objective asks for beside the similarities, gathered for each batch of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from medclip_debias.data.agreement import read_agreement
from medclip_debias.data.loader import Batch, TrainingStudies
from medclip_debias.data.store import STUDY_COLUMNS, PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.language.class_probability import eta_table, log_probabilities
from medclip_debias.losses.base import LossSettings, Objective
from medclip_debias.losses.eta import LanguageModelEta, TableEta
from medclip_debias.losses.keyword_supervision import KeywordSettings
from medclip_debias.losses.keywords import load_keywords
from medclip_debias.losses.remove_known import RemoveKnown
from medclip_debias.models.text_encoder import SentenceTokenizer, TextEncoder


class BatchFields:
    """The optional fields of `ContrastiveBatch` that an objective reads.

    Whatever belongs to a sentence is computed once for each distinct sentence of the run, and
    whatever belongs to a study once for each study; a batch only looks them up.

    Args:
        objective: says what it ``requires``.
        settings: of the objective.
        prepared: the run's data.
        studies: the studies it trains on.
        text_folder: folder that the text encoder starts from: scores must come from it unless
            the settings name another, and it gives the frozen text embeddings.
        max_tokens: longest sentence read.
        device: where the fields are to live.
        where: file of the settings, for messages.
        several_views: a batch may hold several images of one study.

    Raises:
        UserError: the data lacks something that the objective reads.
    """

    def __init__(
        self,
        objective: Objective,
        settings: LossSettings,
        *,
        prepared: PreparedSet,
        studies: TrainingStudies,
        text_folder: Path,
        max_tokens: int,
        device: torch.device,
        where: str,
        several_views: bool = False,
    ) -> None:
        self.needs = objective.requires
        self.several_views = several_views
        self.device = device
        self.per_text = self._per_text(settings, prepared, studies.texts, text_folder, where)
        self.vectors: Tensor | None = None
        if "text_similarity" in self.needs:
            vectors = frozen_embeddings(text_folder, studies.texts, max_tokens, device)
            self.vectors = vectors
        self.labels, self.label_names = self._labels(prepared, studies)
        self.agreement: Tensor | None = None
        if "agreement" in self.needs:
            self.agreement = self._agreement(objective, prepared, studies, where)
        if "graph" in self.needs:
            raise UserError(
                f"{where}: setting 'loss.graph' is 'given', which is for those who pass the "
                "matrix themselves; choose 'text' or 'labels'."
            )

    def of(self, batch: Batch, seed: int) -> dict[str, Any]:
        """The fields of one process's share, as `gather_batch` and `gather_views` take them.

        Args:
            batch: the share; with two views its fields have one entry an image.
            seed: of the step.
        """
        texts, studies = batch.texts.to(self.device), batch.studies.to(self.device)
        if batch.two_view:
            studies = studies[: len(studies) // 2]
        fields: dict[str, Any] = {name: values[texts] for name, values in self.per_text.items()}
        if "text_ids" in self.needs:
            fields["text_ids"] = texts
        if "sample_ids" in self.needs:
            fields["sample_ids"] = studies
        if self.several_views:
            fields["study_of_image"] = studies
        if "seed" in self.needs:
            fields["seed"] = seed
        if self.vectors is not None:
            fields["text_vectors"] = self.vectors[texts]
        if self.agreement is not None:
            fields["agreement"] = self.agreement[studies]
        if self.labels is not None:
            fields |= {"labels": self.labels[studies], "label_names": self.label_names}
        return fields

    def _per_text(
        self,
        settings: LossSettings,
        prepared: PreparedSet,
        texts: list[str],
        text_folder: Path,
        where: str,
    ) -> dict[str, Tensor]:
        values: dict[str, Any] = {}
        words = None
        place = "loss."
        while isinstance(settings, KeywordSettings):
            words, settings, place = settings.words, settings.core, place + "core."
        eta = getattr(settings, "eta", None)
        if "log_prob" in self.needs:
            folder = eta.language_model if isinstance(eta, LanguageModelEta) else None
            values["log_prob"] = log_probabilities(prepared, texts, folder or text_folder)
        if "eta" in self.needs:
            if not isinstance(eta, TableEta) or eta.path is None:
                raise UserError(
                    f"{where}: setting '{place}eta.path' is missing; name the table of eta."
                )
            values["eta"] = eta_table(eta.path, texts)
        result = {
            name: torch.from_numpy(value).float().to(self.device) for name, value in values.items()
        }
        if "keywords" in self.needs and words is not None:
            classes = load_keywords(words).classify(texts)
            if not any(classes):
                raise UserError(
                    f"{where}: no sentence of the training set holds a word of the keyword list "
                    f"'{words}'; choose another in '{place.removesuffix('core.')}words'."
                )
            result["keywords"] = torch.tensor(classes, device=self.device)
        return result

    def _agreement(
        self, objective: Objective, prepared: PreparedSet, studies: TrainingStudies, where: str
    ) -> Tensor:
        """Rows of the training studies, columns of their distinct sentences; all tables joined."""
        names = study_ids(prepared, studies)
        known = np.zeros((len(names), len(studies.texts)), dtype=bool)
        for policy in objective.modules():
            if isinstance(policy, RemoveKnown):
                if policy.settings.path is None:
                    raise UserError(
                        f"{where}: the policy '{policy.kind}' needs a 'path'; name its table."
                    )
                known |= read_agreement(policy.settings.path, studies.texts, names)
        return torch.from_numpy(known).to(self.device)

    def _labels(
        self, prepared: PreparedSet, studies: TrainingStudies
    ) -> tuple[Tensor | None, tuple[str, ...] | None]:
        """Labels of each study; also for policies with per-sample state, whose diagnostics use
        them.
        """
        if not self.needs & {"labels", "sample_ids"}:
            return None, None
        names = tuple(name for name in prepared.studies.columns if name not in STUDY_COLUMNS)
        table = prepared.studies.set_index("study_id")[list(names)]
        if "labels" not in self.needs and not (names and table.notna().to_numpy().any()):
            return None, None
        if not names or not table.notna().to_numpy().any():
            raise UserError(
                f"{prepared.folder}: its studies have no labels, but the objective reads them; "
                "prepare the set from a source with a label table, or choose another policy."
            )
        ids = study_ids(prepared, studies)
        values = torch.from_numpy(table.loc[ids].to_numpy(dtype="float32", copy=True))
        return values.to(self.device), names


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
            hidden = encoder.bert(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask[:, :, None].to(hidden.dtype)
            vectors = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
        result[torch.tensor(chosen, device=device)] = F.normalize(vectors.float(), dim=-1)
    return result
