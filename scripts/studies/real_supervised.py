"""A classifier on claims beside the arms of a study on real films: same network, batches, steps.

    python scripts/studies/real_supervised.py OUT [--arms FILE] [--seeds N ...]

The image encoder of the study's first arm, from scratch, its mean over regions and one linear
layer for each class that a judged set asks for, learn by binary cross-entropy from the very
batches of the arm's run of that seed. The targets are what the claims of a study's sentences say
(`supervised.claimed`), and unknown where they cannot say anything of the class; where there are
labels and no reports, they are the labels. Prints, for each seed and judged set, the mean AUC on
the test films over the classes that were learned, beside that of the arm over the same classes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from commands import exit_code
from medclip_debias.data.joint import JointSet
from medclip_debias.data.secret import read_secret
from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.item_tables import item_keys
from medclip_debias.evaluation.metrics import auc
from medclip_debias.training.resolve import load_run
from medclip_debias.training.step import Trainer
from openi import judged_classes
from studies.classifier import Score, fit
from studies.real_arms import PROMPTS, read_study, training_sets
from supervised import claimed


def targets(trainer: Trainer, labelled: list[str], classes: list[str]) -> torch.Tensor:
    """What each training study says of each class: 1, 0 or NaN, ``[studies, classes]``."""
    joint, tables = trainer.prepared, []
    assert isinstance(joint, JointSet)
    for name, part in zip(joint.names, joint.parts, strict=True):
        if name in labelled:
            table = part.studies.drop_duplicates("study_id").set_index("study_id")
            table = table.reindex(columns=classes).astype(float)
            table = table.where(table.isin((0, 1)))
        else:
            table = claimed(part, classes)
        tables.append(table.set_axis(f"{name}/" + table.index.astype(str), axis=0))
    firsts = [int(rows[0]) for rows in trainer.studies.rows]
    of_studies = pd.concat(tables).loc[joint.images["study_id"].iloc[firsts]]
    return torch.tensor(of_studies.to_numpy(np.float32))


@torch.inference_mode()
def judge(
    score: Score, prepared: PreparedSet, side: int, cell: Path, learned: dict[str, int]
) -> tuple[float, float, int]:
    """Mean AUC of the classifier and of an arm's cell, on its items, and over how many classes.

    ``side`` is of the input, ``learned`` the place of each learned class among the logits.
    """
    items = pd.read_parquet(cell / "items" / "zero_shot.parquet")
    ids = prepared.images["image_id"].astype(str)
    keys = item_keys(read_secret(prepared.folder), prepared.content_hash, ids)
    rows = pd.Series(range(len(ids)), index=keys).loc[items["item"]].to_numpy()
    start = (prepared.settings.size - side) // 2
    pixels = np.asarray(prepared.pixels[rows])[:, start : start + side, start : start + side]
    batches = torch.from_numpy(np.ascontiguousarray(pixels)).split(256)
    logits = torch.cat([score(part).float().cpu() for part in batches]).numpy()
    pairs = []
    for name in sorted(name for name in learned if f"label.{name}" in items):
        known = items[f"label.{name}"].isin((0, 1)).to_numpy()
        truth = items[f"label.{name}"].to_numpy()[known] == 1
        scores = items[f"score.{name}"].to_numpy(float)[known]
        pairs.append((auc(truth, logits[known, learned[name]]), auc(truth, scores)))
    own, other = np.mean(pairs, axis=0)
    return float(own), float(other), len(pairs)


def main() -> None:
    """Train and judge each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the study, with its sets and cells")
    parser.add_argument("--arms", type=Path, default=Path("configs/studies/real_correction.yaml"))
    parser.add_argument("--seeds", type=int, nargs="+", help="only these of the study's; all")
    options = parser.parse_args()
    study, out = read_study(options), options.out
    arm = next(iter(study["arms"]))
    judged = {
        name: out / "sets" / "72" / name
        for name, metrics in study["outcomes"].items()
        if any(metric.startswith("zero_shot.") for metric in metrics)
    }
    of_archives = (
        judged_classes(folder, prompts=PROMPTS.get(name, "chestxray14"))
        for name, folder in judged.items()
    )
    classes = sorted(set().union(*of_archives))
    print("seed,archive,classes,supervised,arm")
    for seed in study["seeds"]:
        with tempfile.TemporaryDirectory() as folder:
            words = [f"out={folder}", training_sets(out, study, {}, text=True), *study["settings"]]
            words += [f"model.text.folder={out / 'language_model'}", f"train.seed={seed}"]
            trainer = Trainer(load_run("phantom/base", words, study["preset"]))
            wanted = targets(trainer, study["labels"], classes)
            both = [bool((column == 1).any() and (column == 0).any()) for column in wanted.T]
            learned = {name: n for n, name in enumerate(classes) if both[n]}
            score = fit(trainer, wanted)
            side = trainer.settings.preprocessing.input_size
            for name, place in judged.items():
                cell = out / "cells" / name / arm / f"{seed}"
                own, other, count = judge(score, PreparedSet.open(place), side, cell, learned)
                print(f"{seed},{name},{count},{own:.4f},{other:.4f}", flush=True)


if __name__ == "__main__":
    sys.exit(exit_code(main))
