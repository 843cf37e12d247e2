"""Several archives of real films in one model: what `make real DATA=FOLDER` runs.

Finds the archives below the folder, prepares each, pretrains an image trunk on all training films
without labels (SimCLR), trains on reports, on sentences from labels and on the boxes of training
films together, and judges each archive's test part. Every line that starts with `$` is a command
that you can type yourself. Run again, it goes on where it stopped; `--fresh` starts over.
docs/real.md has every stage.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

from commands import run_script
from medclip_debias.cli import run
from medclip_debias.cli.stages import Stage, run_stages, start_over
from medclip_debias.data.joint import open_prepared
from medclip_debias.data.loader import TrainingStudies
from medclip_debias.data.prompts import packaged_sets
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.sources.tables import read_table, refuse_rows
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError, explained
from medclip_debias.files import write_json
from medclip_debias.training.boxes import boxed_phrases
from medclip_debias.training.resolve import load_run
from openi import judged_classes
from real_report import has_reports, write_report

LANGUAGE_MODEL = ["hidden=64", "heads=2", "layers=2", "vocabulary=2000", "batch_size=64", "lr=3e-3"]
_BOX = ("x", "y", "width", "height")
BATCH = 64
"""Studies of a batch of real/joint."""
SHARED_PROMPTS = "chestxray14"
"""The prompt set by which calibration is compared across archives."""


@dataclass(frozen=True)
class Plan:
    """How much is done.

    Attributes:
        language_model, pretrain, train: steps.
        bootstrap: resamples of the intervals.
        least: images with and without a class that its AUC needs.
        explanations: ways to a map that the model's own is held against.
    """

    language_model: int = 2500
    pretrain: int = 800
    train: int = 4000
    bootstrap: int = 1000
    least: int = 5
    explanations: tuple[str, ...] = ("gradcam", "occlusion")


# Occlusion looks at each image hundreds of times: longer than all else of a short run.
QUICK = Plan(language_model=60, pretrain=20, train=40, bootstrap=50, explanations=("gradcam",))


@dataclass(frozen=True)
class Archive:
    """An archive that was found.

    Attributes:
        folder: where it is.
        name: of its folder.
        kind: of source.
        has_test: whether its own split has test images.
    """

    folder: Path
    name: str
    kind: str
    has_test: bool

    @property
    def box_files(self) -> Path:
        """Boxes of other groups on its images: image, source, finding, x, y, width, height."""
        return self.folder / "boxes.csv"


def find_archives(data: Path) -> list[Archive]:
    """Return the archives in ``data`` and its folders; what is none is printed with the reason.

    Raises:
        UserError: there is none, or two have one name.
    """
    if not data.is_dir():
        raise UserError(f"{data}: there is no such folder; give one that holds archives.")
    archives: list[Archive] = []
    places: dict[Path, str] = {}
    below = [path for path in data.iterdir() if path.is_dir()]
    for folder in [data, *sorted(below, key=lambda path: (path.is_symlink(), path))]:
        name, place = folder.absolute().name, folder.resolve()
        if place in places:
            print(f"# {name}: left aside (a link to {places[place]}, which is here already)")
            continue
        places[place] = name
        try:
            source = detect(folder)
            splits = Counter(image.split for image in source.images())
            reason = "" if splits else "it has no images"
        except (UserError, OSError) as error:  # OSError: a folder of somebody else
            reason = str(error)
        if reason:
            if folder != data or "is not a known layout" not in reason:
                print(f"# {name}: left aside ({reason})")
            continue
        if any(archive.name == name for archive in archives):
            raise UserError(f"{folder}: has the name of the archive {data}; rename one of them.")
        archives.append(Archive(folder, name, source.kind, splits["test"] > 0))
    if not archives:
        raise UserError(f"{data}: holds no archive that 'prepare' knows; see prepare --sources.")
    names = ", ".join(f"{archive.name} ({archive.kind})" for archive in archives)
    print(f"# found {len(archives)} archives: {names}")
    return archives


def weighted_sets(
    prepared: dict[str, Path], *, text: bool, boxes: dict[str, list[Path]] | None = None
) -> str:
    """Return the setting ``prepared`` of a run on all sets, as YAML in one line.

    Half of the image-text batches are of the archives with reports, and half of those of labels:
    in one batch the wording of a sentence would tell from which kind of archive its film is. Where
    either has fewer training studies than a batch, every batch is of both. Within these, and in
    batches of films alone, a set has the share of its training studies, .0001 or more. Sets that
    nothing is trained on have weight 0, so that no other one trains on their patients. ``boxes``
    are files of boxes that teach, by the name of the set.
    """
    counts, reports, boxes = {}, {}, boxes or {}
    for name, path in prepared.items():
        data = PreparedSet.open(path)
        try:
            counts[name] = len(TrainingStudies.of(data, text=text))
        except UserError:
            counts[name] = 0
        reports[name] = has_reports(path)
    halves = {
        side: sum(n for name, n in counts.items() if reports[name] == side) for side in (0, 1)
    }
    both = text and all(halves.values())
    apart = both and min(halves.values()) >= BATCH
    total = {side: halves[side] if both else sum(counts.values()) for side in (0, 1)}
    sets = [
        {
            "path": str(prepared[name]),
            "weight": round(max(count / total[reports[name]], 1e-4), 4) if count else 0.0,
        }
        | ({"batches": "reports" if reports[name] else "labels"} if apart else {})
        | ({"boxes": [f"{file}" for file in boxes[name]]} if count and boxes.get(name) else {})
        for name, count in counts.items()
    ]
    return json.dumps(sets)


def boxes_teach(sets: str) -> bool:
    """Whether any phrase of a run on these ``sets`` has a box on an image that trains."""
    chosen = load_run("phantom/base", [f"prepared={sets}", "train.boxes={}"]).prepared
    assert isinstance(chosen, tuple)
    data, files = open_prepared(chosen), [each.boxes for each in chosen]
    size = data.settings.size
    return bool(boxed_phrases(data, files, size, sides=True, left_aside=Counter()))


def joint_words(prepared: dict[str, Path], boxes: dict[str, list[Path]]) -> list[str]:
    """The settings of the sets of the joint training, whose boxes teach where any can."""
    sets = weighted_sets(prepared, text=True, boxes=boxes)
    if boxes_teach(sets):
        return [f"prepared={sets}", "train.boxes={}"]
    return [f"prepared={weighted_sets(prepared, text=True)}"]


def fast_precision() -> str:
    """Return ``bf16`` where this machine computes in it (about twice as fast), else ``fp32``."""
    import torch

    if torch.cuda.is_available():
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    has = [
        getattr(torch.cpu, f"_is_{name}_supported", bool) for name in ("avx512_bf16", "amx_tile")
    ]
    return "bf16" if any(one() for one in has) else "fp32"


def coco_boxes(archive: Archive, out: Path) -> Iterator[tuple[str, Path]]:
    """Write the boxes of other groups on an archive's images as COCO files, one a group.

    Yields:
        Name of the group and the file.

    Raises:
        UserError: the table lacks a column, or a box is not four numbers.
    """
    path = archive.box_files
    if not path.is_file() or "source" not in read_table(path):
        return  # there are none, or those of the archive's own table, which `prepare` reads
    from PIL import Image

    from medclip_debias.data.sources.findings import finding_name, finding_sentence

    table = read_table(path, (*_BOX, "source", "image", "finding"))
    places = {place.stem: place for place in archive.folder.rglob("*.jpg")}
    places |= {place.stem: place for place in archive.folder.rglob("*.png")}
    table["stem"] = [Path(name).stem for name in table["image"]]
    named, here = table["source"] != "", table["stem"].isin(places)
    if without := int((~named).sum()):
        print(f"# {archive.name}/boxes.csv: skipped {without} rows without a source")
    if absent := int((named & ~here).sum()):
        print(f"# {archive.name}/boxes.csv: skipped {absent} boxes of images that are not here")
    own = any(archive.folder.glob("BBox_List_2017*"))  # then the NIH's boxes are the set's own
    rows = table[named & here & ~((table["source"] == "NIH") & own)]
    boxes = rows[[*_BOX]].apply(pd.to_numeric, errors="coerce")
    problem = "x, y, width and height are not four numbers; correct or remove it."
    refuse_rows(path, rows, boxes.isna().any(axis=1), problem)
    for group, part in rows.groupby("source"):
        images: list[dict[str, Any]] = []
        for stem, file in part.drop_duplicates("stem")[["stem", "image"]].to_numpy():
            sentence = f"{places[stem]}: is not an image; remove it"
            with explained(sentence, OSError), Image.open(places[stem]) as image:
                size = {"width": image.width, "height": image.height}
            images.append({"id": len(images) + 1, "file_name": file} | size)
        names = part["finding"].map(finding_name)
        number_of_image, number_of_name = (pd.factorize(c)[0] + 1 for c in (part["stem"], names))
        annotations = [
            {"id": number, "image_id": int(image), "category_id": int(category), "bbox": box}
            | {"label_text": finding_sentence(name)}
            for number, (image, category, box, name) in enumerate(
                zip(
                    number_of_image,
                    number_of_name,
                    boxes.loc[part.index].to_numpy(dtype=float).tolist(),
                    names,
                    strict=True,
                ),
                start=1,
            )
        ]
        listed = [{"id": n, "name": name} for n, name in enumerate(names.unique(), start=1)]
        out_file = out / f"{archive.name}-{group}.json"
        out_file.parent.mkdir(parents=True, exist_ok=True)
        content = {"images": images, "annotations": annotations, "categories": listed}
        write_json(out_file, content)
        yield str(group), out_file


def calibrations(model: Path, prepared: dict[str, Path], out: Path, least: int) -> None:
    """Write how calibrated each archive's test part is by each archive's validate part.

    Platt's line of every class of `SHARED_PROMPTS` is fitted to one set's validate images and
    judged on another's test images: mean expected calibration error over 15 bins, and mean
    intercept, over the classes that both allow.
    """
    from medclip_debias.data.prompts import load_prompts
    from medclip_debias.evaluation.decisions.probability import Unfit, fit, qualities
    from medclip_debias.evaluation.encoding import row_scores
    from medclip_debias.evaluation.sides import prompt_differences
    from medclip_debias.models.load import load_model

    prompts, scorer = load_prompts(SHARED_PROMPTS), load_model(model)
    scored: dict[tuple[str, str], dict[str, tuple[Any, Any]]] = {}
    for name, path in prepared.items():
        data = PreparedSet.open(path)
        columns = [c for c in prompts.classes if c in data.studies.columns]
        labels = data.studies.drop_duplicates("study_id").set_index("study_id")[columns]
        for split in ("validate", "test"):
            rows = np.flatnonzero((data.images["split"] == split).to_numpy() & data.frontal)
            if not columns or not len(rows):
                continue
            truth = labels.reindex(data.images["study_id"].iloc[rows])
            scores = prompt_differences(row_scores(scorer, data, rows, prompts.texts), prompts)
            usable = {}
            for column in columns:
                values = truth[column].to_numpy()
                known = np.isin(values, (0, 1))
                if min((values[known] == 1).sum(), (values[known] == 0).sum()) >= least:
                    usable[column] = scores[column][known], values[known] == 1
            scored[name, split] = usable
    table: list[dict[str, Any]] = []
    for (fitted, split), classes in scored.items():
        for (judged, other), judged_by in scored.items():
            if (split, other) != ("validate", "test"):
                continue
            measured = []
            for column in sorted(set(classes) & set(judged_by)):
                try:
                    line = fit("platt", *classes[column])
                except Unfit:
                    continue
                values, positive = judged_by[column]
                weights = np.ones((1, len(positive)))
                measured.append(qualities(positive, line.logits(values), weights))
            means = {
                key: float(np.nanmean([each[key][0] for each in measured])) if measured else None
                for key in ("ece", "intercept")
            }
            table.append({"fitted": fitted, "judged": judged, "classes": len(measured), **means})
    write_json(out, {"prompts": SHARED_PROMPTS, "rows": table})


def saliency(archives: list[Archive], out: Path, plan: Plan) -> None:
    """Judge other ways to a map on every archive that has boxes of its own: ``NAME-METHOD``.

    A folder that is there is not measured again, nor is a set without test phrases.

    Raises:
        UserError: an evaluation failed; its message was printed.
    """
    for archive in archives:
        prepared = out / "prepared" / archive.name
        data = PreparedSet.open(prepared)
        test_images = data.images["image_id"][data.images["split"] == "test"]
        if not data.phrases["image_id"].isin(test_images).any():
            continue
        for method in plan.explanations:
            folder = out / "archives" / f"{archive.name}-{method}"
            if (folder / "results.json").is_file():
                continue
            words = ["evaluate", f"{out / 'model'}", f"{prepared}", "--out", f"{folder}"]
            words += ["--method", method, "--bootstrap", f"{plan.bootstrap}", "--heatmaps", "4"]
            print(f"$ medclip-debias {shlex.join(words)}")
            if run(words):
                raise UserError(f"{archive.name}: the maps by {method} were not judged.")


def stages(data: Path, out: Path, plan: Plan) -> list[Stage]:
    """Return every stage, in order."""
    archives = find_archives(data)
    prepared = {archive.name: out / "prepared" / archive.name for archive in archives}
    lm, trunk, model = out / "language_model", out / "pretrained", out / "model"
    groups = {archive.name: [*coco_boxes(archive, out / "boxes")] for archive in archives}
    files = {name: [file for _, file in of_archive] for name, of_archive in groups.items()}
    first, *others = prepared.values()
    with_others = [word for path in others for word in ("--with", f"{path}")]

    def language_model() -> list[str]:
        settings = [*LANGUAGE_MODEL, f"steps={plan.language_model}"]
        return ["language-model", f"{first}", f"{lm}", *settings, *with_others]

    def pretrain() -> list[str]:
        sets = weighted_sets(prepared, text=False)
        words = [f"out={trunk}", f"prepared={sets}", f"model.text.folder={lm}"]
        words += [f"train.precision={fast_precision()}"]
        return ["train", "real/pretrain", *words, f"train.steps={plan.pretrain}"]

    def train() -> list[str]:
        words = [f"out={out}", *joint_words(prepared, files)]
        words += [f"model.start_from={trunk / 'model'}", f"train.precision={fast_precision()}"]
        words += [f"train.steps={plan.train}"]
        return ["train", "real/joint", *words]

    found = []
    for archive in archives:
        words = ["prepare", f"{archive.folder}", f"{prepared[archive.name]}", "--size", "128"]
        words += ["--label-sentences", *([] if archive.has_test else ["--split-seed", "0"])]
        found.append(Stage(f"prepare_{archive.name}", words, prepared[archive.name]))
    found.append(Stage("language_model", language_model, lm))
    for name, path in prepared.items():
        found.append(Stage(f"claims_{name}", ["claims", f"{path}"], path / "claims.parquet"))
    found += [Stage("pretrain", pretrain), Stage("train", train)]
    for archive in archives:
        boxes = groups[archive.name]
        found += _judging(archive, prepared[archive.name], model, out, plan, boxes)
    calibration = out / "calibration.json"
    found.append(
        Stage(
            "saliency",
            [
                "python",
                "-c",
                f"# maps by {', '.join(plan.explanations)} on each archive's own boxes",
            ],
            None,
            lambda: saliency(archives, out, plan),
        )
    )
    found.append(
        Stage(
            "calibration",
            ["python", "-c", f"# Platt's lines across archives -> {calibration}"],
            calibration,
            lambda: calibrations(model, prepared, calibration, plan.least),
        )
    )
    names = [archive.name for archive in archives]
    write = Stage(
        "collect",
        ["python", "scripts/real_report.py", f"{out}"],
        None,
        lambda: write_report(out, names),
    )
    return [*found, write]


def _judging(
    archive: Archive,
    prepared: Path,
    model: Path,
    out: Path,
    plan: Plan,
    boxes_of: list[tuple[str, Path]],
) -> list[Stage]:
    """Evaluate on an archive's test part: its own labels and boxes, then those of other groups."""
    prompts = archive.kind if archive.kind in packaged_sets() else "chexpert"
    common = ["--bootstrap", f"{plan.bootstrap}", "--heatmaps", "4"]

    def evaluate() -> list[str]:
        words = ["evaluate", f"{model}", f"{prepared}"]
        words += ["--out", f"{out / 'archives' / archive.name}"]
        try:
            classes = judged_classes(prepared, least=plan.least, prompts=prompts)
        except UserError as error:
            print(f"# {error}")
            return [*words, *common]
        return [*words, *common, "--prompts", prompts, "--classes", ",".join(classes)]

    result = out / "archives" / archive.name / "results.json"
    found = [Stage(f"evaluate_{archive.name}", evaluate, result)]
    for group, boxes in boxes_of:
        folder = out / "archives" / f"{archive.name}-{group}"
        words = ["evaluate", f"{model}", f"{prepared}", "--out", f"{folder}"]
        words += ["--phrases", f"{boxes}", *common]
        found.append(Stage(f"boxes_{folder.name}", words, folder / "results.json"))
    return found


def main(
    data: Annotated[Path, typer.Argument(help="folder of archives (docs/real.md)")],
    out: Annotated[Path | None, typer.Option(help="runs/real, or runs/real_quick")] = None,
    quick: Annotated[bool, typer.Option(help="a few steps: does everything run?")] = False,
    fresh: Annotated[bool, typer.Option(help="remove what is there first")] = False,
) -> None:
    """Run every stage, and leave results.json and report.html."""
    out = out or Path("runs/real_quick" if quick else "runs/real")
    if fresh:
        start_over(out)
    run_stages(stages(data, out, QUICK if quick else Plan()), out, run)


if __name__ == "__main__":
    sys.exit(run_script(main))
