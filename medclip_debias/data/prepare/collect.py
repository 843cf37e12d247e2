"""From an opened source to the chunks of a run: select, read reports and images."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data.layout import TEMPLATE
from medclip_debias.data.named_split import NamedSplit
from medclip_debias.data.prepare.assemble import About
from medclip_debias.data.prepare.chunks import Chunks, Entry, Job, made_by
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
from medclip_debias.data.prepare.pixels import (
    KnownRow,
    images_of_a_chunk,
    read_rows,
    start_worker,
)
from medclip_debias.data.prepare.select import TRAINING, Plan, select
from medclip_debias.data.prepare.views import read_views
from medclip_debias.data.prepare.workspace import Workspace
from medclip_debias.data.records import ImageRecord, Source, StudyRecord, stated_language
from medclip_debias.data.splits import check_leak
from medclip_debias.data.synthetic import is_phantom
from medclip_debias.data.templates import STATES, label_sentences, sentences_of
from medclip_debias.data.text.reports import ReportSettings, report_sentences_counted

if TYPE_CHECKING:
    from medclip_debias.data.prepare.previous import Previous
    from medclip_debias.data.prepare.reading import Reading

_CHUNK_STUDIES = 64

Progress = Callable[[int, int], None]
Say = Callable[[str], None]


@dataclass
class Preparation:
    """One run up to its chunks.

    Attributes:
        source: opened.
        source_path: where it is.
        settings: how files become rows.
        selection: which images and studies are taken.
        reading: how the source is read.
        workers: processes.
        cluster: of `medclip_debias.data.executor.map_pieces`, in the place of processes.
        progress: called with (done, total).
        say: called with each sentence on what was found.
        plan: what was selected, once `start` or `stamp` was called.
        about: what the set will say of itself, from then on.
    """

    source: Source
    source_path: Path
    settings: PrepareSettings
    selection: SelectionSettings
    reading: Reading
    workers: int
    cluster: str | None
    progress: Progress | None
    say: Say | None
    plan: Plan = field(init=False)
    about: About = field(init=False)

    def __post_init__(self) -> None:
        self.done = self.total = 0
        self._unsaid: Counter[str] = Counter()
        self.split: NamedSplit | None = self.reading.split(self.source)
        self.tell(*self.source.describe(), self.split.describe() if self.split else "")

    def start(
        self, work: Workspace, *, earlier: Previous | None = None, shard: tuple[int, int] = (1, 1)
    ) -> Part:
        """Read every header, report and image that is in no chunk of ``work`` yet.

        Args:
            work: the folder of the run.
            earlier: a set whose rows and sentences are taken where nothing changed.
            shard: which part of the work is done, and of how many.
        """
        recipe = {
            "source": str(self.source_path.resolve()),
            "kind": self.source.kind,
            "settings": self.settings.model_dump(mode="json"),
            "selection": self.selection.model_dump(mode="json"),
            "options": self.reading.options(),
            "made_by": made_by(),
            "shard": list(shard),
            "update": earlier.content_hash if earlier is not None else None,
        }
        self.tell(work.follow(recipe))
        self._select(work.chunks)
        work.check_room(len(self.plan.images) * self.settings.size**2 // shard[1])
        reports = self._read_reports(work.chunks, shard, earlier)
        return Part(work.chunks, reports, self._read_images(work.chunks, reports, earlier))

    def stamp(self, shard: tuple[int, int] = (1, 1)) -> str:
        """Return the hash that a set prepared from the source as it is now would have."""
        self._select(None)
        jobs = self._report_jobs(self._images_by_study(shard), shard, None)
        return self.about.source_stamp(hash_of_heads(head for head, _ in jobs))

    def _select(self, chunks: Chunks | None) -> None:
        """Decide what is taken, and what the set will say of itself."""

        def views(images: list[ImageRecord], stamps: Mapping[str, str]) -> dict[str, str]:
            self.total += len(images)
            return read_views(
                images,
                stamps,
                chunks=chunks,
                workers=self.workers,
                cluster=self.cluster,
                advance=self._advance,
            )

        all_test = self.reading.all_test
        self.plan = select(self.source, self.selection, views, self.split, all_test=all_test)
        self.about = About(
            kind=self.source.kind,
            settings=self.settings,
            selection=self.selection,
            options=self.reading.options(),
            funnel=self.plan.funnel.rows,
            phrases=self.plan.phrases,
            annotations=self.plan.annotations,
            rejected=self.plan.rejected,
            missing=self.plan.missing,
            synthetic=is_phantom(self.source_path),
            text_only=self.plan.text_only,
            made_by=made_by(),
            selected=self.plan.stamp(),
            split=self.split,
        )

    # -------------------------------------------------------------------------- reports

    def _read_reports(
        self, chunks: Chunks, shard: tuple[int, int], earlier: Previous | None
    ) -> list[str]:
        studies = self._images_by_study(shard)
        self.total = self.done + len(studies) + sum(map(len, studies.values()))
        language = stated_language(self.source)
        names, _ = chunks.make(
            "reports",
            [self.reading.text.model_dump(mode="json"), language, *self.reading.wording().values()],
            self._report_jobs(studies, shard, earlier),
            _CHUNK_STUDIES,
            _cut_reports,
            workers=self.workers,
            cluster=self.cluster,
            advance=self._advance,
            start=_start_worker,
            start_args=(self.reading.text, language),
        )
        if self._unsaid:
            labels = ", ".join(f"{label} ({n:,})" for label, n in sorted(self._unsaid.items()))
            self.tell(f"Labels without a sentence, and their studies: {labels}.")
        return names

    def _images_by_study(self, shard: tuple[int, int]) -> dict[str, list[Image]]:
        """The studies of this shard in order; the images of each."""
        boxed = {phrase.image_id for phrase in self.plan.phrases}
        studies: dict[str, list[Image]] = {}
        for at, image in enumerate(self.plan.images):
            entry = Image(at, image.image_id, image.view, image.image_id in boxed)
            studies.setdefault(image.study_id, []).append(entry)
        chosen = list(studies)[shard[0] - 1 :: shard[1]]
        return {study: studies[study] for study in chosen}

    def _report_jobs(
        self,
        studies: dict[str, list[Image]],
        shard: tuple[int, int],
        earlier: Previous | None,
    ) -> Iterator[Job]:
        """Every study, with its text or with the sentences that an earlier set has of it.

        A generator: the reports of a large source need a gigabyte.
        """
        if not self.plan.text_only:
            for study in self.source.studies(studies):
                images = studies[study.study_id]
                split = self.plan.images[images[0].at].split
                yield self._report_job(study, images[0].at, split, images, earlier)
            return
        owners: list[StudyRecord] = []
        for at, study in enumerate(self._split_studies()):
            owners.append(replace(study, report=None, labels={}))
            if at % shard[1] == shard[0] - 1:
                moves = study.patient_id in self.plan.held_out and study.split in TRAINING
                split = "held_out" if moves else study.split
                yield self._report_job(study, at, split, [], earlier)
        check_leak([_owner(study) for study in owners])

    def _report_job(
        self, study: StudyRecord, at: int, split: str, images: list[Image], earlier: Previous | None
    ) -> Job:
        blank = not (study.report or "").strip() and not study.problem
        if self.reading.label_sentences and blank:
            said = label_sentences(study.labels, study.study_id)
            self._unsaid.update(
                label
                for label, value in study.labels.items()
                if value is not None and not any(sentences_of(label, s) for s in STATES.values())
            )
            head = _head(study, at, split, images, TEMPLATE if said else MISSING)
            return head, (said, {}, {"used": 0, "aside": {}})
        return _report_job(study, at, split, images, earlier)

    def _split_studies(self) -> Iterator[StudyRecord]:
        for study in self.source.studies():
            split = (
                study.split if self.split is None else self.split.studies.get(study.study_id, "")
            )
            split = "test" if self.reading.all_test else split
            yield replace(study, split=split)

    # --------------------------------------------------------------------------- images

    def _read_images(
        self, chunks: Chunks, reports: list[str], earlier: Previous | None
    ) -> list[str]:
        languages: Counter[str] = Counter()
        places = []
        for name in reports:
            for entry in chunks.entries(name):
                wanted = wanted_images(entry["head"], entry["sentences"], self.selection)
                places += [image.at for image in wanted]
                languages[entry["words"].get("language", "en")] += entry["head"]["report"] == READ
        places.sort()
        self.tell(*told_languages(+languages))
        self.total = self.done + len(places)
        names, damaged = chunks.make(
            "images",
            self.settings.model_dump(mode="json"),
            (self._image_job(at, earlier) for at in places),
            images_of_a_chunk(self.settings.size),
            read_rows,
            workers=self.workers,
            cluster=self.cluster,
            advance=self._advance,
            start=start_worker,
            start_args=(self.settings, earlier.rows_path if earlier is not None else None),
        )
        if damaged:
            self.tell(
                f"{chunks.folder}: {damaged} chunks of the interrupted run were not what it had"
                " written; their images were read again. Check the disk."
            )
        if earlier is not None:
            self._tell_damaged(chunks, names, earlier)
        return names

    def _tell_damaged(self, chunks: Chunks, names: list[str], earlier: Previous) -> None:
        rows = sum("damaged" in entry for name in names for entry in chunks.entries(name))
        if rows:
            self.tell(
                f"{earlier.rows_path}: {rows} of its rows were not what was prepared; their images"
                " were read again. Check the disk, and what was made with this set."
            )

    def _image_job(self, at: int, earlier: Previous | None) -> Job:
        image, stamp = self.plan.images[at], self.plan.stamps[at]
        known = earlier.row(image.image_id, stamp) if earlier is not None else None
        head = [at, image.image_id, stamp]
        return head, image.path if known is None else KnownRow(*known, image.path)

    def tell(self, *sentences: str) -> None:
        """Say what was found."""
        for sentence in sentences:
            if sentence and self.say is not None:
                self.say(sentence)

    def _advance(self, count: int) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total)


def _report_job(
    study: StudyRecord, at: int, split: str, images: list[Image], earlier: Previous | None
) -> Job:
    text = study.report or ""
    if study.report is None:
        status, problem = (UNREADABLE, study.problem) if study.problem else (MISSING, "")
    elif not text.strip():
        status, problem = EMPTY, f"{study.origin}: the report is empty."
    else:
        status, problem = READ, ""
    head = _head(study, at, split, images, status, problem)
    known = earlier.sentences(study.study_id, head["stamp"]) if earlier is not None else None
    return head, known or text


def _head(
    study: StudyRecord, at: int, split: str, images: list[Image], status: str, problem: str = ""
) -> dict[str, Any]:
    """What names the work of a study."""
    text = study.report or ""
    return {
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


_text_settings = ReportSettings()
_declared = "en"


def _start_worker(settings: ReportSettings, declared: str) -> None:
    global _text_settings, _declared
    _text_settings, _declared = settings, declared


def _cut_reports(jobs: list[Job]) -> tuple[list[Entry], None]:
    entries = []
    for head, report in jobs:
        if isinstance(report, str):
            cut = report_sentences_counted(report, _text_settings, _declared)
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
