"""Lists that cards need and that may not be shared, made of an archive's own files by a rule.

5x200 and MS-CXR's single boxes. The files hold ids of the archive: they stay where the archive is.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from commands import run_script
from medclip_debias.data.labels import CHEXPERT_LABELS
from medclip_debias.data.records import Source
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.splits import split_name
from medclip_debias.data.views import view_class
from medclip_debias.errors import UserError
from medclip_debias.files import read_json_value, write_json, write_text

FIVE = ("Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Pleural Effusion")
"""Classes of 5x200: those of CheXpert's competition."""

_OTHERS = tuple(name for name in CHEXPERT_LABELS if name not in (*FIVE, "No Finding"))


def five_by_count(
    source: Source, out: Path, *, count: int = 200, seed: int = 0
) -> dict[str, dict[str, int]]:
    """Write a list as CheXpert 5x200: images of one class of five each, and of no other label.

    An image is a candidate where it is frontal, one of `FIVE` is 1, and every other label of
    CheXpert is 0 or blank (uncertain ones exclude it), as GLoRIA (Huang et al. 2021) takes them.
    GLoRIA draws without a seed; here the lowest hashes of seed and id are taken, images outside
    the training split first. Returns by class how many there were, and how many taken are of the
    training split.
    """
    labels = {
        study.study_id: only
        for study in source.studies()
        for only in (_exclusive(study.labels),)
        if only
    }
    candidates: dict[str, list[tuple[bool, str, str, str]]] = {name: [] for name in FIVE}
    for image in source.images():
        only = labels.get(image.study_id)
        if only and view_class(image.view) == "frontal":
            digest = hashlib.sha256(f"{seed}:{image.image_id}".encode()).hexdigest()
            entry = (image.split == "train", digest, image.image_id, image.split)
            candidates[only].append(entry)
    rows, found = [], {}
    for name, entries in candidates.items():
        if len(entries) < count:
            raise UserError(
                f"'{name}' has {len(entries)} frontal images with no other label, {count} are"
                " needed; give the whole archive, or a smaller --count."
            )
        taken = sorted(entries)[:count]
        rows += [(image, name, split) for _, _, image, split in taken]
        found[name] = {"candidates": len(entries), "of_training": sum(t[0] for t in taken)}
    table = pd.DataFrame(rows, columns=["image_id", "class", "split"])
    write_text(out, table.to_csv(index=False, lineterminator="\n"))
    return found


def _exclusive(labels: dict[str, float | None]) -> str:
    """The one class of five that a study has and no other label; "" for none."""
    present = [name for name in FIVE if labels.get(name) == 1]
    others = [labels.get(name) for name in (*FIVE, *_OTHERS) if name not in present]
    return present[0] if len(present) == 1 and not any(others) else ""


def single_box(path: Path, out: Path, split: str = "test") -> dict[str, int]:
    """Write the part of MS-CXR's COCO file whose images have one box in all.

    RadZero (Park et al. 2025) points on 167 such images of the test split and has not published
    their list. Annotations of ``split`` are taken, all where none has a split (before version 1.1).
    """
    content = read_json_value(path, "get MS-CXR's JSON file again", encoding="utf-8-sig")
    parts = [content.get(key) if isinstance(content, dict) else None for key in _PARTS]
    if not all(isinstance(part, list) and all(isinstance(e, dict) for e in part) for part in parts):
        raise UserError(f"{path}: is no COCO file; give MS-CXR's JSON file.")
    images, annotations, _ = (list(part or []) for part in parts)
    boxes = Counter(_image(annotation, path) for annotation in annotations)
    own = list(_of_split(annotations, split, path))
    kept = [annotation for annotation in own if boxes[annotation["image_id"]] == 1]
    if not kept:
        raise UserError(f"{path}: no image of the split '{split}' has one box in all.")
    names = {annotation["image_id"] for annotation in kept}
    chosen = [image for image in images if image.get("id") in names]
    write_json(out, {**content, "images": chosen, "annotations": kept})
    counts = {"images": len(images), "annotations": len(annotations), "of_split": len(own)}
    return counts | {"kept": len(kept)}


_PARTS = ("images", "annotations", "categories")


def _image(annotation: dict[str, Any], path: Path) -> Any:
    image = annotation.get("image_id")
    if not isinstance(image, int | str):
        shown = json.dumps(annotation.get("id"))
        raise UserError(f"{path}, annotation {shown}: names no image; get the file again.")
    return image


def _of_split(
    annotations: list[dict[str, Any]], split: str, path: Path
) -> Iterator[dict[str, Any]]:
    """Annotations of a split; all where none has a split of its own (MS-CXR 0.1)."""
    told = any(annotation.get("split") for annotation in annotations)
    for number, annotation in enumerate(annotations, start=1):
        word = str(annotation.get("split") or "")
        where = f"{path}, annotation number {number}"
        if not told or (word and split_name(word, where) == split):
            yield annotation


app = typer.Typer(help=__doc__, add_completion=False)


@app.command("five-by-200")
def five_by_200(
    archive: Annotated[Path, typer.Argument(help="CheXpert, CheXpert Plus or MIMIC-CXR")],
    out: Annotated[Path, typer.Argument(help="CSV to write: five_by_200.csv in that folder")],
    kind: Annotated[str, typer.Option(help="of source, as prepare --kind takes it")] = "auto",
    count: int = 200,
    seed: int = 0,
) -> None:
    """Images of one class of five each."""
    print(json.dumps(five_by_count(detect(archive, kind), out, count=count, seed=seed)))


@app.command("single-box")
def of_one_box(
    phrases: Annotated[Path, typer.Argument(help="MS_CXR_Local_Alignment_v1.1.0.json")],
    out: Annotated[Path, typer.Argument(help="JSON to write: ms_cxr_single_box.json beside it")],
    split: str = "test",
) -> None:
    """Images of MS-CXR with one box in all."""
    print(json.dumps(single_box(phrases, out, split)))


if __name__ == "__main__":
    sys.exit(run_script(app))
