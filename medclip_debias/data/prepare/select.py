"""Which images of a source enter the prepared set, by named policies, every step counted."""

from __future__ import annotations

import errno
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from medclip_debias.config import ALL_VIEWS, SelectionSettings, json_hash, plain_view
from medclip_debias.data.executor import chunks as cut
from medclip_debias.data.funnel import Funnel
from medclip_debias.data.images.headers import view_position
from medclip_debias.data.named_split import NamedSplit
from medclip_debias.data.prepare.chunks import Chunks, Job, Pool, Values
from medclip_debias.data.records import Annotations, ImageRecord, PhraseRecord, Source
from medclip_debias.data.sources.registry import formats
from medclip_debias.data.splits import check_leak
from medclip_debias.data.views import CLASSES, is_chosen, is_frontal, view_class
from medclip_debias.errors import UserError

TRAINING = ("train", "validate")
"""Splits that patients with boxes must leave."""

_CHUNK_HEADERS = 64


@dataclass(frozen=True)
class Plan:
    """What a run will do, known before the first report or image is read.

    Attributes:
        images: selected images; an image's place in this list orders everything that follows.
        stamps: size and time of change of each image's file.
        phrases: grounded phrases of the source.
        annotations: the archive's other tables.
        funnel: counts of the selection.
        rejected: ``(image_id, reason)`` of files that cannot even be looked at.
        missing: ``(image_id, path)`` of files that the source lists and that are not there.
        held_out: patients who must leave training, for the studies of a source without images.
        split: the split of the source's studies, where it has a name.
        listing: hash of what was selected; equal on two copies of the same source.
        selected: hash of the same and of the files' times of change.
        meta: how the source was read and prepared, as ``meta.json`` says it.
    """

    images: list[ImageRecord]
    stamps: list[str]
    phrases: list[PhraseRecord]
    annotations: list[Annotations]
    funnel: list[dict[str, Any]]
    rejected: list[tuple[str, str]]
    missing: list[tuple[str, str]]
    held_out: list[str]
    split: NamedSplit | None
    text_only: bool
    listing: str
    selected: str
    meta: dict[str, Any] = field(default_factory=dict)

    def source_stamp(self, heads: int) -> str:
        """Return a hash of what a set (or part) depends on: another file, another hash."""
        return json_hash([self.meta["kind"], self.selected, f"{heads % (1 << 128):032x}"])


def select(
    source: Source,
    settings: SelectionSettings,
    pool: Pool,
    chunks: Chunks | None = None,
    split: NamedSplit | None = None,
    *,
    all_test: bool = False,
) -> Plan:
    """Select the images of ``source``.

    Args:
        source: where they are.
        settings: policies.
        pool: where the view positions that no table holds are read from the files' headers.
        chunks: where they are kept for a run that is resumed.
        split: takes the place of the source's own; it names every study.
        all_test: every image is test, those too that the source gives no split.
    """
    funnel = Funnel()
    listed = source.images()
    funnel.step("images listed", "images", len(listed))
    for counted in source.steps():
        funnel.step(*counted)
    if split is not None:
        listed = [replace(image, split=split.studies.get(image.study_id, "")) for image in listed]
        funnel.step(
            f"study is in the split {split.name}", "studies of the split", len(split.studies)
        )
    if all_test and listed:
        patients = {image.patient_id for image in listed}
        tested = {image.patient_id for image in listed if image.split == "test"}
        funnel.step("is test (--all-test)", "images", len(listed))
        funnel.step("is test (--all-test)", "patients", len(patients))
        step = "was test by the source's split"
        funnel.step(step, "patients of test", len(tested), len(patients))
        listed = [replace(image, split="test") for image in listed]
    phrases = source.phrases()
    stamp_of: dict[str, str] = {}
    rejected: list[tuple[str, str]] = []
    missing: list[tuple[str, str]] = []

    def plan(images: list[ImageRecord], held_out: list[str]) -> Plan:
        stamps = [stamp_of[image.image_id] for image in images]
        annotations = source.annotations()
        digest = hashlib.sha256(repr([phrases, funnel.rows]).encode())
        for table in annotations:
            digest.update(repr(table).encode())
        for image, stamp in zip(images, stamps, strict=True):
            size = stamp.partition(":")[0]  # times of change differ between copies
            row = (image.image_id, image.study_id, image.patient_id, image.view, image.split, size)
            digest.update(repr(row).encode())
        listing = digest.hexdigest()[:16]
        return Plan(
            images=images,
            stamps=stamps,
            phrases=phrases,
            annotations=annotations,
            funnel=funnel.rows,
            rejected=rejected,
            missing=missing,
            held_out=held_out,
            split=split,
            text_only=not listed,
            listing=listing,
            selected=json_hash([listing, stamps, held_out]),
        )

    if not listed:
        return plan([], sorted(source.held_out_patients()))
    check_leak(listed)

    def keep(
        images: list[ImageRecord], step: str, test: Callable[[ImageRecord], Any]
    ) -> list[ImageRecord]:
        kept = funnel.keep(images, step, "images", test)
        funnel.stop_if_empty(len(kept))
        return kept

    def of_files(images: list[ImageRecord]) -> list[ImageRecord]:
        for image in images:
            try:
                status = image.path.stat()
                stamp_of[image.image_id] = f"{status.st_size}:{status.st_mtime_ns}"
            except (FileNotFoundError, NotADirectoryError, ValueError):  # the latter: NUL in a name
                missing.append((image.image_id, str(image.path)))
            except OSError as error:
                known = {errno.ELOOP: "its link leads back to itself"}
                reason = known.get(error.errno or 0, error.strerror or type(error).__name__)
                sentence = f"{image.path}: cannot be opened ({reason})."
                rejected.append((image.image_id, sentence))
        if not stamp_of:
            known_format = formats().get(source.kind)
            takes_text = known_format is None or "text_only" in known_format.takes
            alone = ", or give --text-only to prepare the reports alone" if takes_text else ""
            raise UserError(
                f"nothing is left of the source: the step 'image file is there' dropped"
                f" {len(images)} of {len(images)} images; for example, there is no"
                f" {images[0].path} (nor an image with that stem); correct the path of the"
                f" images{alone}."
            )
        return keep(images, "image file is there", lambda i: i.image_id in stamp_of)

    images = listed
    in_headers = any(image.view_in_header for image in images)
    if in_headers:  # a file that is not there has no header
        images = of_files(images)
        images = _with_views(images, stamp_of, pool, chunks, funnel)
    if settings.blank_view == "exclude":
        if in_headers and not any(image.view.strip() for image in images):
            table = (
                "put mimic-cxr-*-metadata.csv.gz (it comes with MIMIC-CXR-JPG) beside the folder"
                " 'files' or name its folder with --tables, or "
            )
            raise UserError(
                f"nothing is left of the source: none of its {len(images)} DICOM headers states a"
                f" view position; {table if source.kind == 'mimic_cxr' else ''}take every image"
                " with --blank-view include."
            )
        images = keep(images, "view is not blank", lambda i: bool(i.view.strip()))
    before = Counter(view_class(image.view) for image in images)
    asked = settings.views
    wider = any(plain_view(view) == ALL_VIEWS or not is_frontal(view, asked) for view in asked)
    step = "view is one of those asked for" if wider else "view is frontal"
    images = keep(images, step, lambda i: not i.view.strip() or is_chosen(i.view, asked))
    after = Counter(view_class(image.view) for image in images)
    for kind in filter(before.get, CLASSES):  # by what they show
        funnel.step(f"view is {kind}, asked for", "images by view", after[kind], before[kind])
    images = keep(images, "split is known", lambda i: bool(i.split))
    if not in_headers:
        images = of_files(images)
    boxed = {phrase.image_id for phrase in phrases}
    chosen = one_view(images, settings, boxed)
    if settings.multi_view != "all":
        step = f"chosen of its study's views ({settings.multi_view})"
        images = keep(images, step, lambda i: i.image_id in chosen)
    images = _hold_out(images, source.held_out_patients(), funnel)
    return plan(images, [])


def one_view(
    images: Sequence[ImageRecord], settings: SelectionSettings, boxed: set[str]
) -> set[str]:
    """Return the ids of the images that the multi-view policy keeps.

    Where it keeps one of a study, that is a frontal one if there is one. A study with a boxed
    image keeps all: dropping one would change the grounding benchmark.
    """
    studies: dict[str, list[ImageRecord]] = {}
    for image in images:
        studies.setdefault(image.study_id, []).append(image)
    kept: set[str] = set()
    for study, views in studies.items():
        if settings.multi_view == "all" or any(i.image_id in boxed for i in views):
            kept.update(image.image_id for image in views)
            continue
        views = [i for i in views if is_frontal(i.view, settings.views)] or views
        if settings.multi_view == "pa_first":
            first = next((i for i in views if plain_view(i.view).startswith("PA")), views[0])
            kept.add(first.image_id)
        else:
            # By the study's id, not a stream of random numbers: a source that grows moves nobody.
            ids = sorted(image.image_id for image in views)
            digest = hashlib.sha256(f"{settings.seed}:{study}".encode()).digest()
            kept.add(ids[int.from_bytes(digest[:8], "big") % len(ids)])
    return kept


def _with_views(
    images: list[ImageRecord],
    stamps: Mapping[str, str],
    pool: Pool,
    chunks: Chunks | None,
    funnel: Funnel,
) -> list[ImageRecord]:
    """Return the images with the views of their headers, where a header is what holds them."""
    unread = [image for image in images if image.view_in_header]
    jobs = (((image.image_id, stamps[image.image_id]), image.path) for image in unread)
    if chunks is None:
        made = (values for values, _ in pool.map(_read_headers, cut(jobs, _CHUNK_HEADERS)))
    else:
        pool.expect(len(unread))
        names = chunks.make("views", jobs, _CHUNK_HEADERS, _read_headers, pool)
        made = (chunks.values(name) for name in names)
    read = (item for values in made for item in values.items())
    views = {key[0]: value["view"] for key, value in read if stamps.get(key[0]) == key[1]}
    funnel.step("DICOM headers read for the view", "headers", len(views))
    funnel.step("header states the view", "headers", sum(map(bool, views.values())), len(views))
    return [
        replace(image, view=views[image.image_id]) if image.view_in_header else image
        for image in images
    ]


def _read_headers(jobs: list[Job]) -> tuple[Values, bytes]:
    return {key: {"view": view_position(path)} for key, path in jobs}, b""


def _hold_out(
    images: list[ImageRecord], patients: frozenset[str], funnel: Funnel
) -> list[ImageRecord]:
    """Move train and validate images of patients with boxes to ``held_out``."""
    if not patients:
        return images
    moved = [
        replace(image, split="held_out")
        if image.patient_id in patients and image.split in TRAINING
        else image
        for image in images
    ]
    before, after = (sum(i.split in TRAINING for i in records) for records in (images, moved))
    step = "patient has no boxes (others move to held_out)"
    funnel.step(step, "train and validate images", after, before=before)
    return moved
