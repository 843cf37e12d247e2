"""Which sentences an image is asked: what it shows, what its report denies, what is elsewhere.

Chosen by the digest of image and sentence, before anything is scored, so that two models, and two
machines, are asked the same.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from medclip_debias.data.views import Views
from medclip_debias.evaluation.phrase_selection import Phrases
from medclip_debias.evaluation.protocol import HELD_OUT, judged
from medclip_debias.grounding.counterparts import Reader, Told
from medclip_debias.grounding.denials import normalised

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet

Kind = Literal["boxed", "said", "denial", "elsewhere"]
ANNOTATED = "grounded_sentences"
"""PadChest-GR's table of all sentences, each marked abnormal or not by its readers."""
RULE = (
    "denial: a sentence of the image's own report that says only that something is absent or "
    "normal, by the readers' mark where the set has one (PadChest-GR), else by the claims read in "
    "it; elsewhere: a sentence about findings that are all denied for this image, by its report "
    "or its labels, and may be there by neither. Of each kind those of lowest SHA-256 of image and "
    "sentence."
)


@dataclass(frozen=True)
class Query:
    """One sentence asked of one image.

    Attributes:
        row: of the image.
        text: the sentence.
        kind: ``boxed`` (its boxes are known) and ``said`` (of the image's own report) are there;
            ``denial`` and ``elsewhere`` are not.
        phrase: number of the phrase, for ``boxed``.
    """

    row: int
    text: str
    kind: Kind
    phrase: int = -1

    @property
    def there(self) -> bool:
        """Whether the image shows what the sentence says."""
        return self.kind in ("boxed", "said")


@dataclass
class Queries:
    """The sentences of some images.

    Attributes:
        queries: in the order of the images.
        counts: ``images`` (frontal ones of the split or held out), ``images_without_report``,
            and of each kind how many ``_found`` and how many are asked.
    """

    queries: list[Query] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


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
    reports = _reports(data, rows)
    marked = _marked(data)
    labels = _Labels(data, reader)
    boxed: dict[int, list[int]] = {}
    for number, phrase in enumerate(phrases.phrases if phrases else ()):
        boxed.setdefault(phrase.row, []).append(number)
    said = {
        row: [
            t
            for t in reports.get(row, ())
            if reader.states(t) and not marked.get(normalised(t), False)
        ]
        for row in rows
    }
    candidates = [text for texts in said.values() for text in texts]
    if phrases is not None:
        candidates = [phrase.text for phrase in phrases.phrases if phrase.groundable]
    distinct = {normalised(text): text for text in reversed(candidates)}
    # Distinct sentences that say that something is there, and what.
    pool = {t: reader.asserted(t) for t in sorted(distinct.values()) if reader.states(t)}
    counts: Counter[str] = Counter(
        images=len(rows), images_without_report=sum(row not in reports for row in rows)
    )
    found = Queries()
    names = data.images["image_id"]
    for row in rows:
        image = str(names.iloc[row])
        own = reports.get(row, ())
        told = labels.add(Told.of(own, reader), row)
        shown = [phrases.phrases[number] for number in boxed.get(row, ())] if phrases else []
        held = {name for phrase in shown for name in reader.asserted(phrase.text)}
        held |= {name for text in said[row] for name in reader.asserted(text)}
        told = Told(told.there | held, told.denied)
        choice: dict[Kind, Iterable[str]] = {
            "said": () if phrases is not None else said[row],
            "denial": [t for t in own if marked.get(normalised(t), reader.denies(t))],
            "elsewhere": [t for t, names_of in pool.items() if told.lacks(names_of)],
        }
        for number in boxed.get(row, ()):
            own_phrase = shown[boxed[row].index(number)]
            kind_of: Kind = "boxed" if own_phrase.groundable else "denial"
            found.queries.append(Query(row, own_phrase.text, kind_of, number))
            counts[kind_of] += 1
        for kind, texts in choice.items():
            distinct = {normalised(text): text for text in reversed(list(texts))}
            digests = {
                t: hashlib.sha256(f"{image}\n{t}".encode()).hexdigest() for t in distinct.values()
            }
            chosen = sorted(digests, key=digests.__getitem__)[:per_image]
            found.queries += [Query(row, text, kind) for text in chosen]
            counts[f"{kind}_found"] += len(distinct)
            counts[kind] += len(chosen)
    found.counts = {
        name: counts[name]
        for name in (
            *("images", "images_without_report", "boxed", "said", "said_found"),
            *("denial", "denial_found", "elsewhere", "elsewhere_found"),
        )
    }
    return found


def _reports(data: PreparedSet, rows: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """The distinct sentences of each image's report, where there is one."""
    studies = data.images["study_id"]
    wanted = {str(studies.iloc[row]) for row in rows}
    table = data.sentences[data.sentences["study_id"].isin(wanted)]
    texts: dict[str, dict[str, None]] = {}
    for study, text in zip(table["study_id"], table["text"], strict=True):
        texts.setdefault(str(study), {})[str(text)] = None
    own = {row: texts.get(str(studies.iloc[row])) for row in rows}
    return {row: tuple(found) for row, found in own.items() if found}


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


class _Labels:
    """What the labels of a study say of the findings of the lexicon.

    A label stands for the findings whose CheXpert label it is.
    """

    def __init__(self, data: PreparedSet, reader: Reader) -> None:
        lexicon = reader.lexicon
        names: dict[str, set[str]] = {}
        for name, finding in lexicon.findings.items():
            if finding.chexpert:
                names.setdefault(finding.chexpert, set()).add(lexicon.named(name))
        known = [label for label in names if label in data.studies.columns]
        self._names = [frozenset(names[label]) for label in known]
        self._all = lexicon
        table = data.studies.set_index("study_id")[known]
        self._values: Any = table.reindex(data.images["study_id"]).to_numpy(dtype=np.float64)

    def add(self, told: Told, row: int) -> Told:
        """``told``, and what the labels say: 0 denies, 1 and -1 (uncertain) may be there."""
        there, denied = set(told.there), set(told.denied)
        for names, value in zip(self._names, self._values[row], strict=True):
            if value == 0:
                denied |= names
            elif value in (1, -1):
                # Which of the label's findings it is, is not said: none of them is elsewhere.
                there |= names
        return Told(frozenset(there), frozenset(denied))
