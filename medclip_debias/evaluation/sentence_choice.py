"""Which sentences an image is asked: what it shows, what its report denies, what is elsewhere.

Chosen by the digest of image and sentence, before anything is scored, so that two models, and two
machines, are asked the same.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from medclip_debias.data.views import Views
from medclip_debias.evaluation.phrase_selection import Phrase, Phrases
from medclip_debias.evaluation.protocol import HELD_OUT, judged, study_sentences
from medclip_debias.grounding.counterparts import Reader, StatedFindings
from medclip_debias.grounding.denials import normalised

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet

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
    shown: dict[int, list[tuple[int, Phrase]]] = {}
    for number, phrase in enumerate(phrases.phrases if phrases else ()):
        shown.setdefault(phrase.row, []).append((number, phrase))
    said = {
        row: [t for t in texts if reader.states(t) and not marked.get(normalised(t), False)]
        for row, texts in reports.items()
    }
    candidates = [text for texts in said.values() for text in texts]
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
        boxed = shown.get(row, [])
        told = labelled(StatedFindings.of(report, reader), row)
        held = {name for _, phrase in boxed for name in reader.asserted(phrase.text)}
        held |= {name for text in said[row] for name in reader.asserted(text)}
        told = StatedFindings(told.there | held, told.denied)
        choice: dict[Kind, Iterable[str]] = {
            "said": () if phrases is not None else said[row],
            "denial": [t for t in report if marked.get(normalised(t), reader.denies(t))],
            "elsewhere": [t for t, findings in pool.items() if told.lacks(findings)],
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
    """Which sentences (normalised) PadChest-GR's readers marked as not abnormal; {} for other sets.

    A sentence that is marked both ways, in two reports, is left to the claims.
    """
    if ANNOTATED not in data.annotation_names:
        return {}
    table = data.annotations(ANNOTATED)
    marks: dict[str, set[bool]] = {}
    for text, abnormal in zip(table["text"], table["abnormal"], strict=True):
        marks.setdefault(normalised(str(text)), set()).add(not abnormal)
    return {text: next(iter(found)) for text, found in marks.items() if len(found) == 1}


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

    def add(told: StatedFindings, row: int) -> StatedFindings:
        there, denied = set(told.there), set(told.denied)
        for findings, value in zip(names.values(), values[row], strict=True):
            if value == 0:
                denied |= findings
            elif value in (1, -1):
                there |= findings
        return StatedFindings(frozenset(there), frozenset(denied))

    return add
