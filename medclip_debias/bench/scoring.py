"""One model on one card: what is asked of it, what it reached, and the folder that holds that."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from medclip_debias.bench.card import Card
from medclip_debias.bench.images import PLACES, CardImages, CardInputs
from medclip_debias.bench.record import (
    RECORD,
    RESULTS,
    Figure,
    Judged,
    Record,
    read_record,
    without_places,
)
from medclip_debias.bench.vectors import CachedVectors
from medclip_debias.data.label_maps import LabelMap
from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import address
from medclip_debias.evaluation.encoding import Progress
from medclip_debias.evaluation.evaluate import Planned, measure, plan
from medclip_debias.evaluation.protocol import Draw, Request
from medclip_debias.evaluation.protocols.zero_shot import ONE_VALUE
from medclip_debias.evaluation.provenance import versions
from medclip_debias.evaluation.table import Results, read_results
from medclip_debias.files import atomic_folder, write_json
from medclip_debias.grounding.saliency import with_maps

if TYPE_CHECKING:
    from medclip_debias.models.interface import ImageTextModel

_BATCH = 64
"""Images whose vectors are looked at together."""


@dataclass
class CardRun:
    """One model on one card."""

    name: str
    folder: Path
    model: ImageTextModel
    inputs: CardInputs
    images: CardImages
    planned: Planned = field(init=False)

    @property
    def card(self) -> Card:
        """What is asked."""
        return self.inputs.card

    def plan(self) -> None:
        """See what is asked of the model."""
        grid = self.model.grid
        if self.card.kind in PLACES and grid.rows * grid.columns < 2:
            raise UserError(
                f"{self.name}: gives one vector per image and no regions, but {self.card.full_name}"
                " asks where in an image a finding is."
            )
        request = Request(
            data=self.images.data,
            split=self.images.split,
            model=with_maps(self.model, self.inputs.options.method),
            prompts=self.inputs.prompts,
            options=self.inputs.options,
            model_folder=self.folder,
            label_map=self.inputs.label_map,
            **self.inputs.files,
        )
        self.planned = plan(request, self.inputs.protocols)

    @property
    def reads_regions(self) -> bool:
        """Whether the regions of its images are looked at."""
        return any(protocol.reads_regions for protocol in self.planned.protocols)

    def finished(self, out: Path, draw: Draw) -> Record | None:
        """The record in ``OUT/MODEL/CARD@VERSION``, if it is of these very inputs."""
        folder = out / self.name / self.card.folder
        try:
            results, record = read_results(folder / RESULTS), read_record(folder)
        except UserError:  # damaged, or of another format: it is measured again
            return None
        label_map = self.inputs.label_map
        same = (
            record.card == self.card.measured
            and record.model_hash == self.model.content_hash
            and record.judged.set_hash == self.images.data.content_hash
            and record.judged.list_hash == self.images.list_hash
            and record.judged.missing == self.images.missing
            and results.resamples == draw.resamples
            and results.get("seed") == draw.seed
            and results.get("prompts") == self.inputs.prompts.model_dump(mode="json")
            and results["options"].get("label_map")
            == (None if label_map is None else [label_map.name, label_map.digest])
            # A copy keeps the time of its content; when it came here is the time of its change.
            and all(
                max(path.stat().st_mtime, path.stat().st_ctime) <= (folder / RECORD).stat().st_mtime
                for path in self.inputs.files.values()
            )
            and (folder / "items").is_dir()
        )
        return record if same else None

    def write(
        self, out: Path, vectors: CachedVectors, draw: Draw, progress: Progress | None = None
    ) -> Record:
        """Measure, and write ``OUT/MODEL/CARD@VERSION`` as a whole."""
        began, encoded_before = time.perf_counter(), vectors.seconds
        card, images = self.card, self.images
        target = out / self.name / card.folder
        kept = None  # maps that explain a score need images themselves
        if self.inputs.options.method == "similarity":
            kept = vectors.of_card(self.planned.rows, regions=self.reads_regions)
        with _removed_if_empty(target.parent), atomic_folder(target) as temporary:
            results = measure(
                self.planned,
                temporary,
                draw,
                images.names,
                vectors=kept,
                batch_size=_BATCH,
                progress=progress,
            )
            places = {
                str(self.inputs.archive): "ARCHIVE",
                str(self.folder): "MODEL",
                str(images.data.folder): "SET",
                str(out): "RESULTS",
            }
            results = Results(without_places(results, places))
            results.write(temporary / RESULTS)
            refused = _refused_classes(card, self.inputs.label_map, results)
            metrics, reasons = figures(card, results)
            if not metrics:
                why = " ".join(dict.fromkeys(reasons.values()))
                raise UserError(f"{card.full_name}: none of its metrics can be measured. {why}")
            boxes = results.details("grounding").get("boxes")
            judged = Judged(
                archive=card.data.archive,
                set_hash=images.data.content_hash,
                list_hash=images.list_hash,
                wanted=len(images.listed),
                found=len(images.found),
                missing=images.missing,
                boxes=boxes,
                boxes_wanted=None if boxes is None else card.data.list.boxes,
            )
            encoding = vectors.seconds - encoded_before
            record = Record(
                card=card.measured,
                model_hash=str(self.model.content_hash),
                preset=card.preset,
                judged=judged,
                status=judged.status,
                metrics=metrics,
                reasons=reasons,
                notes=(*_lacking(judged, results), *refused, *results["notes"]),
                seconds={"encode": encoding, "score": time.perf_counter() - began - encoding},
                versions=versions(),
                command=self._command(draw),
            )
            write_json(temporary / RECORD, record.model_dump(mode="json"))
        return record

    def _command(self, draw: Draw) -> str:
        words = ["medclip-debias", "bench", f"{self.name}=MODEL", "--tasks", self.card.full_name]
        words += ["--data", "ROOT", "--out", "RESULTS"]
        words += [] if draw.resamples == Draw().resamples else ["--bootstrap", str(draw.resamples)]
        words += [] if draw.seed == Draw().seed else ["--seed", str(draw.seed)]
        return shlex.join(words)


@contextmanager
def _removed_if_empty(folder: Path) -> Iterator[None]:
    """Leave no empty folder of a model behind when its card fails."""
    try:
        yield
    finally:
        with suppress(OSError):  # it holds results
            folder.rmdir()


def figures(card: Card, results: Results) -> tuple[dict[str, Figure], dict[str, str]]:
    """The card's metrics with their intervals, and why others have no value."""
    metrics: dict[str, Figure] = {}
    reasons: dict[str, str] = {}
    for key in card.metrics:
        row = results.of(key)
        if row is None:
            why = results["skipped"].get(address(key)[0], "these images allow no such metric.")
            reasons[key] = str(why)
        else:
            metrics[key] = Figure(value=row["value"], low=row["low"], high=row["high"])
    return metrics, reasons


def _lacking(judged: Judged, results: Results) -> Iterator[str]:
    """What of the card's images, labels and boxes no figure is of, a sentence each."""
    if judged.missing:
        yield (
            f"{judged.missing} of the {judged.wanted} images of the card's list are not on the"
            " disk, or cannot be read."
        )
    labelled = int(results["counts"]["labelled_images"])
    if "zero_shot" in results.protocols and labelled < judged.found:
        yield (
            f"{judged.found - labelled} of the {judged.found} judged images have no label, and are"
            " left out of zero-shot classification."
        )
    if judged.boxes_wanted is not None and judged.boxes != judged.boxes_wanted:
        yield f"{judged.boxes} of the card's {judged.boxes_wanted} boxes are in this archive."


def _refused_classes(card: Card, label_map: LabelMap | None, results: Results) -> list[str]:
    """Classes that no mean is over, in a sentence."""
    refused = results.details("zero_shot").get("refused") or {}
    left_out = {} if label_map is None else label_map.reasons
    lacking = [n for n, r in refused.items() if r["reason"] != ONE_VALUE and n not in left_out]
    if lacking:
        raise UserError(
            f"{card.full_name}: the archive's labels have no column for {', '.join(lacking)}, so"
            " they come from another version than the card's; get the release that it names:"
            f" {card.data.obtain.rstrip('.')}."
        )
    each = [f"{name} ({why['reason'].rstrip('.')})" for name, why in refused.items()]
    return [f"Not judged, and not in any mean: {', '.join(each)}."] if each else []
