"""One model on one card: plan, measure from vectors, and write the folder of its results."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.bench.card import Card
from medclip_debias.bench.models import without_places
from medclip_debias.bench.record import (
    RECORD,
    CardName,
    Figure,
    Judged,
    Record,
    read_record,
    write_record,
)
from medclip_debias.bench.sets import PLACES, CardImages
from medclip_debias.bench.vectors import CachedVectors
from medclip_debias.config import validate
from medclip_debias.data.label_maps import LabelMap, load_label_map
from medclip_debias.data.prompts import PromptSet, load_prompts
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.evaluation.catalogue import METRICS, PROTOCOLS, value_at
from medclip_debias.evaluation.evaluate import Planned, measure, plan
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.presets import chosen_presets
from medclip_debias.evaluation.protocol import Draw, Request
from medclip_debias.evaluation.protocols.zero_shot import ONE_VALUE
from medclip_debias.evaluation.provenance import versions
from medclip_debias.files import atomic_folder, read_json_or_none, write_json

if TYPE_CHECKING:
    from medclip_debias.models.interface import ImageTextModel

_BATCH = 64
"""Images whose vectors are looked at together."""

_INTERVALS = {metric.key: metric.interval_key for metric in METRICS}


@dataclass(frozen=True)
class Asked:
    """What a card asks of the evaluation, read and checked before any work is done.

    Attributes:
        protocols: that give its metrics.
        prompts: of the classes that are judged.
        options: of the evaluation, with the preset.
        label_map: what the archive's columns mean.
        files: beside the prepared set, by keyword of the request.
    """

    protocols: frozenset[str]
    prompts: PromptSet
    options: EvaluationOptions
    label_map: LabelMap | None
    files: Mapping[str, Any]

    @property
    def named_map(self) -> list[str] | None:
        """The label map as results name it."""
        return None if self.label_map is None else [self.label_map.name, self.label_map.digest]

    @classmethod
    def of(cls, card: Card, archive: Path) -> Asked:
        """Read what a card names.

        Raises:
            UserError: this version lacks something of it, or a file is not there.
        """
        protocols = frozenset(map(protocol_of, card.metrics))
        unknown = sorted(protocols - set(PROTOCOLS))
        if unknown:
            raise UserError(
                f"{card.full_name}: this version has no protocol"
                f" '{unknown[0]}'{did_you_mean(unknown[0], PROTOCOLS)}."
            )
        return cls(
            protocols,
            load_prompts(card.prompts or "chex5").only(card.classes),
            _options(card),
            None if card.label_map is None else load_label_map(card.label_map),
            _files(card, archive),
        )


@dataclass
class CardRun:
    """One model on one card, ready to be measured.

    Attributes:
        name: of the model.
        folder: of the model.
        card: what is measured.
        archive: where its images are.
        images: that are judged.
        planned: what is asked of the model.
    """

    name: str
    folder: Path
    card: Card
    archive: Path
    images: CardImages
    planned: Planned

    @classmethod
    def of(
        cls,
        name: str,
        folder: Path,
        model: ImageTextModel,
        card: Card,
        archive: Path,
        images: CardImages,
    ) -> CardRun:
        """Plan a card.

        Raises:
            UserError: the model, the set or this version of the program does not allow it.
        """
        if card.kind in PLACES and model.grid.rows * model.grid.columns < 2:
            raise UserError(
                f"{name}: gives one vector an image and no regions, and {card.full_name} asks where"
                " in an image a finding is."
            )
        asked = Asked.of(card, archive)
        request = Request(
            data=images.data,
            split=images.split,
            model=model,
            prompts=asked.prompts,
            options=asked.options,
            model_folder=folder,
            label_map=asked.label_map,
        )
        request = replace(request, **asked.files)
        return cls(name, folder, card, archive, images, plan(request, asked.protocols))

    @property
    def reads_regions(self) -> bool:
        """Whether the regions of its images are looked at."""
        return any(protocol.reads_regions for protocol in self.planned.protocols)

    def write(
        self, out: Path, vectors: CachedVectors, draw: Draw, seconds: Mapping[str, float]
    ) -> Record:
        """Measure, and write ``OUT/MODEL/CARD@VERSION`` as a whole.

        Raises:
            UserError: none of the card's metrics can be measured.
        """
        began = time.perf_counter()
        request, card = self.planned.request, self.card
        target = out / self.name / card.folder
        with _tidy(target.parent), atomic_folder(target) as temporary:
            results = measure(
                self.planned,
                temporary,
                draw,
                self.images.names,
                vectors=vectors.read(regions=self.reads_regions),
                batch_size=_BATCH,
            )
            places = {
                str(self.archive): "ARCHIVE",
                str(self.folder): "MODEL",
                str(request.data.folder): "SET",
                str(out): "RESULTS",
            }
            results = without_places(results, places)
            write_json(temporary / "results.json", results)
            aside = _classes_aside(card, request, results)
            metrics, reasons = figures(card, results)
            if not metrics:
                why = " ".join(dict.fromkeys(reasons.values()))
                raise UserError(f"{card.full_name}: none of its metrics can be measured. {why}")
            images = self.images
            record = Record(
                card=CardName(name=card.name, version=card.version, hash=card.content_hash),
                model_hash=str(request.model.content_hash),
                preset=card.preset,
                judged=Judged(
                    archive=card.data.archive,
                    set_hash=request.data.content_hash,
                    list_hash=images.list_hash,
                    wanted=len(images.listed),
                    found=len(images.found),
                    missing=images.missing,
                ),
                status="complete" if images.complete else "incomplete",
                metrics=metrics,
                reasons=reasons,
                notes=(*self._missing(), *aside, *results["notes"]),
                seconds={**seconds, "score": time.perf_counter() - began},
                versions=versions(),
                command=self._command(draw),
            )
            write_record(temporary, record)
        return record

    def _missing(self) -> list[str]:
        images = self.images
        if not images.missing:
            return []
        return [
            f"{images.missing} of the {len(images.listed)} images of the card's list are not on the"
            " disk, or cannot be read."
        ]

    def _command(self, draw: Draw) -> str:
        words = ["medclip-debias", "bench", f"{self.name}=MODEL", "--tasks", self.card.full_name]
        words += ["--data", "ROOT", "--out", "RESULTS"]
        words += [] if draw.resamples == Draw().resamples else ["--bootstrap", str(draw.resamples)]
        words += [] if draw.seed == Draw().seed else ["--seed", str(draw.seed)]
        return shlex.join(words)


@contextmanager
def _tidy(folder: Path) -> Iterator[None]:
    """Leave no empty folder of a model behind when its card fails."""
    try:
        yield
    finally:
        with suppress(OSError):  # it holds results
            folder.rmdir()


def finished(
    folder: Path, card: Card, asked: Asked, model_hash: str, images: CardImages, draw: Draw
) -> Record | None:
    """The record in a folder of results, if it is of these very inputs."""
    results = read_json_or_none(folder / "results.json")
    if not isinstance(results, Mapping) or not (folder / RECORD).is_file():
        return None
    try:
        record = read_record(folder)
    except UserError:  # damaged, or of another format: it is measured again
        return None
    same = (
        record.card == CardName(name=card.name, version=card.version, hash=card.content_hash)
        and record.model_hash == model_hash
        and record.judged.set_hash == images.data.content_hash
        and record.judged.list_hash == images.list_hash
        and record.judged.missing == images.missing
        and draw_of(results) == draw
        and results.get("prompts") == asked.prompts.model_dump(mode="json")
        and value_at(results, "options.label_map") == asked.named_map
        and not any(_changed(path) > _changed(folder / RECORD) for path in asked.files.values())
        and (folder / "items").is_dir()
    )
    return record if same else None


def _changed(path: Path) -> float:
    return path.stat().st_mtime


def draw_of(results: Mapping[str, Any]) -> Draw | None:
    """How the intervals of results were computed; None where they do not say."""
    resamples = value_at(results, "options.bootstrap.resamples")
    seed = results.get("seed")
    if not isinstance(resamples, int) or not isinstance(seed, int):
        return None
    return Draw(resamples, seed)


def figures(card: Card, results: Mapping[str, Any]) -> tuple[dict[str, Figure], dict[str, str]]:
    """The card's metrics with their intervals, and why others have no value."""
    found: dict[str, Figure] = {}
    reasons: dict[str, str] = {}
    for key in card.metrics:
        value = value_at(results, key)
        if not isinstance(value, int | float):
            why = results["skipped"].get(protocol_of(key), "these images allow no such metric.")
            reasons[key] = str(why)
            continue
        parent, _, last = key.rpartition(".")
        interval = value_at(results, _INTERVALS.get(key, f"{parent}.interval.{last}"))
        low, high = interval if isinstance(interval, list) and len(interval) == 2 else (None, None)
        found[key] = Figure(value=value, low=low, high=high)
    return found, reasons


def protocol_of(metric: str) -> str:
    """The protocol that gives a metric, by its key in ``results.json``.

    >>> protocol_of("grounding.miou"), protocol_of("presets.afloc.grounding.miou")
    ('grounding', 'grounding')
    """
    parts = metric.split(".")
    return parts[2] if parts[0] == "presets" and len(parts) > 2 else parts[0]


def _classes_aside(card: Card, request: Request, results: Mapping[str, Any]) -> list[str]:
    """Classes that no mean is over, in a sentence.

    Raises:
        UserError: the labels lack the column of one: they are of another version.
    """
    refused = (results.get("zero_shot") or {}).get("refused") or {}
    left_out = {} if request.label_map is None else request.label_map.reasons
    lacking = [n for n, r in refused.items() if r["reason"] != ONE_VALUE and n not in left_out]
    if lacking:
        raise UserError(
            f"{card.full_name}: the archive's labels have no column for {', '.join(lacking)}, so"
            " they are of another version than the card's; get the release that it names:"
            f" {card.data.obtain.rstrip('.')}."
        )
    each = [f"{name} ({found['reason'].rstrip('.')})" for name, found in refused.items()]
    return [f"Not judged, and in no mean: {', '.join(each)}."] if each else []


def _options(card: Card) -> EvaluationOptions:
    chosen_presets(card.preset)  # refused before any work
    content = {**card.options, "preset": card.preset}
    return validate(EvaluationOptions, content, f"card {card.full_name}", "options.")


def _files(card: Card, archive: Path) -> dict[str, Any]:
    """Files that the evaluation is given beside the set, by keyword."""
    found: dict[str, Any] = {}
    for keyword, name in card.data.files:
        if name is not None:
            path = archive / name
            if not path.is_file():
                raise UserError(
                    f"{path}: is not there, and {card.full_name} is measured with it; it comes"
                    f" with: {card.data.obtain.rstrip('.')}."
                )
            found[keyword] = path
    return found
