"""From an opened source to the chunks of a run: select, read reports and images."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data.executor import cpus
from medclip_debias.data.layout import TEMPLATE, short_hash
from medclip_debias.data.named_split import NamedSplit
from medclip_debias.data.prepare.chunks import Chunks, Job, Pool, Progress, Say, made_by
from medclip_debias.data.prepare.pixels import images_of_a_chunk, read_rows
from medclip_debias.data.prepare.previous import lend
from medclip_debias.data.prepare.reading import Reading
from medclip_debias.data.prepare.results import Results
from medclip_debias.data.prepare.select import TRAINING, Plan, select
from medclip_debias.data.prepare.studies import (
    CHUNK_STUDIES,
    EMPTY,
    MISSING,
    READ,
    UNREADABLE,
    Image,
    Part,
    Study,
    cut_reports,
    told_languages,
)
from medclip_debias.data.prepare.workspace import Workspace
from medclip_debias.data.records import ImageRecord, Source, StudyRecord
from medclip_debias.data.splits import check_leak
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.synthetic import is_phantom
from medclip_debias.data.templates import STATES, contradicted, label_sentences, sentences_of


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

    `open` gives it ``source`` and ``split``, `collect` and `stamp` then its ``plan``.
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
    source: Source = field(init=False)
    split: NamedSplit | None = field(init=False)
    plan: Plan = field(init=False)

    def __post_init__(self) -> None:
        self.pool = Pool(self.workers or cpus(), self.cluster, self.progress, self.say)
        self._unsaid: Counter[str] = Counter()
        self._contradicted: Counter[str] = Counter()
        self._labels: list[str] = []
        self._heads = 0

    def open(self) -> None:
        """Open the source."""
        self.source = self.reading.source(self.source_path)
        self.split = self.reading.split(self.source)
        self.pool.tell(*self.source.describe(), self.split.describe() if self.split else "")

    def asked(self) -> dict[str, Any]:
        """Return what the run is asked for and by which versions, as its set will repeat it."""
        return recipe(self.settings, self.selection, self.reading) | {"made_by": made_by()}

    def collect(self, work: Workspace, earlier: PreparedSet | None = None) -> tuple[Part, Plan]:
        """Read every header, report and image that is in no chunk of ``work`` yet.

        The plan comes without its images; the run keeps nothing of the source, which is half a
        gigabyte for a large one.

        Args:
            work: of the run.
            earlier: a set whose rows and sentences are taken where nothing changed.
        """
        shard = self.shard or (1, 1)
        how = {"source": str(self.source_path.resolve()), "kind": self.source.kind}
        self.pool.tell(work.follow(how | self.asked() | {"shard": list(shard)}))
        chunks = Chunks(work.chunks, self.settings.size**2)
        self._select(chunks)
        work.check_room(len(self.plan.images) * chunks.row_bytes // shard[1])
        if earlier is not None:
            pairs = zip(self.plan.images, self.plan.stamps, strict=True)
            selected = {(image.image_id, stamp) for image, stamp in pairs}
            lend(earlier, chunks, selected, self.reading.options(), self.pool)
        studies: list[Study] = []
        reports = self._read_reports(chunks, studies)
        part = Part(chunks, studies, self._labels, self._heads, reports, [])
        part = part._replace(images=self._read_images(part))
        plan = replace(self.plan, images=[], stamps=[])
        del self.source, self.plan
        return part, plan

    def stamp(self) -> str:
        """Return the hash that a set prepared from the source as it is now would have."""
        self._select(None)
        for _ in self._studies(self._images_by_study()):
            pass
        return self.plan.source_stamp(self._heads)

    def _select(self, chunks: Chunks | None) -> None:
        """Decide what is taken."""
        plan = select(
            self.source,
            self.selection,
            self.pool,
            chunks,
            self.split,
            all_test=self.reading.all_test,
        )
        about = {"kind": self.source.kind, "synthetic": is_phantom(self.source_path)}
        self.plan = replace(plan, meta=about | self.asked())

    # -------------------------------------------------------------------------- reports

    def _read_reports(self, chunks: Chunks, studies: list[Study]) -> list[str]:
        """Make the chunks of reports, and list the studies."""
        images = self._images_by_study()
        self.pool.expect(len(images) + sum(map(len, images.values())))

        def jobs() -> Iterator[Job]:
            for study, report in self._studies(images):
                studies.append(study)
                yield study.key, report

        cut = partial(cut_reports, self.reading.text, self.source.language)
        names = chunks.make("reports", jobs(), CHUNK_STUDIES, cut, self.pool)
        for what, counts in (
            ("Labels without a sentence", self._unsaid),
            ("Absent labels left unsaid, as a kind of them is there", self._contradicted),
        ):
            labels = ", ".join(f"{label} ({n:,})" for label, n in sorted(counts.items()))
            self.pool.tell(f"{what}, and their studies: {labels}." if labels else "")
        return names

    def _images_by_study(self) -> dict[str, list[Image]]:
        """The studies of this shard in order; the images of each."""
        boxed = {phrase.image_id for phrase in self.plan.phrases}
        studies: dict[str, list[Image]] = {}
        for at, (image, stamp) in enumerate(zip(self.plan.images, self.plan.stamps, strict=True)):
            entry = Image(at, image.image_id, image.view, image.image_id in boxed, stamp)
            studies.setdefault(image.study_id, []).append(entry)
        number, count = self.shard or (1, 1)
        return {study: studies[study] for study in list(studies)[number - 1 :: count]}

    def _studies(self, images: dict[str, list[Image]]) -> Iterator[tuple[Study, Any]]:
        """Every study, with its text or with the sentences that its labels say.

        A generator: the reports of a large source need a gigabyte.
        """
        self._heads = 0
        if not self.plan.text_only:
            for record in self.source.studies(images):
                of_study = images[record.study_id]
                at = of_study[0].at
                yield self._study(record, at, self.plan.images[at].split, of_study)
            return
        number, count = self.shard or (1, 1)
        held_out = set(self.plan.held_out)
        owners: list[ImageRecord] = []
        for at, record in enumerate(self.source.studies()):
            split = record.split
            if self.split is not None:
                split = self.split.studies.get(record.study_id, "")
            split = "test" if self.reading.all_test else split
            ids = record.study_id, record.study_id, record.patient_id
            owners.append(ImageRecord(*ids, Path(), "", split, record.origin))
            if at % count == number - 1:
                moves = record.patient_id in held_out and split in TRAINING
                yield self._study(record, at, "held_out" if moves else split, [])
        check_leak(owners)

    def _study(
        self, record: StudyRecord, at: int, split: str, images: list[Image]
    ) -> tuple[Study, str | list[Any]]:
        text, status, problem, wording = record.report or "", READ, record.problem, ""
        report: str | list[Any] = text
        if self.reading.label_sentences and not text.strip() and not problem:
            report = label_sentences(record.labels, record.study_id)
            wording = short_hash(json.dumps(report).encode())
            self._unsaid.update(
                label
                for label, value in record.labels.items()
                if value is not None and not any(sentences_of(label, s) for s in STATES.values())
            )
            self._contradicted.update(contradicted(record.labels))
            status = TEMPLATE if report else MISSING
        elif record.report is None:
            status = UNREADABLE if problem else MISSING
        elif not text.strip():
            status, problem = EMPTY, f"{record.origin}: the report is empty."
        else:
            problem = ""
        self._labels += [name for name in record.labels if name not in self._labels]
        study = Study(
            at=at,
            study_id=record.study_id,
            patient_id=record.patient_id,
            split=split,
            labels=[record.labels.get(name) for name in self._labels],
            report=status,
            problem=problem,
            stamp=short_hash(text.encode()) if text else "",
            wording=wording,
            images=images,
        )
        self._heads = (self._heads + study.head(record.labels)) % (1 << 128)
        return study, report

    # --------------------------------------------------------------------------- images

    def _read_images(self, part: Part) -> list[str]:
        results = Results([part], self.selection)
        self.pool.tell(told_languages(results.languages))
        self.pool.expect(len(results.images))
        size = images_of_a_chunk(self.settings.size)
        wanted = sorted(results.images.values())
        jobs = ((image.key, self.plan.images[image.at].path) for image in wanted)
        return part.chunks.make("images", jobs, size, partial(read_rows, self.settings), self.pool)
