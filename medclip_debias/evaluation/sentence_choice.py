"""Which sentences an image is asked: what it shows, what its report denies, what is elsewhere.

Chosen by the digest of image and sentence, before anything is scored, so that two models, and two
machines, are asked the same. Those of validation images choose the rule that suppresses a sentence:
by what evidence, and below what value (`Choice`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.views import Views
from medclip_debias.errors import UserError
from medclip_debias.evaluation.decisions.probability import platt
from medclip_debias.evaluation.encoding import Network, encode
from medclip_debias.evaluation.metrics import auc
from medclip_debias.evaluation.offsets import MOST_IMAGES, prompt_offsets
from medclip_debias.evaluation.phrase_selection import VALIDATE, Phrase, Phrases
from medclip_debias.evaluation.protocol import HELD_OUT, items_by_row, judged, study_sentences
from medclip_debias.grounding.counterparts import Reader, StatedFindings
from medclip_debias.grounding.denials import normalised
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

Kind = Literal["boxed", "said", "denial", "elsewhere"]
ANNOTATED = "grounded_sentences"
"""PadChest-GR's table of all sentences, each marked abnormal or not by its readers."""
COUNTS = (
    *("images", "images_without_report", "boxed", "said", "said_found"),
    *("denial", "denial_found", "elsewhere", "elsewhere_found"),
)
RULE = (
    "denial: a sentence of the image's own report that says only that something is absent or "
    "normal, by the readers' mark where the set has one (PadChest-GR), else by the claims read in "
    "it; elsewhere: a sentence about findings that are all denied for this image, by its report "
    "or its labels, and may be there by neither. Of each kind those of lowest SHA-256 of image and "
    "sentence."
)


class Query(NamedTuple):
    """One sentence asked of the image in ``row``.

    Kinds ``boxed`` (its boxes are known, ``phrase`` is its number) and ``said`` (of the image's own
    report) are there; ``denial`` and ``elsewhere`` are not.
    """

    row: int
    text: str
    kind: Kind
    phrase: int = -1

    @property
    def there(self) -> bool:
        """Whether the image shows what the sentence says."""
        return self.kind in ("boxed", "said")


class Queries(NamedTuple):
    """The sentences of some images, in the order of the images.

    ``counts`` are of ``images`` (judged ones of the split or held out), ``images_without_report``,
    and of each kind how many ``_found`` and how many are asked.
    """

    queries: list[Query]
    counts: dict[str, int]


def choose(
    data: PreparedSet,
    split: str,
    per_image: int,
    reader: Reader,
    *,
    phrases: Phrases | None = None,
    views: Views = "frontal",
) -> Queries:
    """The sentences to ask of the images of a split.

    ``per_image`` limits each kind but ``boxed``, of which all are asked; without ``phrases``,
    sentences of the reports that affirm a finding are taken for ``said``.
    """
    splits = (split, HELD_OUT) if phrases is not None else (split,)
    rows = [row for row, name in enumerate(data.images["split"]) if name in splits]
    rows = judged(data, rows, views)
    of_study, studies = study_sentences(data), data.images["study_id"].astype(str).tolist()
    reports = {row: of_study.get(studies[row], []) for row in rows}
    marked = _marked(data)
    labelled = _labels(data, reader)
    boxed_on: dict[int, list[tuple[int, Phrase]]] = {}
    for number, phrase in enumerate(phrases.phrases if phrases else ()):
        boxed_on.setdefault(phrase.row, []).append((number, phrase))
    affirmed = {
        row: [t for t in texts if reader.states(t) and not marked.get(normalised(t), False)]
        for row, texts in reports.items()
    }
    candidates = [text for texts in affirmed.values() for text in texts]
    if phrases is not None:
        candidates = [phrase.text for phrase in phrases.phrases if phrase.groundable]
    distinct = {normalised(text): text for text in reversed(candidates)}
    # Distinct sentences that say that something is there, and what.
    pool = {t: reader.asserted(t) for t in sorted(distinct.values()) if reader.states(t)}
    counts = Counter(
        images=len(rows), images_without_report=sum(not texts for texts in reports.values())
    )
    queries: list[Query] = []
    names = data.images["image_id"]
    for row, report in reports.items():
        boxed = boxed_on.get(row, [])
        stated = labelled(StatedFindings.of(report, reader), row)
        there = {name for _, phrase in boxed for name in reader.asserted(phrase.text)}
        there |= {name for text in affirmed[row] for name in reader.asserted(text)}
        stated = StatedFindings(stated.there | there, stated.denied)
        choice: dict[Kind, Iterable[str]] = {
            "said": () if phrases is not None else affirmed[row],
            "denial": [t for t in report if marked.get(normalised(t), reader.denies(t))],
            "elsewhere": [t for t, findings in pool.items() if stated.lacks(findings)],
        }
        for number, phrase in boxed:
            kind_of: Kind = "boxed" if phrase.groundable else "denial"
            queries.append(Query(row, phrase.text, kind_of, number))
            counts[kind_of] += 1
        for kind, texts in choice.items():
            distinct = {normalised(text): text for text in reversed(list(texts))}
            by_digest = sorted(distinct.values(), key=partial(_digest, names.iloc[row]))
            queries += [Query(row, text, kind) for text in by_digest[:per_image]]
            counts[f"{kind}_found"] += len(distinct)
            counts[kind] += min(len(distinct), per_image)
    return Queries(queries, {name: counts[name] for name in COUNTS})


def _digest(image: str, text: str) -> str:
    return hashlib.sha256(f"{image}\n{text}".encode()).hexdigest()


def _marked(data: PreparedSet) -> dict[str, bool]:
    """Which sentences PadChest-GR's readers marked as not abnormal, if not both ways."""
    if ANNOTATED not in data.annotation_names:
        return {}
    table = data.annotations(ANNOTATED)
    marks: dict[str, set[bool]] = {}
    for text, abnormal in zip(table["text"], table["abnormal"], strict=True):
        marks.setdefault(normalised(str(text)), set()).add(not abnormal)
    return {text: next(iter(both)) for text, both in marks.items() if len(both) == 1}


def _labels(data: PreparedSet, reader: Reader) -> Callable[[StatedFindings, int], StatedFindings]:
    """Adds to what is told of an image what the labels of its study say: 0 denies.

    A label stands for the findings of the lexicon whose CheXpert label it is. Of one that is
    present or uncertain it is not said which of them it is: none of them is elsewhere.
    """
    names: dict[str, set[str]] = {}
    for name, finding in reader.lexicon.findings.items():
        if finding.chexpert and finding.chexpert in data.studies.columns:
            names.setdefault(finding.chexpert, set()).add(reader.lexicon.named(name))
    table = data.studies.set_index("study_id")[list(names)]
    values: Any = table.reindex(data.images["study_id"]).to_numpy(dtype=np.float64)

    def add(stated: StatedFindings, row: int) -> StatedFindings:
        there, denied = set(stated.there), set(stated.denied)
        for findings, value in zip(names.values(), values[row], strict=True):
            if value == 0:
                denied |= findings
            elif value in (1, -1):
                there |= findings
        return StatedFindings(frozenset(there), frozenset(denied))

    return add


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
        queries = [query for query in self.queries.queries if query.kind != "denial"]
        rows = sorted({query.row for query in queries})
        chosen = set(rows[:: max(1, -(-len(rows) // MOST_IMAGES))])
        self._asked = [query for query in queries if query.row in chosen]
        self._there = np.array([query.there for query in self._asked], dtype=bool)
        enough = min(self._there.sum(), (~self._there).sum()) >= FEWEST
        self.rows = frozenset(chosen) if enough else frozenset()
        asked = list(dict.fromkeys(query.text for query in self._asked))
        others = list(dict.fromkeys(str(text) for text in data.sentences["text"]))
        step = max(1, -(-len(others) // MOST_SENTENCES))
        self._level_texts = list(dict.fromkeys([*asked, *others[::step]])) if self.rows else []
        self._denial = {text: reader.negated(text) for text in asked} if self.rows else {}
        self.texts = list(dict.fromkeys([*self._level_texts, *self._denial.values()]))
        self._place = {text: number for number, text in enumerate(self.texts)}
        self._of_row = items_by_row(query.row for query in self._asked)
        self._scores: dict[int, Floats] = {}
        self._evidence_of: dict[int, dict[EvidenceKind, float]] = {}

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
            evidence = self._evidence.of(own, self._of(texts), denials)
            for column, number in enumerate(numbers):
                of_sentence = {kind: float(v[0, column]) for kind, v in evidence.items()}
                self._evidence_of[number] = of_sentence

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
            kind: np.array([self._evidence_of[number][kind] for number in range(len(there))])
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
        asked_kind = self.settings.evidence
        best = max(KINDS, key=lambda k: tried[k]["reached"])
        kind = best if asked_kind == "best" else asked_kind
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
