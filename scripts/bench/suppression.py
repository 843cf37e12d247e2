"""Boxes for sentences that may not be in the image: what suppression and sharper maps give.

For one model and one prepared set: the protocol `sentence_boxes` at several aims (each threshold
chosen on validation images), what the ways to sharpen maps change on the same phrases, in pairs
with intervals over patients, and, where the phantom's own tree is given, how the words of its
sentences are judged against the truth that the phantom wrote them from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, get_args

import numpy as np
import pandas as pd
import typer

from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.bootstrap import weighted_mean
from medclip_debias.evaluation.encoding import Network, encode
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.protocol import Draw, Measured, Protocol, Request
from medclip_debias.evaluation.protocols.phrase_grounding import PhraseGrounding
from medclip_debias.evaluation.protocols.sentence_boxes import SentenceBoxes, sentence_statistics
from medclip_debias.evaluation.table import Row
from medclip_debias.grounding.counterparts import Reader
from medclip_debias.grounding.preparation import model_and_set
from medclip_debias.grounding.settings import Sharpen, SuppressionSettings

AIMS = (("kept", 0.98), ("kept", 0.95), ("kept", 0.90), ("specificity", 0.95))
SHOWN = ("cnr", "miou", "pointing", "dice_fixed")


def measured(
    model: Any, data: PreparedSet, options: EvaluationOptions, draw: Draw, phrases: Path | None
) -> dict[str, Measured]:
    """Both protocols of boxes on the test images."""
    request = Request(data, "test", model, load_prompts(), options, phrases=phrases)
    planned: list[Protocol] = [PhraseGrounding(request), SentenceBoxes(request)]
    encode(model, Network(model, data), planned, batch_size=64)
    return {protocol.name: protocol.measure(draw) for protocol in planned}


def interval(found: Any) -> str:
    return "" if found is None else f" [{found[0]:.3f}, {found[1]:.3f}]"


def with_interval(row: Row | None) -> str:
    """A measured number and its interval; nothing of what could not be measured."""
    if row is None:
        return ""
    return f"{row.value:.3f}{interval(None if row.low is None else (row.low, row.high))}"


def suppression_rows(
    model: Any, data: PreparedSet, draw: Draw, phrases: Path | None
) -> Iterator[list[str]]:
    """One row for each aim, of what the test images give."""
    names = (
        *("specificity", "specificity_denial", "specificity_elsewhere", "kept", "recall_loss_0.3"),
        *("box_f1_0.3", "average_precision_0.3", "suppression_f1", "presence_auc"),
    )
    yield ["aim on validation", "evidence", *names]
    for aim, share in AIMS:
        settings = SuppressionSettings(aim=aim, share=share)
        options = EvaluationOptions(suppression=settings)
        results = measured(model, data, options, draw, phrases)["sentence_boxes"]
        own = [with_interval(results.row(name)) for name in names]
        yield [f"{aim} {share}", str(results.details["rule"]["evidence"]), *own]
    plain = with_interval(results.row("box_f1_0.3", group="without suppression"))
    yield ["no suppression", "", "0", "0", "0", "1", "0", plain, "", "", ""]


def sharpening_rows(
    model: Any, data: PreparedSet, draw: Draw, phrases: Path | None
) -> Iterator[list[str]]:
    """One row for each way, of the change against plain maps on the same phrases."""
    yield ["way", *SHOWN, "box F1 0.3", "box F1 0.5"]
    plain: dict[str, pd.DataFrame] = {}
    for way in get_args(Sharpen):
        options = EvaluationOptions(sharpen=way, suppression_from="none", sentences_per_image=1)
        found = measured(model, data, options, Draw(0), phrases)  # intervals of changes alone
        tables = {n: m.items for n, m in found.items() if m.items is not None}
        phrase = tables["grounding"][tables["grounding"]["groundable"]].reset_index(drop=True)
        boxed = tables["sentence_boxes"]
        boxed = boxed[boxed["there"]].reset_index(drop=True)
        plain = plain or {"phrase": phrase, "boxed": boxed}
        cells, patients = [way], phrase["patient"].tolist()
        for name in SHOWN:
            values = (phrase[name] - plain["phrase"][name]).to_numpy()
            change = partial(_mean_change, values)
            cells.append(paired(phrase[name].mean(), change, patients, draw))
        ours, theirs = sentence_statistics(boxed), sentence_statistics(plain["boxed"])
        for level in (0.3, 0.5):
            key = f"without_suppression/box_f1_{level}"
            point = float(ours(np.ones((1, len(boxed))))[key][0])
            change = partial(_box_change, key, ours, theirs)
            cells.append(paired(point, change, boxed["patient"].tolist(), draw))
        yield cells


def _mean_change(values: Any, weights: Any) -> dict[str, Any]:
    return {"x": weighted_mean(values, weights)}


def _box_change(key: str, ours: Any, theirs: Any, weights: Any) -> dict[str, Any]:
    return {"x": ours(weights)[key] - theirs(weights)[key]}


def dice_rows(
    model: Any, data: PreparedSet, draw: Draw, phrases: Path | None
) -> Iterator[list[str]]:
    """The Dice coefficient of plain maps by each rule."""
    options = EvaluationOptions(suppression_from="none")
    results = measured(model, data, options, draw, phrases)["grounding"]
    yield ["rule", "share of the range", "Dice"]
    for rule, share in results.details["dice"]["share_of_range"].items():
        if share is not None:
            name = f"dice_{rule}"
            yield [rule, f"{share}", with_interval(results.row(name))]


def paired(point: float, change: Any, patients: list[str], draw: Draw) -> str:
    """A metric, its change against plain maps and the interval of the change."""
    value = float(change(np.ones((1, len(patients))))["x"][0])
    found = draw.estimates(change, patients)["x"].interval
    return f"{point:.3f} ({value:+.3f}{interval(found)})"


def words_rows(tree: Path) -> Iterator[list[str]]:
    """How many distinct sentences of each kind of the phantom's truth are suppressed as denials."""
    truth = pd.read_parquet(tree / "truth" / "sentences.parquet").drop_duplicates("text")
    reader = Reader()
    denies = np.array([reader.denies(text) for text in truth["text"]])
    yield ["polarity in the truth", "kind", "distinct sentences", "suppressed by their words"]
    for (polarity, kind), part in truth.groupby(["polarity", "kind"]):
        share = denies[truth.index.get_indexer(part.index)].mean()
        yield [str(polarity), str(kind), str(len(part)), f"{share:.3f}"]


def with_validation(tree: Path, data: PreparedSet, folder: Path) -> Path:
    """The phantom's file of boxes, and the boxes of its validation images with their sentences.

    The phantom has MS-CXR boxes on test images alone, but knows where every finding is. A box of a
    validation image stands under the sentence of its report that speaks of its finding alone.
    """
    (source,) = tree.glob("MS_CXR*.json")
    content = json.loads(source.read_text(encoding="utf-8"))
    sentences = pd.read_parquet(tree / "truth" / "sentences.parquet")
    sentences = sentences[sentences["polarity"].eq("positive") & sentences["agrees"]]
    reports = dict(list(sentences.groupby("study_id")))
    sizes = data.images.set_index("image_id")[["width", "height"]]
    truth = pd.read_parquet(tree / "truth" / "images.parquet")
    for image in truth[truth["split"].eq("validate")].itertuples():
        if image.dicom_id not in sizes.index or image.study_id not in reports:
            continue
        width, height = (int(side) for side in sizes.loc[[image.dicom_id]].to_numpy()[0])
        number = len(content["images"]) + 1
        file = f"{image.dicom_id}.jpg"
        size = {"id": number, "file_name": file, "width": width, "height": height}
        said = reports[image.study_id]  # type: ignore[index]
        boxes = [
            {
                "id": len(content["annotations"]) + place,
                "image_id": number,
                "category_id": content["categories"][0]["id"],
                "bbox": [float(box[side]) for side in ("x", "y", "width", "height")],
                "label_text": text.rstrip("."),
            }
            for place, (box, text) in enumerate(said_of(image.boxes, said), 1)
        ]
        if boxes:
            content["images"].append(size)
            content["annotations"] += boxes
    out = folder / "boxes.json"
    out.write_text(json.dumps(content), encoding="utf-8")
    return out


def said_of(boxes: Any, report: pd.DataFrame) -> Iterator[tuple[Any, str]]:
    """Boxes and the first sentence of the report about their finding, where there is one."""
    for box in boxes:
        kind = box["finding"].split("_")[0]
        own = report[report["finding"].eq(kind)]
        own = own[[box["finding"] in classes for classes in own["classes"]]]
        if len(own):
            yield box, str(own["text"].iloc[0])


def show(title: str, rows: Iterator[list[str]]) -> None:
    print(f"\n{title}\n", flush=True)
    for number, row in enumerate(rows):
        print(f"| {' | '.join(row)} |", flush=True)
        if number == 0:
            print("| --- " * len(row) + "|")


def main(
    model: Path,
    prepared: Path,
    phantom: Annotated[Path | None, typer.Option(help="its tree, for its truth")] = None,
    bootstrap: int = 1000,
) -> None:
    """Measure and print."""
    loaded, data = model_and_set(model, prepared, "cpu")
    draw = Draw(bootstrap)
    with TemporaryDirectory() as folder:
        phrases = with_validation(phantom, data, Path(folder)) if phantom else None
        if phantom:
            show("Denials by their words, against the phantom's truth", words_rows(phantom))
        show("Dice", dice_rows(loaded, data, draw, phrases))
        show("Suppression", suppression_rows(loaded, data, draw, phrases))
        show("Sharper maps", sharpening_rows(loaded, data, draw, phrases))


if __name__ == "__main__":
    typer.run(main)
