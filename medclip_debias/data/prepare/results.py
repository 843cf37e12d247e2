"""What the chunks of one run, or of all parts of a set, hold: studies and rows, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from medclip_debias.config import SelectionSettings
from medclip_debias.data.funnel import Funnel
from medclip_debias.data.layout import TEMPLATE
from medclip_debias.data.prepare.chunks import Values
from medclip_debias.data.prepare.select import TRAINING
from medclip_debias.data.prepare.studies import EMPTY, MISSING, READ, UNREADABLE, Image, Part, Study

_UNUSED = {
    MISSING: "there is no report",
    UNREADABLE: "the report cannot be read",
    EMPTY: "the report is empty",
    READ: "the report has no usable section with a sentence",
}


class Row(NamedTuple):
    """A row of the set and where it is: ``row`` in ``chunk`` of ``part``."""

    at: int
    part: int
    chunk: str
    row: int
    height: int
    width: int
    hash: str
    mended: str


class Report(NamedTuple):
    """What became of a report, and where its sentences are: in ``chunk`` of ``part``."""

    part: int
    chunk: str
    sentences: int
    dropped: dict[str, int]
    words: dict[str, Any]


class Results:
    """Everything in the chunks but the sentences themselves.

    Attributes:
        parts: of the set.
        studies: in order.
        reports: of each study, by its id.
        images: by their place, each image that should have a row.
        rows: in order.
        rejected: ``(image_id, reason)``, those whose report is to blame first; a study without
            images is named by its own id.
    """

    def __init__(self, parts: Sequence[Part], selection: SelectionSettings) -> None:
        self.parts = parts
        self.studies = sorted((s for part in parts for s in part.studies), key=lambda s: s.at)
        keys = {study.key: study.study_id for study in self.studies}
        self.reports: dict[str, Report] = {}
        for part, chunk, values in _chunks(parts, "reports"):
            for key, value in values.items():
                if key in keys:
                    counts = len(value["sentences"]), value["dropped"], value["words"]
                    self.reports[keys[key]] = Report(part, chunk, *counts)
        blamed: list[tuple[int, str, str]] = []
        self.images: dict[int, Image] = {}
        for study in self.studies:
            wanted = study.wanted_images(self.reports[study.study_id].sentences > 0, selection)
            self.images |= {image.at: image for image in wanted}
            if study.problem:
                named = [image[:2] for image in study.images if image.at not in self.images]
                named = named if study.images else [(study.at, study.study_id)]
                blamed += [(*name, study.problem) for name in named]
        places = {image.key: image.at for image in self.images.values()}
        unreadable: list[tuple[int, str, str]] = []
        self.rows: list[Row] = []
        for part, chunk, values in _chunks(parts, "images"):
            for key, value in values.items():
                at = places.pop(key, None)
                if at is not None and "reason" in value:
                    unreadable.append((at, key[0], value["reason"]))
                elif at is not None:
                    self.rows.append(Row(at, part, chunk, **{"mended": "", **value}))
        self.rows.sort()
        self.rejected = [(name, why) for _, name, why in (*sorted(blamed), *sorted(unreadable))]

    @property
    def unused(self) -> list[tuple[str, str]]:
        """``(study_id, reason)`` of every study whose report gave no sentence."""
        silent = (study for study in self.studies if not self.reports[study.study_id].sentences)
        return [(study.study_id, _UNUSED[study.report]) for study in silent]

    @property
    def languages(self) -> dict[str, int]:
        """Reports that were read, by language; the most frequent first."""
        read = (self.reports[s.study_id] for s in self.studies if s.report == READ)
        counts = Counter(report.words.get("language", "en") for report in read)
        return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))

    def count(self, funnel: Funnel, text_only: bool) -> list[Study]:
        """Count every step from the studies to the rows; return the studies of the set."""

        def step(studies: list[Study], name: str, test: Callable[[Study], Any]) -> list[Study]:
            return funnel.keep(studies, name, "studies", test)

        funnel.example = self.rejected[0][1] if self.rejected else ""
        left = self._listed(funnel) if text_only else self.studies
        if not text_only:
            funnel.step("studies with such an image", "studies", len(self.studies))
        said = any(study.report == TEMPLATE for study in self.studies)
        name = "study has a report"
        left = step(
            left,
            name + ", or labels that say its sentences" if said else name,
            lambda s: s.report != MISSING,
        )
        left = step(left, "report can be read", lambda s: s.report != UNREADABLE)
        left = step(left, "report is not empty", lambda s: s.report != EMPTY)
        name = "report has a usable section with a sentence"
        left = step(left, name, lambda s: self.reports[s.study_id].sentences)
        # An archive without any report still has images with labels or boxes to evaluate on.
        silent = all(study.report == MISSING for study in self.studies)
        funnel.stop_if_empty(len(left) or (len(self.images) if silent else 0))
        funnel.start = 0 if left else len(funnel.rows)
        self._count_words(funnel)
        self._count_sentences(funnel)
        if text_only:
            return self._count_of(left, funnel)
        listed = sum(len(study.images) for study in self.studies)
        name = "study has a sentence, or labels or boxes for evaluation"
        funnel.step(name, "images", len(self.images), listed)
        funnel.step("image is readable", "images", len(self.rows), len(self.images))
        mended = Counter(row.mended for row in self.rows if row.mended)
        for what, count in sorted(mended.items()):
            funnel.step(f"image is read though {what}", "images", count)
        funnel.stop_if_empty(len(self.rows))
        wanted = [study for study in self.studies if any(i.at in self.images for i in study.images)]
        readable = {row.at for row in self.rows}
        name = "study has a readable image"
        left = step(wanted, name, lambda s: any(i.at in readable for i in s.images))
        return self._count_of(left, funnel)

    def _count_of(self, studies: list[Study], funnel: Funnel) -> list[Study]:
        """Count the sentences of studies that left the set since; return the others."""
        cut = sum(report.sentences for report in self.reports.values())
        kept = sum(self.reports[study.study_id].sentences for study in studies)
        if kept < cut:
            funnel.step("study of the sentence is in the set", "sentences", kept, cut)
        return studies

    def _count_words(self, funnel: Funnel) -> None:
        """Count the words of each section that is left aside, so that a loss can be seen."""
        aside: Counter[str] = Counter()
        reports: Counter[str] = Counter()
        for report in self.reports.values():
            aside.update(report.words["aside"])
            reports.update(report.words["aside"].keys())
        left = sum(report.words["used"] for report in self.reports.values()) + aside.total()
        funnel.step("words of the reports, headings aside", "words", left)
        for name, words in sorted(aside.items(), key=lambda pair: (-pair[1], pair[0])):
            unit = f"words ({reports[name]:,} report{'s' * (reports[name] != 1)})"
            funnel.step(f"skipped: section '{name}'", unit, left - words, left)
            left -= words

    def _count_sentences(self, funnel: Funnel) -> None:
        dropped: Counter[str] = Counter()
        for report in self.reports.values():
            dropped.update(report.dropped)
        left = sum(report.sentences for report in self.reports.values()) + dropped.total()
        funnel.step("sentences after splitting", "sentences", left)
        for name, count in sorted(dropped.items()):
            step = f"sentence is not dropped as '{name}'"
            funnel.step(step, "sentences", left - count, left)
            left -= count

    def _listed(self, funnel: Funnel) -> list[Study]:
        """Count what the selection counts by images where there are some."""
        funnel.step("studies listed", "studies", len(self.studies))
        known = funnel.keep(self.studies, "split is known", "studies", lambda study: study.split)
        funnel.stop_if_empty(len(known))
        moved = sum(study.split == "held_out" for study in known)
        if moved:
            before = moved + sum(study.split in TRAINING for study in known)
            name = "patient has no boxes (others move to held_out)"
            funnel.step(name, "train and validate studies", before - moved, before=before)
        return known


def _chunks(parts: Sequence[Part], kind: str) -> Iterator[tuple[int, str, Values]]:
    """Number of the part, name of the chunk, and what it holds."""
    for number, part in enumerate(parts):
        for name in part.reports if kind == "reports" else part.images:
            yield number, name, part.chunks.values(name)
