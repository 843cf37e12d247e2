"""Studies of a run: what the source says of them, and the sentences of their reports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from medclip_debias.config import SelectionSettings
from medclip_debias.data.prepare.chunks import Chunks, Job, Key, Values
from medclip_debias.data.text.languages import language
from medclip_debias.data.text.reports import ReportSettings, report_sentences

CHUNK_STUDIES = 64
READ, MISSING, UNREADABLE, EMPTY = "read", "missing", "unreadable", "empty"
"""What became of a study's report, beside `medclip_debias.data.layout.TEMPLATE`."""


class Image(NamedTuple):
    """A selected image.

    ``at`` is its place among the selected images, which orders everything; ``boxed`` says that it
    has grounded phrases; ``stamp`` is of its file.
    """

    at: int
    image_id: str
    view: str
    boxed: bool
    stamp: str

    @property
    def key(self) -> Key:
        """Names its row."""
        return self.image_id, self.stamp


class Study(NamedTuple):
    """A study as the source has it, and its selected images.

    ``at`` orders the studies, ``labels`` are values of the first of the labels of its part,
    ``report`` says what became of the report and ``problem`` why it cannot be used, ``stamp`` is of
    its text, ``wording`` of sentences that labels say in its place.
    """

    at: int
    study_id: str
    patient_id: str
    split: str
    labels: Sequence[float | None]
    report: str
    problem: str
    stamp: str
    wording: str
    images: list[Image]

    @property
    def key(self) -> Key:
        """Names its sentences."""
        return self.study_id, self.stamp + self.wording

    def head(self, labels: Mapping[str, float | None]) -> int:
        """Return a hash of what a set depends on, but the text itself; hashes of studies add up.

        Times of change of the images' files are left out.
        """
        head = {
            "at": self.at,
            "study": self.study_id,
            "patient": self.patient_id,
            "split": self.split,
            "labels": labels,
            "report": self.report,
            "problem": self.problem,
            "stamp": self.stamp,
            "images": [image[:4] for image in self.images],
        }
        text = json.dumps(head, sort_keys=True, separators=(",", ":"))
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        return int.from_bytes(digest, "big")

    def wanted_images(self, sentences: bool, selection: SelectionSettings) -> list[Image]:
        """Return the images that enter the set if they can be read."""
        if sentences:
            return self.images
        everything = selection.without_sentence == "keep"
        if selection.without_sentence == "drop" or (self.split == "train" and not everything):
            return []
        labelled = any(value is not None for value in self.labels)
        if labelled and (everything or self.split in ("validate", "test")):
            return self.images
        return [image for image in self.images if image.boxed]


class Part(NamedTuple):
    """What a run made: its studies, the names of their labels and of the chunks it needs.

    ``heads`` is the sum of the studies' heads.
    """

    chunks: Chunks
    studies: list[Study]
    labels: list[str]
    heads: int
    reports: list[str]
    images: list[str]


def cut_reports(settings: ReportSettings, declared: str, jobs: list[Job]) -> tuple[Values, bytes]:
    """Cut the reports of a chunk into sentences; a list is of sentences already."""
    values: Values = {}
    for key, report in jobs:
        if isinstance(report, str):
            cut = report_sentences(report, settings, declared)
            words: dict[str, Any] = {"used": cut.used, "aside": cut.aside}
            if cut.language != "en":
                words["language"] = cut.language
            sentences, dropped = cut.sentences, dict(cut.dropped)
        else:
            sentences, dropped, words = report, {}, {"used": 0, "aside": {}}
        values[key] = {"sentences": sentences, "dropped": dropped, "words": words}
    return values, b""


def told_languages(reports: Mapping[str, int]) -> str:
    """Return a sentence on the languages of reports, if they are not all English.

    >>> told_languages({"en": 3, "es": 2})
    'Reports by language: 3 English, 2 Spanish.'
    """
    if not set(reports) - {"en"}:
        return ""
    each = ", ".join(f"{n:,} {language(code).name}" for code, n in sorted(reports.items()))
    return f"Reports by language: {each}."
