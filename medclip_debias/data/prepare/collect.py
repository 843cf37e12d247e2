"""From an opened source to the chunks of a run: select, read reports and images."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data.layout import TEMPLATE
from medclip_debias.data.named_split import NamedSplit
from medclip_debias.data.parallel import cpus
from medclip_debias.data.prepare.assemble import About
from medclip_debias.data.prepare.chunks import Chunks, Entry, Job, Pool, Progress, Say, made_by
from medclip_debias.data.prepare.outcome import (
    EMPTY,
    MISSING,
    READ,
    UNREADABLE,
    Image,
    Part,
    hash_of_heads,
    told_languages,
    wanted_images,
)
from medclip_debias.data.prepare.pixels import images_of_a_chunk, read_rows
from medclip_debias.data.prepare.reading import Reading
from medclip_debias.data.prepare.select import TRAINING, Plan, select
from medclip_debias.data.prepare.workspace import Workspace
from medclip_debias.data.records import ImageRecord, Source, StudyRecord, stated_language
from medclip_debias.data.splits import check_leak
from medclip_debias.data.synthetic import is_phantom
from medclip_debias.data.templates import STATES, label_sentences, sentences_of
from medclip_debias.data.text.reports import ReportSettings, report_sentences_counted

if TYPE_CHECKING:
    from medclip_debias.data.prepare.previous import Previous

_CHUNK_STUDIES = 64


def recipe(
    settings: PrepareSettings, selection: SelectionSettings, reading: Reading
) -> dict[str, Any]:
    """Return what a command asks for, as a finished set repeats it."""
    return {
        "settings": settings.model_dump(mode="json"),
        "selection": selection.model_dump(mode="json"),
        "options": reading.options(),
    }


@dataclass
class Preparation:
    """One run up to its chunks; its fields are what `medclip_debias.data.prepare.prepare` takes.

    `open` gives it ``source`` and ``split``, `start` and `stamp` then its ``plan`` and what the
    set will say ``about`` itself. Rows and sentences of an ``earlier`` set are taken where nothing
    changed.
    """

    source_path: Path
    settings: PrepareSettings
    shard: tuple[int, int] | None = None
    selection: SelectionSettings = field(default_factory=SelectionSettings)
    reading: Reading = field(default_factory=Reading)
    workers: int | None = None
    cluster: str | None = None
    progress: Progress | None = None
    say: Say | None = None
    earlier: Previous | None = None
    source: Source = field(init=False)
    split: NamedSplit | None = field(init=False)
    plan: Plan = field(init=False)
    about: About = field(init=False)

    def __post_init__(self) -> None:
        self.pool = Pool(self.workers or cpus(), self.cluster, self.progress, self.say)
        self._unsaid: Counter[str] = Counter()

    def open(self) -> None:
        """Open the source."""
        self.source = self.reading.source(self.source_path)
        self.split = self.reading.split(self.source)
        self.pool.tell(*self.source.describe(), self.split.describe() if self.split else "")

    def start(self, work: Workspace) -> Part:
        """Read every header, report and image that is in no chunk of ``work`` yet."""
        shard = self.shard or (1, 1)
        how = {
            "source": str(self.source_path.resolve()),
            "kind": self.source.kind,
            **recipe(self.settings, self.selection, self.reading),
            "made_by": made_by(),
            "shard": list(shard),
            "update": self.earlier.content_hash if self.earlier is not None else None,
        }
        self.pool.tell(work.follow(how))
        self._select(work.chunks)
        work.check_room(len(self.plan.images) * self.settings.size**2 // shard[1])
        reports = self._read_reports(work.chunks)
        return Part(work.chunks, reports, self._read_images(work.chunks, reports))

    def stamp(self) -> str:
        """Return the hash that a set prepared from the source as it is now would have."""
        self._select(None)
        jobs = self._report_jobs(self._images_by_study())
        return self.about.source_stamp(hash_of_heads(head for head, _ in jobs))

    def _select(self, chunks: Chunks | None) -> None:
        """Decide what is taken, and what the set will say of itself."""
        all_test = self.reading.all_test
        plan = select(self.source, self.selection, self.pool, chunks, self.split, all_test=all_test)
        self.plan = plan
        self.about = About(
            kind=self.source.kind,
            settings=self.settings,
            selection=self.selection,
            options=self.reading.options(),
            funnel=plan.funnel.rows,
            phrases=plan.phrases,
            annotations=plan.annotations,
            rejected=plan.rejected,
            missing=plan.missing,
            synthetic=is_phantom(self.source_path),
            text_only=plan.text_only,
            made_by=made_by(),
            selected=plan.stamp(),
            split=self.split,
        )

    # -------------------------------------------------------------------------- reports

    def _read_reports(self, chunks: Chunks) -> list[str]:
        studies = self._images_by_study()
        self.pool.expect(len(studies) + sum(map(len, studies.values())))
        text, language = self.reading.text, stated_language(self.source)
        names, _ = chunks.make(
            "reports",
            [text.model_dump(mode="json"), language, *self.reading.wording().values()],
            self._report_jobs(studies),
            _CHUNK_STUDIES,
            partial(_cut_reports, text, language),
            self.pool,
        )
        if self._unsaid:
            labels = ", ".join(f"{label} ({n:,})" for label, n in sorted(self._unsaid.items()))
            self.pool.tell(f"Labels without a sentence, and their studies: {labels}.")
        return names

    def _images_by_study(self) -> dict[str, list[Image]]:
        """The studies of this shard in order; the images of each."""
        boxed = {phrase.image_id for phrase in self.plan.phrases}
        studies: dict[str, list[Image]] = {}
        for at, image in enumerate(self.plan.images):
            entry = Image(at, image.image_id, image.view, image.image_id in boxed)
            studies.setdefault(image.study_id, []).append(entry)
        number, count = self.shard or (1, 1)
        return {study: studies[study] for study in list(studies)[number - 1 :: count]}

    def _report_jobs(self, studies: dict[str, list[Image]]) -> Iterator[Job]:
        """Every study, with its text or with the sentences that an earlier set has of it.

        A generator: the reports of a large source need a gigabyte.
        """
        if not self.plan.text_only:
            for study in self.source.studies(studies):
                images = studies[study.study_id]
                split = self.plan.images[images[0].at].split
                yield self._report_job(study, images[0].at, split, images)
            return
        number, count = self.shard or (1, 1)
        owners: list[StudyRecord] = []
        for at, study in enumerate(self._split_studies()):
            owners.append(replace(study, report=None, labels={}))
            if at % count == number - 1:
                moves = study.patient_id in self.plan.held_out and study.split in TRAINING
                yield self._report_job(study, at, "held_out" if moves else study.split, [])
        check_leak([_owner(study) for study in owners])

    def _report_job(self, study: StudyRecord, at: int, split: str, images: list[Image]) -> Job:
        text, status, problem = study.report or "", READ, ""
        known: tuple[Any, Any, Any] | None = None
        if self.reading.label_sentences and not text.strip() and not study.problem:
            sentences = label_sentences(study.labels, study.study_id)
            self._unsaid.update(
                label
                for label, value in study.labels.items()
                if value is not None and not any(sentences_of(label, s) for s in STATES.values())
            )
            status = TEMPLATE if sentences else MISSING
            known = sentences, {}, {"used": 0, "aside": {}}
        elif study.report is None:
            status, problem = (UNREADABLE, study.problem) if study.problem else (MISSING, "")
        elif not text.strip():
            status, problem = EMPTY, f"{study.origin}: the report is empty."
        head: dict[str, Any] = {
            "at": at,
            "study": study.study_id,
            "patient": study.patient_id,
            "split": split,
            "labels": study.labels,
            "report": status,
            "problem": problem,
            "stamp": hashlib.sha256(text.encode()).hexdigest()[:32] if text else "",
            "images": [list(image) for image in images],
        }
        if known is None and self.earlier is not None:
            known = self.earlier.sentences(study.study_id, head["stamp"])
        return head, known or text

    def _split_studies(self) -> Iterator[StudyRecord]:
        for study in self.source.studies():
            split = (
                study.split if self.split is None else self.split.studies.get(study.study_id, "")
            )
            split = "test" if self.reading.all_test else split
            yield replace(study, split=split)

    # --------------------------------------------------------------------------- images

    def _read_images(self, chunks: Chunks, reports: list[str]) -> list[str]:
        languages: Counter[str] = Counter()
        places = []
        for name in reports:
            for entry in chunks.entries(name):
                wanted = wanted_images(entry["head"], entry["sentences"], self.selection)
                places += [image.at for image in wanted]
                languages[entry["words"].get("language", "en")] += entry["head"]["report"] == READ
        places.sort()
        self.pool.tell(*told_languages(+languages))
        self.pool.expect(len(places))
        rows_path = self.earlier.rows_path if self.earlier is not None else None
        names, damaged = chunks.make(
            "images",
            self.settings.model_dump(mode="json"),
            map(self._image_job, places),
            images_of_a_chunk(self.settings.size),
            partial(read_rows, self.settings, rows_path),
            self.pool,
        )
        if damaged:
            self.pool.tell(
                f"{chunks.folder}: {damaged} chunks of the interrupted run were not what it had"
                " written; their images were read again. Check the disk."
            )
        if rows_path is not None:
            rows = sum("damaged" in entry for name in names for entry in chunks.entries(name))
            if rows:
                self.pool.tell(
                    f"{rows_path}: {rows} of its rows were not what was prepared; their images"
                    " were read again. Check the disk, and what was made with this set."
                )
        return names

    def _image_job(self, at: int) -> Job:
        image, stamp = self.plan.images[at], self.plan.stamps[at]
        known = self.earlier.row(image.image_id, stamp) if self.earlier is not None else None
        return [at, image.image_id, stamp], (image.path, known)


def _cut_reports(
    settings: ReportSettings, declared: str, jobs: list[Job]
) -> tuple[list[Entry], None]:
    entries = []
    for head, report in jobs:
        if isinstance(report, str):
            cut = report_sentences_counted(report, settings, declared)
            sentences, dropped = cut.sentences, cut.dropped
            words = {"used": cut.used, "aside": cut.aside}
            if cut.language != "en":
                words["language"] = cut.language
        else:  # of an earlier set
            sentences, dropped, words = report
        entry = {"head": head, "sentences": sentences, "dropped": dict(dropped), "words": words}
        entries.append(entry)
    return entries, None


def _owner(study: StudyRecord) -> ImageRecord:
    """A study as `check_leak` wants it."""
    ids = (study.study_id, study.study_id, study.patient_id)
    return ImageRecord(*ids, Path(), "", study.split, study.origin)
