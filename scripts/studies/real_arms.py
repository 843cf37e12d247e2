"""Arms of a registered study on several archives of real films, trained, judged and compared.

    python scripts/studies/real_arms.py DATA [--arms FILE] [--out FOLDER] [--seeds N ...] [--table]

Prepares the archives below DATA (and mirrored copies, with left and right swapped in reports),
trains a small language model of all their sentences, then one model for each arm and seed, seed by
seed, and judges each on test films. Run again, it goes on where it stopped; several may run beside
one another, also on one GPU. Leaves ``cells/ARCHIVE/ARM/SEED`` in its folder, and ``table.json``
once all are there.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from filelock import FileLock, Timeout
from PIL import Image, ImageOps

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from commands import exit_code
from medclip_debias.cli import run
from medclip_debias.config import json_hash
from medclip_debias.data.loader import TrainingStudies
from medclip_debias.data.secret import read_secret
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.compare import compare
from medclip_debias.evaluation.item_tables import item_keys
from medclip_debias.evaluation.phrase_selection import Phrase, select_phrases
from medclip_debias.evaluation.protocols.laterality import mirrored
from medclip_debias.evaluation.statistics import holm, seed_summary
from medclip_debias.experiments.doses import write_eta
from medclip_debias.files import atomic_file, atomic_folder, write_json
from openi import judged_classes
from real_job import Archive, coco_boxes
from studies.eta_table import from_claims
from studies.flip_claims import copy_with_claims

LANGUAGE_MODEL = ["hidden=64", "heads=2", "layers=2", "vocabulary=2000", "batch_size=64", "lr=3e-3"]
ITEMS = {
    "zero_shot": {"mean_auc": "score", "mean_auc_positive": "positive"},
    "phrases": {"pointing_game": "pointing", "cnr_above_others": "cnr_above_others"},
    "laterality": {"right_side": "right_side"},
    "study_retrieval": {"recall": "rank_{}_strict"},
}
"""Files of items that are published: their metrics, and the columns (of a class, sides)."""
PROMPTS = {"openi": "openi"}
"""Prompt sets of archives; the others are ChestX-ray14's."""


def mirror(archive: Path, out: Path) -> None:
    """Write a copy of an archive with mirrored films and swapped sides; without boxes."""
    for path in sorted(archive.rglob("*")):
        copy = out / path.relative_to(archive)
        if path.is_dir() or path.name == "boxes.csv":
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() in (".jpg", ".png"):
            ImageOps.mirror(Image.open(path)).save(copy, quality=95)
        elif path.suffix == ".tgz":
            with tarfile.open(path) as reports, tarfile.open(copy, "w:gz") as swapped:
                for member in filter(tarfile.TarInfo.isfile, reports):
                    content = reports.extractfile(member).read().decode()  # type: ignore[union-attr]
                    encoded = mirrored(content).encode()
                    member.size = len(encoded)
                    swapped.addfile(member, io.BytesIO(encoded))
        elif path.name.startswith("indiana_"):
            copy.write_text(mirrored(path.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copy(path, copy)


def command(*parts: object) -> None:
    """Run one verb in this process.

    Raises:
        UserError: it failed; its sentence was printed.
    """
    words = [str(part) for part in parts]
    print("$ medclip-debias", *words, flush=True)
    if run(words):
        raise UserError(f"'{words[0]}' failed; its message stands above.")


def prepare(data: Path, out: Path, study: dict[str, Any]) -> None:
    """Prepare every archive at each size, read claims, and train the language model."""
    arms, sets, model = study["arms"], out / "sets", out / "language_model"
    names = {study["reports"], *study["labels"], *study["judged"]}
    sizes = sorted({72, *(arm["size"] for arm in arms.values() if "size" in arm)})
    places: list[tuple[Path, Path, int, float]] = [
        (data / name, sets / f"{size}" / name, size, 1) for size in sizes for name in names
    ]
    for arm in arms.values():
        for name in arm.get("mirrored", ()):
            copy = out / "mirrored_archives" / name
            if not copy.exists():
                with atomic_folder(copy) as work:
                    mirror(data / name, work)
            places.append((copy, sets / "mirrored" / name, 72, 1))
        if "share" in arm:
            size, folder = arm.get("size", 72), trained_sets(out, arm)
            places += [(data / name, folder / name, size, arm["share"]) for name in names]
    for archive, place, size, share in places:
        if not (place / "claims.parquet").is_file():
            words = ["--split-seed", "0"] if archive.name == "tbx11k" else []
            if share < 1:
                table = place.with_suffix(".csv")
                table.parent.mkdir(parents=True, exist_ok=True)
                whole = PreparedSet.open(sets / f"{size}" / archive.name).images
                fewer_patients(whole, share).to_csv(table, index=False)
                words = ["--split-file", f"{table}"]
            command("prepare", archive, place, "--size", size, "--label-sentences", *words)
            command("claims", place)
    for arm, settings in arms.items():
        for name in names if "claims" in settings else ():
            place = sets / f"claims_{arm}" / name
            if not (place / "claims.parquet").is_file():
                claims = pd.read_parquet(sets / "72" / name / "claims.parquet")
                for column, chosen in settings["claims"].items():
                    claims = claims[claims[column].isin(chosen)]
                copy_with_claims(sets / "72" / name, place, claims)
    if not model.exists():
        first, *others = [sets / "72" / name for name in sorted(names)]
        pairs = [word for other in others for word in ("--with", other)]
        command("language-model", first, model, *LANGUAGE_MODEL, "steps=2500", *pairs)
    for name in names if study.get("scores") else ():
        if not any((sets / "72" / name).glob("scores*")):
            command("score", sets / "72" / name, "--language-model", model)
    for name in study["labels"] if any("boxes" in arm for arm in arms.values()) else ():
        files = [
            file for _, file in coco_boxes(Archive(data / name, name, "", True), out / "boxes")
        ]
        move_boxes(
            PreparedSet.open(sets / "72" / name), files, out / "boxes_moved" / f"{name}.json"
        )
    if study.get("eta") and not (out / "eta.parquet").exists():
        trained = [sets / "72" / name for name in (study["reports"], *study["labels"])]
        write_eta(eta_by_claims(trained), out / "eta.parquet")


def move_boxes(data: PreparedSet, files: Sequence[Path], out: Path) -> None:
    """Write the boxes of a set's training phrases, each phrase with those of another image.

    Those of the next phrase of the same words, in an order drawn once: what is left is where a
    finding usually lies.

    Args:
        data: the set.
        files: of boxes; its own where there is none.
        out: a file in COCO's form.
    """
    found = [select_phrases(data, "train", data.settings.size, file) for file in files or (None,)]
    alike: dict[str, list[Phrase]] = {}
    for phrase in (phrase for each in found for phrase in each.phrases):
        alike.setdefault(phrase.text, []).append(phrase)
    rng, annotations, images = np.random.default_rng(0), list[dict[str, Any]](), {}
    for number, (text, phrases) in enumerate(alike.items(), start=1):
        order = rng.permutation(len(phrases))
        for place, source in zip(order, np.roll(order, 1), strict=True):
            here, there = phrases[place].geometry, phrases[source].geometry
            ratios = np.tile([here.width / there.width, here.height / there.height], 2)
            name = f"{data.images['image_id'].iloc[phrases[place].row]}.png"
            size = {"width": here.width, "height": here.height}
            images[phrases[place].row] = {"id": phrases[place].row, "file_name": name} | size
            for box in phrases[source].boxes:
                annotations.append(
                    {"id": len(annotations), "image_id": phrases[place].row, "label_text": text}
                    | {"category_id": number, "bbox": (np.array(box) * ratios).tolist()}
                )
    names = [{"id": n, "name": each[0].category} for n, each in enumerate(alike.values(), start=1)]
    content = {"images": [*images.values()], "annotations": annotations, "categories": names}
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, content)


def eta_by_claims(folders: Sequence[Path]) -> dict[str, float]:
    """The class probability of each training sentence: the share of studies that agree with it.

    By claims, in the sets that say it (their mean by studies), since batches are of reports or of
    labels.
    """
    tables = []
    for folder in folders:
        data = PreparedSet.open(folder)
        shares = pd.Series(from_claims(data), name="share").rename_axis("text").reset_index()
        tables.append(shares.assign(studies=len(data.studies)))
    table = pd.concat(tables)
    table["agree"] = table["share"] * table["studies"]
    sums = table.groupby("text")[["agree", "studies"]].sum()
    return {str(text): float(eta) for text, eta in (sums["agree"] / sums["studies"]).items()}


def trained_sets(out: Path, arm: Mapping[str, Any]) -> Path:
    """The folder of the sets that an arm trains on: its own claims, fewer patients, or all."""
    size = f"{arm.get('size', 72)}"
    if "share" in arm:
        return out / "sets" / f"{size}_share_{arm['share']}"
    return out / "sets" / arm.get("variant", size)


def fewer_patients(images: pd.DataFrame, share: float) -> pd.DataFrame:
    """The split of a prepared set's patients with a ``share`` of those that train.

    A smaller share is part of a larger one; the other splits stay whole.

    Returns:
        Columns ``patient_id`` and ``split``, a row a patient.
    """
    patients = images[["patient_id", "split"]].drop_duplicates().sort_values("patient_id")
    train = patients[patients["split"] == "train"].sample(frac=1, random_state=0)
    rest = patients[patients["split"] != "train"]
    return pd.concat([train.head(round(share * len(train))), rest], ignore_index=True)


def training_sets(out: Path, study: dict[str, Any], arm: dict[str, Any], *, text: bool) -> str:
    """Return the setting ``prepared``: reports half of each batch, labels the other half by size.

    A set and its mirrored copy share its weight; of films alone every film counts the same. Judged
    sets have weight 0, so that no other set trains on their patients. With ``batches: own`` reports
    and labels have batches of their own, half of all each.
    """
    trained, reports = trained_sets(out, arm), study["reports"]
    own = text and arm.get("batches", study.get("batches")) == "own"
    labels = arm.get("labels", study["labels"])
    counts = {
        name: len(TrainingStudies.of(PreparedSet.open(trained / name), text=text))
        for name in (reports, *labels)
    }
    labelled = sum(counts[name] for name in labels)
    sets = []
    for name, count in counts.items():
        share = count / sum(counts.values())
        if text and name == reports:
            share = 0.5 if labels else 1.0
        elif text:
            share = 0.5 * count / labelled
        folders = [trained / name]
        folders += [out / "sets" / "mirrored" / name] * (name in arm.get("mirrored", ()))
        batches = f", batches: {'reports' if name == reports else 'labels'}" * own
        if text and "boxes" in arm and name in labels:
            kind, pattern = arm["boxes"], f"{name}*.json"
            batches += f", boxes: [{', '.join(map(str, sorted((out / kind).glob(pattern))))}]"
        weight = round(share / len(folders), 4)
        sets += [f"{{path: {folder}, weight: {weight}{batches}}}" for folder in folders]
    judged = [trained / name for name in study["judged"] if name not in counts]
    sets += [f"{{path: {folder}, weight: 0}}" for folder in judged]
    return f"prepared=[{', '.join(sets)}]"


def train(out: Path, study: dict[str, Any], arm: dict[str, Any], folder: Path, seed: int) -> None:
    """Train one cell; an arm with ``pretrain`` starts from a trunk of that many steps of SimCLR.

    Arms of a seed that learn from the same films share the trunk, which knows nothing of their
    settings. ``OUT`` in an arm's settings is the study's folder.
    """
    changed = [word.replace("OUT", f"{out}") for word in arm.get("settings", [])]
    settings, seeded = [*study["settings"], *changed], f"train.seed={seed}"
    config, text = "phantom/base", f"model.text.folder={out / 'language_model'}"
    if arm.get("pretrain"):
        sets = training_sets(out, study, arm, text=False)
        trunk = out / "trunks" / f"{arm['pretrain']}_{json_hash(sets)}" / f"{seed}"
        words = [f"out={trunk}", sets, *study["settings"], text, seeded, "train.task=two_view"]
        words += [f"train.steps={arm['pretrain']}", "train.sentences_per_study=1"]
        words += ["train.augment.brightness=0.4", "train.augment.contrast=0.4"]
        trunk.mkdir(parents=True, exist_ok=True)
        with FileLock(trunk.with_suffix(".lock")):
            if not (trunk / "finished.json").exists():
                command("train", "phantom/base", "--loss", "clip", *words)
        config, text = "real/joint", f"model.start_from={trunk / 'model'}"  # the same steps
        settings = [word for word in settings if not word.startswith(("model.", "preprocessing."))]
    words = [f"out={folder}", training_sets(out, study, arm, text=True), *settings, text, seeded]
    command("train", config, "--loss", arm.get("preset", study["preset"]), *words)


def judge(out: Path, study: dict[str, Any], arm: dict[str, Any], folder: Path, cell: Path) -> None:
    """Evaluate a model on the test films of every judged archive.

    Sentences that are not in an image, which no outcome reads and which take longest, are few.
    """
    options = folder / "evaluation.yaml"
    options.write_text("{suppression_from: none, sentences_per_image: 1}\n", encoding="utf-8")
    for name in study["judged"]:
        prepared = out / "sets" / f"{arm.get('size', 72)}" / name
        results, prompts = out / "cells" / name / cell, PROMPTS.get(name, "chestxray14")
        classes = ",".join(judged_classes(prepared, prompts=prompts))
        words = ["--out", results, "--prompts", prompts, "--classes", classes, "--options", options]
        words += ["--bootstrap", "50", "--heatmaps", "0"]
        command("evaluate", folder / "model", prepared, *words)
        name_items_alike(results, prepared, out / "sets" / "72" / name)


def name_items_alike(cell: Path, judged: Path, base: Path) -> None:
    """Give the items of a cell the names that they have in ``base``, the same films in 72 pixels.

    Names depend on a set's content and secret, and cells pair by them.
    """
    if judged == base:
        return
    names = []
    for folder in (judged, base):
        prepared = PreparedSet.open(folder)
        images, phrases = prepared.images, prepared.phrases
        said = images[["image_id", "study_id"]].merge(prepared.sentences, on="study_id")
        columns = [images[name] for name in ("image_id", "study_id", "patient_id")]
        columns += [phrases["phrase_id"], said["image_id"] + ":" + said["text"]]
        ids = pd.concat(columns).unique()
        keys = item_keys(read_secret(folder), prepared.content_hash, map(str, ids))
        names.append(dict(zip(map(str, ids), keys, strict=True)))
    known = {names[0][name]: key for name, key in names[1].items() if name in names[0]}
    for path in sorted((cell / "items").glob("*.parquet")):
        items = pd.read_parquet(path)
        for column in ("item", "patient"):
            items[column] = items[column].map(lambda key: known.get(key, key))
        with atomic_file(path) as temporary:
            items.to_parquet(temporary, index=False)


def whole_cells(out: Path, study: dict[str, Any]) -> dict[str, list[int]]:
    """Return the seeds of each arm whose cells are judged everywhere; print what is missing."""

    def judged(arm: str, seed: int) -> bool:
        places = (out / "cells" / name / arm / f"{seed}" for name in study["judged"])
        return all((place / "results.json").is_file() for place in places)

    seeds = {arm: [s for s in study["seeds"] if judged(arm, s)] for arm in study["arms"]}
    for arm, done in seeds.items():
        if len(done) < len(study["seeds"]):
            print(f"# {arm}: {len(done)} of {len(study['seeds'])} seeds are there")
    return {arm: done for arm, done in seeds.items() if done}


def table(out: Path, study: dict[str, Any]) -> None:
    """Write ``table.json``, ``seeds.csv`` and ``cells.parquet`` of the cells that are there.

    Arms minus the first arm over patients and seeds, over the seeds that all arms have; Holm's
    correction over all arms and outcomes (p is none below three seeds). ``seeds.csv`` has the
    outcomes of each arm and seed. ``cells.parquet`` has a row for each judged item: digests of item
    and patient, class, label, and the value from which every outcome follows (for AUC the rank of
    the score among the cell's).
    """
    seeds, cells = whole_cells(out, study), out / "cells"
    shared = [s for s in study["seeds"] if all(s in done for done in seeds.values())]
    rows = []
    for name, metrics in study["outcomes"].items():
        groups = [
            f"{arm}=" + ",".join(str(cells / name / arm / f"{s}") for s in shared) for arm in seeds
        ]
        compared = compare([], named=groups, metrics=metrics, force=True)
        for why in compared["forced"]:  # then a difference has neither interval nor p
            print(f"# {name}: {why}")
        for row in compared["rows"]:
            known = {"archive": name, "metric": row["key"]}
            rows += [known | {"arm": arm, **found} for arm, found in row["groups"].items()]
    for row, p in zip(rows, holm([row.get("p") for row in rows]), strict=True):
        row["p_holm"] = p
        gap, bounds = row.get("difference"), row.get("difference_interval")
        said = "" if gap is None else f"  minus first {gap:+.3f} {bounds}"
        named = f"{row['archive']:10} {row['metric']:34} {row['arm']:16}"
        print(f"{named} {row['value']:.3f}{said} p {p}")
    write_json(out / "table.json", {"title": study["title"], "seeds": shared, "rows": rows})
    values = {
        (row["arm"], seed, f"{row['archive']}.{row['metric']}"): value
        for row in rows
        for seed, value in zip(shared, row.get("seed_values") or [row["value"]], strict=True)
    }
    of_seeds = pd.Series(values).unstack().rename_axis(["arm", "seed"]).round(4)
    with atomic_file(out / "seeds.csv") as temporary:
        of_seeds.to_csv(temporary)
    for line in doublings(study["arms"], of_seeds):
        print(line)
    items = [
        frame.assign(archive=name, arm=arm, seed=seed)
        for name, metrics in study["outcomes"].items()
        for arm, done in seeds.items()
        for seed in done
        for frame in judged_items(cells / name / arm / f"{seed}" / "items")
        if f"{frame['metric'].iloc[0]}" in {metric.split(".")[-1] for metric in metrics}
    ]
    order = ["archive", "metric", "class", "item", "arm", "seed"]
    table = pd.concat(items).sort_values(order, ignore_index=True)
    texts = table.select_dtypes(exclude="number").columns
    table[texts] = table[texts].astype("category")
    with atomic_file(out / "cells.parquet") as temporary:
        table.to_parquet(temporary, compression="zstd", compression_level=19, index=False)


def doublings(arms: Mapping[str, Mapping[str, Any]], of_seeds: pd.DataFrame) -> Iterator[str]:
    """Yield what twice the training patients change in each outcome, over arms that differ in them.

    The slope of a straight line over log2 of the share in each seed; mean and 95% (t) over seeds.
    """
    alike = [arm for arm, settings in arms.items() if not set(settings) - {"share"}]
    shares = np.log2([arms[arm].get("share", 1) for arm in alike])
    if len(set(shares)) < 3:
        return
    for outcome in of_seeds:
        values = of_seeds[outcome].unstack("seed").loc[alike]
        found = seed_summary(np.polyfit(shares, values.to_numpy(), 1)[0].tolist())
        low, high = found.interval or (np.nan, np.nan)
        yield f"{outcome}: {found.mean:+.3f} a doubling [{low:+.3f}, {high:+.3f}]"


def judged_items(folder: Path) -> Iterator[pd.DataFrame]:
    """Yield the items of one evaluation: item, patient, class, label, metric, value."""
    for file, kept in ITEMS.items():
        if not (folder / f"{file}.parquet").is_file():
            continue
        items = pd.read_parquet(folder / f"{file}.parquet")
        blank = pd.Series(np.nan, items.index)
        parts: list[tuple[str, Any, pd.Series, pd.Series]] = []
        for metric, column in kept.items():
            if file == "zero_shot":
                for labels in map(str, items.filter(regex=r"^label\.")):
                    name = labels.removeprefix("label.")
                    known = items.loc[items[labels].isin((0, 1))]
                    ranks = known[f"{column}.{name}"].rank()
                    parts.append((metric, name, known[labels], ranks))
            elif file == "study_retrieval":
                ways = ("text_to_image", "image_to_text")
                parts += [(metric, way, blank, items[column.format(way)]) for way in ways]
            else:
                parts.append((metric, items.get("category"), blank, items[column]))
        for metric, of_class, label, value in parts:
            part = items.loc[value.index, ["item", "patient"]].assign(**{"class": of_class})
            numbers = {"value": value.astype("float32")}
            yield part.assign(label=label.astype("float32"), metric=metric, **numbers)


def read_study(options: argparse.Namespace) -> dict[str, Any]:
    """The study of ``--arms``, with the seeds of ``--seeds`` where they are given."""
    study: dict[str, Any] = yaml.safe_load(options.arms.read_text(encoding="utf-8"))
    return study | {"seeds": options.seeds or study["seeds"]}


def main() -> None:
    """Run what is left of the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--arms", type=Path, default=Path("configs/studies/real_localise.yaml"))
    parser.add_argument("--out", type=Path, default=Path("runs/real_arms"))
    parser.add_argument("--seeds", type=int, nargs="+", help="only these of the study's; all")
    parser.add_argument("--table", action="store_true", help="of what is there; train nothing")
    options = parser.parse_args()
    study, out = read_study(options), options.out
    for name, arm in study["arms"].items():
        arm |= {"variant": f"claims_{name}"} if "claims" in arm else {}
    out.mkdir(parents=True, exist_ok=True)
    if options.table:
        table(out, study)
        return
    with FileLock(out / "prepare.lock"):
        prepare(options.data, out, study)
    missing = False
    for seed in study["seeds"]:
        for name, arm in study["arms"].items():
            cell, folder = Path(name) / f"{seed}", out / "runs" / name / f"{seed}"
            done = [out / "cells" / judged / cell / "results.json" for judged in study["judged"]]
            folder.mkdir(parents=True, exist_ok=True)
            try:
                with FileLock(folder.with_suffix(".lock"), timeout=0):
                    if not all(path.is_file() for path in done):
                        train(out, study, arm, folder, seed)
                        judge(out, study, arm, folder, cell)
            except Timeout:
                missing = True
    if missing:
        print("# other processes have the cells that are left")
    table(out, study)


if __name__ == "__main__":
    sys.exit(exit_code(main))
