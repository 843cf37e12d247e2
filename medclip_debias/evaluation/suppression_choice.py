"""Choosing what evidence suppresses a sentence, and below what value, on validation images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.errors import UserError
from medclip_debias.evaluation.decisions.probability import platt
from medclip_debias.evaluation.encoding import Network, encode
from medclip_debias.evaluation.metrics import auc
from medclip_debias.evaluation.offsets import MOST_IMAGES, prompt_offsets
from medclip_debias.evaluation.phrase_selection import VALIDATE
from medclip_debias.evaluation.protocol import items_by_row
from medclip_debias.evaluation.sentence_choice import Queries, choose
from medclip_debias.grounding.counterparts import Reader
from medclip_debias.grounding.settings import (
    KINDS,
    EvidenceKind,
    SuppressionRule,
    SuppressionSettings,
)
from medclip_debias.grounding.suppression import Evidence
from medclip_debias.models.sentences import one_vector

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.data.store import PreparedSet
    from medclip_debias.data.views import Views
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

Floats = NDArray[np.float64]
FEWEST = 20
"""Sentences that are there, and that are not, below which no threshold is chosen."""
MOST_SENTENCES = 2000
"""Sentences that the levels are fitted to."""


class Choice:
    """Gathers the evidence of validation images, then chooses a rule.

    ``rows`` are those of the images, at most `MOST_IMAGES`, evenly spaced; ``texts`` the sentences
    that are needed as vectors, each once. ``per_image`` limits the sentences of each kind.
    """

    def __init__(
        self,
        data: PreparedSet,
        settings: SuppressionSettings,
        per_image: int,
        reader: Reader,
        views: Views = "frontal",
    ) -> None:
        self.settings = settings
        self.queries: Queries = choose(data, VALIDATE, per_image, reader, views=views)
        told = [query for query in self.queries.queries if query.kind != "denial"]
        rows = sorted({query.row for query in told})
        chosen = set(rows[:: max(1, -(-len(rows) // MOST_IMAGES))])
        self._asked = [query for query in told if query.row in chosen]
        self._there = np.array([query.there for query in self._asked], dtype=bool)
        enough = min(self._there.sum(), (~self._there).sum()) >= FEWEST
        self.rows = frozenset(chosen) if enough else frozenset()
        said = list(dict.fromkeys(query.text for query in self._asked))
        others = list(dict.fromkeys(str(text) for text in data.sentences["text"]))
        step = max(1, -(-len(others) // MOST_SENTENCES))
        self._level_texts = list(dict.fromkeys([*said, *others[::step]])) if self.rows else []
        self._denial = {text: reader.negated(text) for text in said} if self.rows else {}
        self.texts = list(dict.fromkeys([*self._level_texts, *self._denial.values()]))
        self._place = {text: number for number, text in enumerate(self.texts)}
        self._of_row = items_by_row(query.row for query in self._asked)
        self._scores: dict[int, Floats] = {}
        self._found: dict[int, dict[EvidenceKind, float]] = {}

    def _of(self, texts: Iterable[str]) -> Tensor:
        return self._vectors[[self._place[text] for text in texts]]

    def begin(self, model: ImageTextModel, vectors: Tensor) -> None:
        """Take the vectors of `texts`."""
        self._model, self._vectors = model, vectors
        self._evidence = Evidence(model, KINDS) if self.rows else None

    def see(self, rows: Sequence[int], features: ImageFeatures) -> None:
        """Take the features of some images of `rows`."""
        if self._evidence is None:
            return
        for row, own in zip(rows, features, strict=True):
            scores = self._model.score(own, self._of(self._level_texts))
            self._scores[row] = scores[0].cpu().numpy().astype(np.float64)
            numbers = self._of_row[row]
            texts = [self._asked[number].text for number in numbers]
            denials = self._of(self._denial[text] for text in texts)
            found = self._evidence.of(own, self._of(texts), denials)
            for column, number in enumerate(numbers):
                self._found[number] = {kind: float(v[0, column]) for kind, v in found.items()}

    def rule(self, data_hash: str) -> SuppressionRule:
        """The rule, after every image was seen; without enough sentences, the words alone."""
        counts = {name: n for name, n in self.queries.counts.items() if not name.startswith("box")}
        about: dict[str, Any] = {"split": VALIDATE, **counts, "images_used": len(self.rows)}
        common = {"model_hash": self._model.content_hash, "data_hash": data_hash}
        if not self.rows:
            about["reason"] = (
                f"fewer than {FEWEST} sentences of the '{VALIDATE}' images are there, or are not"
            )
            return SuppressionRule(chosen=about, **common)
        there = self._there
        own = one_vector(self._vectors, self._model.outputs.sentence_rows)
        vectors = own.cpu().numpy().astype(np.float64)
        place = [self._place[text] for text in self._level_texts]
        scores = np.stack([self._scores[row] for row in sorted(self._scores)])
        scale = self._model.learned_scale
        levels = scores.mean(axis=0) if scale is None else prompt_offsets(scores, scale)
        weights, constant, explained = fit_level(vectors[place], levels)
        asked = vectors[[self._place[query.text] for query in self._asked]]
        values = {
            kind: np.array([self._found[number][kind] for number in range(len(there))])
            for kind in KINDS
        }
        values["offset"] = values["offset"] - (asked @ weights + constant)
        tried = {}
        for kind, of_kind in values.items():
            threshold = choose_threshold(of_kind, there, self.settings)
            kept, dropped = of_kind[there] >= threshold, of_kind[~there] < threshold
            reached = dropped if self.settings.aim == "kept" else kept
            tried[kind] = {
                "threshold": threshold,
                "kept": float(kept.mean()),
                "specificity": float(dropped.mean()),
                "auc": auc(there, of_kind),
                "reached": float(reached.mean()),
            }
        wanted = self.settings.evidence
        kind = max(KINDS, key=lambda k: tried[k]["reached"]) if wanted == "best" else wanted
        slope, intercept = platt(values[kind], there, balanced=True)
        about |= {
            "settings": self.settings.model_dump(mode="json"),
            "sentences_there": int(there.sum()),
            "sentences_elsewhere": int((~there).sum()),
            "level": {"sentences": len(place), "images": len(scores), "explained": explained},
            "tried": tried,
        }
        return SuppressionRule(
            evidence=kind,
            threshold=tried[kind]["threshold"],
            slope=slope,
            intercept=intercept,
            level=tuple(weights.tolist()) if kind == "offset" else (),
            level_constant=constant if kind == "offset" else 0.0,
            chosen=about,
            **common,
        )


def choose_threshold(
    values: Floats, there: NDArray[np.bool_], settings: SuppressionSettings
) -> float:
    """The threshold that holds the aim on these sentences and does best in the other respect.

    For ``kept`` the highest value at or above which a ``share`` of the sentences that are there
    lie; for ``specificity`` the lowest below which a share of the others do. What equals the
    threshold is kept.

    >>> values, there = np.array([0.1, 0.2, 0.3, 0.4]), np.array([False, True, False, True])
    >>> choose_threshold(values, there, SuppressionSettings(share=0.5))
    0.4
    """
    if settings.aim == "kept":
        own = np.sort(values[there])
        return float(own[int(np.floor((1 - settings.share) * own.size + 1e-9))])
    others = np.sort(values[~there])
    last = others[int(np.ceil(settings.share * others.size - 1e-9)) - 1]
    return float(np.nextafter(last, np.inf))


def fit_level(vectors: Floats, levels: Floats) -> tuple[Floats, float, float]:
    """Ridge regression of levels on sentence vectors, its penalty chosen by leaving one out.

    Returns:
        Weights ``[D]``, constant, and the share of the levels' variance that is explained for a
        sentence left out (at most 1; not above 0 where the vectors say nothing).
    """
    from sklearn.linear_model import RidgeCV

    machine = RidgeCV(alphas=np.logspace(-4, 2, 13)).fit(vectors, levels)
    spread = float(levels.var())
    explained = 1 + machine.best_score_ / spread if spread > 1e-20 else 0.0
    return machine.coef_, float(machine.intercept_), float(explained)


def choose_rule(
    model: ImageTextModel,
    data: PreparedSet,
    settings: SuppressionSettings | None = None,
    *,
    per_image: int = 4,
    batch_size: int = 64,
) -> SuppressionRule:
    """Choose a rule for a model on the validation images of a prepared set."""
    choice = Choice(data, settings or SuppressionSettings(), per_image, Reader())
    if not choice.rows:
        raise UserError(
            f"{data.folder}: the images of its split '{VALIDATE}' give too few sentences to choose"
            f" a threshold by ({choice.queries.counts['said']} that are there,"
            f" {choice.queries.counts['elsewhere']} that are not; {FEWEST} of each are needed);"
            " prepare more studies with reports."
        )
    encode(model, Network(model, data), [choice], batch_size=batch_size)
    return choice.rule(data.content_hash)
