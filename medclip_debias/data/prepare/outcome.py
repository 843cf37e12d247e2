"""What the chunks of one run, or of all parts of a set, hold: studies and rows, in order."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from medclip_debias.config import SelectionSettings
from medclip_debias.data.funnel import Funnel
from medclip_debias.data.layout import TEMPLATE
from medclip_debias.data.prepare.chunks import Chunks, Entry
from medclip_debias.data.prepare.select import TRAINING
from medclip_debias.data.text.languages import language

READ, MISSING, UNREADABLE, EMPTY = "read", "missing", "unreadable", "empty"
"""What became of a study's report."""


_UNUSED = {
    MISSING: "there is no report",
    UNREADABLE: "the report cannot be read",
    EMPTY: "the report is empty",
    READ: "the report has no usable section with a sentence",
}


class Image(NamedTuple):
    """A selected image, as the head of a report names it with its study.

    ``at`` is its place among the selected images, which orders everything; ``boxed`` says that it
    has grounded phrases.
    """

    at: int
    image_id: str
    view: str
    boxed: bool


class Part(NamedTuple):
    """The results of a run: its chunks, and the names of those of reports and images, in order."""

    chunks: Chunks
    reports: list[str]
    images: list[str]


def heads_of(parts: Sequence[Part]) -> str:
    """Return a hash of the heads of the studies of all parts."""
    names = ((part.chunks, name) for part in parts for name in part.reports)
    entries = (entry for chunks, name in names for entry in chunks.entries(name))
    return hash_of_heads(entry["head"] for entry in entries)


def hash_of_heads(heads: Iterable[Any]) -> str:
    """Return a hash of the heads of studies (JSON values); their order does not matter."""
    texts = (json.dumps(head, sort_keys=True, separators=(",", ":")).encode() for head in heads)
    digests = (hashlib.blake2b(text, digest_size=16).digest() for text in texts)
    return f"{sum(int.from_bytes(digest, 'big') for digest in digests) % (1 << 128):032x}"


def told_languages(reports: Mapping[str, int]) -> list[str]:
    """Return a sentence on the languages of reports, if they are not all English.

    >>> told_languages({"en": 3, "es": 2})
    ['Reports by language: 3 English, 2 Spanish.']
    """
    if not set(reports) - {"en"}:
        return []
    each = ", ".join(f"{n:,} {language(code).name}" for code, n in sorted(reports.items()))
    return [f"Reports by language: {each}."]


class Study(NamedTuple):
    """A study and where its sentences are: ``place`` in ``chunk`` of the reports of ``part``."""

    at: int
    part: int
    chunk: int
    place: int
    study_id: str
    patient_id: str
    split: str
    report: str
    stamp: str
    sentences: int
    images: list[Image]
    labels: tuple[float | None, ...]
    dropped: dict[str, int]
    words: dict[str, Any]


class Row(NamedTuple):
    """A row of the set and where it is: ``row`` in ``chunk`` of the images of ``part``."""

    at: int
    part: int
    chunk: int
    row: int
    height: int
    width: int
    hash: str
    stamp: str
    mended: str = ""


def wanted_images(
    head: dict[str, Any], sentences: Sequence[Any], selection: SelectionSettings
) -> list[Image]:
    """Return the images of a study that enter the set if they can be read."""
    images = [Image(*image) for image in head["images"]]
    if sentences:
        return images
    everything = selection.without_sentence == "keep"
    if selection.without_sentence == "drop" or (head["split"] == "train" and not everything):
        return []
    labelled = any(value is not None for value in head["labels"].values())
    if labelled and (everything or head["split"] in ("validate", "test")):
        return images
    return [image for image in images if image.boxed]


class Results:
    """Everything in the chunks but the sentences themselves.

    Attributes:
        studies: in order.
        rows: in order.
        images: by their place, each image that should have a row.
        labels: names of the labels; a study holds a value or ``None`` for each of the first.
        rejected: ``(image_id, reason)``, those whose report is to blame first; a study without
            images is named by its own id.

    """

    def __init__(self, parts: Sequence[Part], selection: SelectionSettings) -> None:
        self.parts = parts
        self._images_listed = 0
        self._cut: Counter[str] = Counter()
        self._words_used = 0
        self._aside: Counter[str] = Counter()
        self._aside_reports: Counter[str] = Counter()
        blamed: list[tuple[int, str, str]] = []
        self.studies: list[Study] = []
        self.labels: list[str] = []
        for number, part in enumerate(parts):
            for (chunk, place), entry in _all(part.chunks, part.reports):
                study = self._study((number, chunk, place), entry, selection)
                self.studies.append(study)
                self._images_listed += len(entry["head"]["images"])
                self._cut.update(entry["dropped"])
                self._words_used += entry["words"]["used"]
                self._aside.update(entry["words"]["aside"])
                self._aside_reports.update(entry["words"]["aside"].keys())
                if entry["head"]["problem"]:
                    blamed += _blamed(entry["head"], study)
        self.studies.sort()
        self.images = {image.at: image for study in self.studies for image in study.images}
        self.rows, unreadable = _rows(parts)
        both = [*sorted(blamed), *sorted(unreadable)]
        self.rejected = [(image_id, reason) for _, image_id, reason in both]

    @property
    def unused(self) -> list[tuple[str, str]]:
        """``(study_id, reason)`` of every study whose report gave no sentence."""
        return [(s.study_id, _UNUSED[s.report]) for s in self.studies if not s.sentences]

    @property
    def languages(self) -> dict[str, int]:
        """Reports that were read, by language; the most frequent first."""
        read = Counter(s.words.get("language", "en") for s in self.studies if s.report == READ)
        return dict(sorted(read.items(), key=lambda pair: (-pair[1], pair[0])))

    def count(self, funnel: Funnel, text_only: bool) -> list[Study]:
        """Count every step from the studies to the rows; return the studies of the set.

        Raises:
            UserError: a step left nothing.
        """

        def step(studies: list[Study], name: str, test: Callable[[Study], Any]) -> list[Study]:
            return funnel.keep(studies, name, "studies", test)

        funnel.example = self.rejected[0][1] if self.rejected else ""
        left = self._listed(funnel) if text_only else self.studies
        if not text_only:
            funnel.step("studies with such an image", "studies", len(self.studies))
        said = any(study.report == TEMPLATE for study in self.studies)
        name = (
            "study has a report, or labels that say its sentences" if said else "study has a report"
        )
        left = step(left, name, lambda s: s.report != MISSING)
        left = step(left, "report can be read", lambda s: s.report != UNREADABLE)
        left = step(left, "report is not empty", lambda s: s.report != EMPTY)
        left = step(left, "report has a usable section with a sentence", lambda s: s.sentences)
        # An archive without any report still has images with labels or boxes to evaluate on.
        silent = all(study.report == MISSING for study in self.studies)
        funnel.stop_if_empty(len(left) or (len(self.images) if silent else 0))
        funnel.start = 0 if left else len(funnel.rows)
        self._count_sections(funnel)
        kept = sum(study.sentences for study in self.studies)
        before = kept + self._cut.total()
        funnel.step("sentences after splitting", "sentences", before)
        for name in sorted(self._cut):
            left_over = before - self._cut[name]
            funnel.step(f"sentence is not dropped as '{name}'", "sentences", left_over, before)
            before = left_over
        if text_only:
            return left
        name = "study has a sentence, or labels or boxes for evaluation"
        funnel.step(name, "images", len(self.images), self._images_listed)
        funnel.step("image is readable", "images", len(self.rows), len(self.images))
        mended = Counter(row.mended for row in self.rows if row.mended)
        for what, count in sorted(mended.items()):
            funnel.step(f"image is read though {what}", "images", count)
        funnel.stop_if_empty(len(self.rows))
        readable = {row.at for row in self.rows}
        wanted = [study for study in self.studies if study.images]
        step_name = "study has a readable image"
        return step(wanted, step_name, lambda s: any(i.at in readable for i in s.images))

    def _count_sections(self, funnel: Funnel) -> None:
        """Count the words of each section that is left aside, so that a loss can be seen."""
        left = self._words_used + self._aside.total()
        funnel.step("words of the reports, headings aside", "words", left)
        for name, words in sorted(self._aside.items(), key=lambda pair: (-pair[1], pair[0])):
            reports = self._aside_reports[name]
            unit = f"words ({reports:,} report{'s' * (reports != 1)})"
            funnel.step(f"left aside: section '{name}'", unit, left - words, left)
            left -= words

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

    def _study(
        self, where: tuple[int, int, int], entry: dict[str, Any], selection: SelectionSettings
    ) -> Study:
        head = entry["head"]
        self.labels += [name for name in head["labels"] if name not in self.labels]
        return Study(
            at=head["at"],
            part=where[0],
            chunk=where[1],
            place=where[2],
            study_id=head["study"],
            patient_id=head["patient"],
            split=head["split"],
            report=head["report"],
            stamp=head["stamp"],
            sentences=len(entry["sentences"]),
            images=wanted_images(head, entry["sentences"], selection),
            labels=tuple(head["labels"].get(name) for name in self.labels),
            dropped=entry["dropped"],
            words=entry["words"],
        )


def _blamed(head: dict[str, Any], study: Study) -> list[tuple[int, str, str]]:
    """The images that are lost with a study's report; the study where there are no images."""
    wanted = {image.at for image in study.images}
    named = head["images"] or [[study.at, study.study_id]]
    return [(i[0], i[1], head["problem"]) for i in named if i[0] not in wanted]


def _rows(parts: Sequence[Part]) -> tuple[list[Row], list[tuple[int, str, str]]]:
    rows: list[Row] = []
    unreadable: list[tuple[int, str, str]] = []
    for number, part in enumerate(parts):
        row = 0
        for (chunk, place), entry in _all(part.chunks, part.images):
            at, image_id, stamp = entry["head"]
            row = row if place else 0
            if "reason" in entry:
                unreadable.append((at, image_id, entry["reason"]))
                continue
            size = entry["height"], entry["width"]
            mended = entry.get("mended", "")
            rows.append(Row(at, number, chunk, row, *size, entry["hash"], stamp, mended))
            row += 1
    return sorted(rows), unreadable


def _all(chunks: Chunks, names: Sequence[str]) -> Iterator[tuple[tuple[int, int], Entry]]:
    """Yield number of chunk and place, and the entry."""
    for chunk, name in enumerate(names):
        for place, entry in enumerate(chunks.entries(name)):
            yield (chunk, place), entry
