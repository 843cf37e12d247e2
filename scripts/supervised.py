"""A classifier trained on labels, or on the claims of the reports: what they and images allow.

The image encoder of a config, from scratch, its mean over regions and one linear layer for each
label column, learn by binary cross-entropy on the training images whose targets are 1 or 0. The
targets are the set's labels, or (``--targets claims``, Open-i) what its reports claim: 1 where a
claim of the column's findings is present and certain, unknown where it is uncertain, else 0. The
weights kept are those with the best mean AUC on the validation images, by the same targets. AUC on
the test images is by the labels in both cases, with bootstrap intervals over patients, as zero-shot
classification has.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor, nn

from commands import run_script
from medclip_debias.config import AugmentSettings, ModelSettings
from medclip_debias.data.augment import augment, draw
from medclip_debias.data.labels import LabelPolicy
from medclip_debias.data.layout import STUDY_COLUMNS
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims.table import read_claims
from medclip_debias.errors import UserError
from medclip_debias.evaluation.label_table import study_labels
from medclip_debias.evaluation.metrics import auc
from medclip_debias.evaluation.probe import auc_with_interval
from medclip_debias.evaluation.protocol import Draw
from medclip_debias.files import write_json
from medclip_debias.models.image_encoder import build_image_encoder
from medclip_debias.training.optim import learning_rate
from medclip_debias.training.resolve import load_run
from medclip_debias.training.settings import RunSettings

Floats = NDArray[np.float64]
FORMAT = 1
FINDINGS: dict[str, tuple[str, ...]] = {
    "Airspace Disease": ("airspace_opacity",),
    "Aortic Tortuosity": ("tortuous_aorta",),
    "Arthritis": ("degenerative_spine",),
    "Atherosclerosis": ("aortic_atherosclerosis",),
    "Blunted Costophrenic Angle": ("blunted_angle",),
    "Bronchovascular Markings": ("vascular_crowding",),
    "Calcified Granuloma": ("calcified_granuloma",),
    "Calcinosis": ("calcified_granuloma", "calcified_nodule", "calcified_lymph_nodes"),
    "Cicatrix": ("scarring",),
    "Degenerative Spine": ("degenerative_spine",),
    "Diaphragmatic Eventration": ("eventration",),
    "Elevated Diaphragm": ("elevated_diaphragm",),
    "Emphysema": ("emphysema",),
    "Granulomatous Disease": ("granuloma",),
    "Hiatal Hernia": ("hiatal_hernia",),
    "Hyperinflation": ("hyperinflation",),
    "Hypoinflation": ("low_lung_volume",),
    "Implanted Device": ("pacemaker",),
    "Indwelling Catheter": ("central_line",),
    "Infiltrate": ("infiltrate",),
    "Kyphosis": ("kyphosis",),
    "Metabolic Bone Disease": ("osteopenia",),
    "Nodule": ("nodule",),
    "Opacity": ("opacity",),
    "Osteophyte": ("degenerative_spine",),
    "Pulmonary Congestion": ("congestion",),
    "Scoliosis": ("scoliosis",),
    "Spondylosis": ("degenerative_spine",),
    "Surgical Instruments": ("surgical_material",),
}
"""Findings of the lexicon by Open-i's own columns; those of CheXpert's stand in the lexicon."""
Targets = Literal["labels", "claims"]


class Classifier(nn.Module):
    """Mean of the region features, then one logit for each class: ``[B, classes]``."""

    def __init__(self, encoder: Any, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(encoder.width, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(images).mean(dim=(2, 3)))
        return logits


def supervised(
    settings: RunSettings,
    out: Path,
    *,
    steps: int,
    targets: Targets = "labels",
    lr: float = 1e-3,
    every: int = 100,
    split: str = "test",
    bootstrap: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Train and test the classifier; write ``supervised.json``.

    ``targets``: what is learned (see the module); ``every``: steps between looks at the validation
    images; ``split``: what is measured.
    """
    began = time.perf_counter()
    if not isinstance(settings.prepared, Path):
        raise UserError("The supervised reference learns one prepared set; name one in 'prepared'.")
    data = PreparedSet.open(settings.prepared)
    names, truth = _labels(data)
    learned = truth
    if targets == "claims":
        of_images = claimed(data, names).reindex(data.images["study_id"].astype(str))
        learned = of_images.to_numpy(dtype=np.float64)
    rows = {s: np.flatnonzero(data.images["split"] == s) for s in ("train", "validate", split)}
    usable = [
        _both(learned[rows["train"], n]) and _both(truth[rows[split], n]) for n in range(len(names))
    ]
    if not any(usable):
        raise UserError(f"{data.folder}: no label has both values in train and {split}.")
    torch.manual_seed(seed)
    assert isinstance(settings.model, ModelSettings)  # a new model
    model = Classifier(build_image_encoder(settings.model.image), len(names))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05)
    size, side = data.settings.size, settings.preprocessing.input_size
    batch = settings.train.batch_size
    best, kept, at = -np.inf, None, 0
    order = _order(rows["train"], steps * batch, seed)
    for step in range(steps):
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, peak=lr, warmup=min(100, steps), steps=steps)
        chosen = order[step * batch : (step + 1) * batch]
        draws = draw(np.random.default_rng([seed, step]), AugmentSettings(), batch, size, side)
        logits = model(_input(augment(data.pixels, chosen, draws), settings))
        wanted = torch.from_numpy(learned[chosen]).float()
        known = ~wanted.isnan()
        loss = nn.functional.binary_cross_entropy_with_logits(logits[known], wanted[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % every == 0 or step + 1 == steps:
            scores = _scores(model, data, rows["validate"], settings)
            value = _mean_auc(scores, learned[rows["validate"]])
            print(
                f"step {step + 1}: loss {loss.item():.3f}, validation AUC {value:.3f}", flush=True
            )
            if value > best:
                best, at = value, step + 1
                kept = {k: v.clone() for k, v in model.state_dict().items()}
    if kept is not None:
        model.load_state_dict(kept)
    scores = _scores(model, data, rows[split], settings)
    patients = data.images["patient_id"].astype(str).to_numpy()[rows[split]]
    classes, refused = {}, {}
    for n, name in enumerate(names):
        known = ~np.isnan(truth[rows[split], n])
        judged = truth[rows[split], n][known]
        counts = {"positive": int((judged == 1).sum()), "negative": int((judged == 0).sum())}
        if not usable[n]:
            refused[name] = counts
            continue
        people = patients[known].tolist()
        found = auc_with_interval(scores[known, n], judged, people, Draw(bootstrap, seed))
        classes[name] = found | counts
    results = {
        "format": FORMAT,
        "split": split,
        "targets": targets,
        "classes": classes,
        "mean_auc": float(np.mean([found["auc"] for found in classes.values()])),
        "refused": refused,
        "validation_auc": float(best),
        "best_step": at,
        "steps": steps,
        "batch_size": batch,
        "lr": lr,
        "seed": seed,
        "image": settings.model.image.model_dump(mode="json"),
        "input_size": side,
        "bootstrap": {"resamples": bootstrap, "unit": "patient", "level": 0.95},
        "data_hash": data.content_hash,
        "seconds": time.perf_counter() - began,
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "supervised.json", results)
    return results


def _labels(data: PreparedSet) -> tuple[list[str], Floats]:
    """Label columns, and 1, 0 or NaN for each image ``[images, columns]``."""
    names = [name for name in data.studies.columns if name not in STUDY_COLUMNS]
    if not names:
        raise UserError(f"{data.folder}: its studies have no labels.")
    _, values = study_labels(data, data.images["study_id"].tolist(), names)
    return names, np.stack([LabelPolicy().apply(own) for own in values.values()], axis=1)


def claimed(data: PreparedSet, names: Sequence[str]) -> pd.DataFrame:
    """What the reports claim of label columns: a row a study; NaN where it is not known.

    "No Finding" is 1 where nothing is claimed present but devices and what surgery left. Of a
    column that is none of the lexicon's findings nothing is known.
    """
    table = read_claims(data)
    lexicon = table.lexicon
    of_text = dict(zip(data.texts, table.claims, strict=True))
    certain: dict[str, set[str]] = {study: set() for study in data.studies["study_id"].astype(str)}
    possible: dict[str, set[str]] = {study: set() for study in certain}
    for study, text in data.sentences[["study_id", "text"]].itertuples(index=False):
        for claim in of_text[text]:
            if claim.present:
                found = certain if claim.certain else possible
                found[str(study)] |= lexicon.ancestors[claim.finding]
    left_aside = lexicon.descendants["support_device"] | {"surgical_material"}
    columns = []
    for name in names:
        wanted = set(FINDINGS.get(name, ()))
        wanted |= {own for own, entry in lexicon.findings.items() if entry.chexpert == name}
        if name == "No Finding":
            wanted = set(lexicon.names) - left_aside
        present, unsure = (
            np.array([bool(wanted & found[study]) for study in certain])
            for found in (certain, possible)
        )
        values = np.where(present, 1.0, np.where(unsure | (not wanted), np.nan, 0.0))
        columns.append(1 - values if name == "No Finding" else values)
    return pd.DataFrame(np.stack(columns, axis=1), index=list(certain), columns=list(names))


def _both(values: Floats) -> bool:
    return bool((values == 1).any() and (values == 0).any())


def _order(rows: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """``count`` rows: one shuffled pass over all after the other."""
    rng = np.random.default_rng(seed)
    passes = -(-count // len(rows))
    return np.concatenate([rng.permutation(rows) for _ in range(passes)])[:count]


def _input(pixels: NDArray[np.uint8], settings: RunSettings) -> Tensor:
    grey = torch.from_numpy(np.ascontiguousarray(pixels)).float()[:, None] / 255
    return (grey - settings.preprocessing.mean) / settings.preprocessing.std


@torch.inference_mode()
def _scores(
    model: Classifier,
    data: PreparedSet,
    rows: Sequence[int] | NDArray[np.int64],
    settings: RunSettings,
) -> Floats:
    model.eval()
    side = settings.preprocessing.input_size
    start = (data.settings.size - side) // 2
    parts = []
    for first in range(0, len(rows), 256):
        pixels = np.asarray(data.pixels[rows[first : first + 256]])
        cut = pixels[:, start : start + side, start : start + side]
        parts.append(model(_input(cut, settings)).double().numpy())
    return np.concatenate(parts)


def _mean_auc(scores: Floats, truth: Floats) -> float:
    """Mean over the columns that have both values; NaN where none has."""
    values = [
        auc(truth[known, n] == 1, scores[known, n])
        for n in range(truth.shape[1])
        if _both(truth[:, n])
        for known in (~np.isnan(truth[:, n]),)
    ]
    return float(np.mean(values)) if values else float("nan")


def main(
    config: Annotated[Path, typer.Argument(help="YAML file of a training run")],
    out: Annotated[Path, typer.Option()],
    overrides: Annotated[list[str] | None, typer.Argument(help="settings as key=value")] = None,
    targets: Targets = "labels",
    classes: Annotated[str | None, typer.Option(help="of the printed mean, with commas")] = None,
    steps: int = 1000,
    seed: int = 0,
) -> None:
    """Train a classifier on labels, or on the claims of the reports, and test it on labels."""
    settings = load_run(config, overrides or [])
    found = supervised(settings, out, steps=steps, targets=targets, seed=seed)["classes"]
    judged = classes.split(",") if classes else list(found)
    mean = np.mean([found[name]["auc"] for name in judged])
    print(f"mean AUC {mean:.3f} over {len(judged)} classes")


if __name__ == "__main__":
    sys.exit(run_script(main))
