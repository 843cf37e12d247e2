"""Draw README.md's pictures: what a model sees, why negatives are false, what was found, a report.

    python scripts/front_page.py runs/demo          # behind `make demo`; into docs/images

The radiographs are the phantom's; the last plot is of docs/studies/positives.parquet.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import numpy as np

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = DOCS / "images"
POSITIVE, NEGATIVE, MUTED = "#0072B2", "#D55E00", "#8a939b"
# Study, grid and steps of the last plot's rows.
GRIDS = (
    ("Phantom, 300 steps", "positives_phantom_300"),
    ("Phantom, 1,000 steps", "positives_phantom_1000"),
    ("Phantom, 3,000 steps", "positives_phantom_3000"),
    ("Open-i, seeds 0 to 4", "positives_openi"),
    ("Open-i, seeds 5 to 9", "positives_openi_again"),
)
ARMS = (
    ("positives by claims", "taken as positives", POSITIVE, "o"),
    ("remove by claims", "left out", NEGATIVE, "s"),
)


def draw_example(run: Path, figure: Any) -> None:
    """A radiograph with its box, the sentence's map beside that of its mirror, and five classes.

    The sentence is the first of the phantom's phrases with boxes, in the order of their ids, that
    names a left pleural effusion; patients with such phrases are never trained on.
    """
    import pandas as pd
    from matplotlib.patches import Rectangle

    import medclip_debias as md

    phrases = pd.read_parquet(run / "prepared" / "phrases.parquet").sort_values("phrase_id")
    named = phrases["text"].str.contains("left") & (phrases["category"] == "Pleural Effusion")
    phrase = phrases[named].iloc[0]
    (file,) = (run / "phantom" / "files").rglob(f"{phrase['image_id']}.dcm")
    sentences = [phrase["text"], phrase["text"].replace("left", "right")]
    model = md.load(run / "model", device="cpu")
    maps = model.heatmaps(file, sentences)
    probabilities = model.zero_shot([file], "chex5").iloc[0].iloc[::-1]
    radiograph, own, mirrored, classes = figure.subplots(1, 4, width_ratios=[1, 1, 1, 0.9])
    low, high = maps.limits
    radiograph.set_title("radiograph, true box", fontsize=9)
    for x, y, width, height in phrase["boxes"]:
        radiograph.add_patch(
            Rectangle((x, y), width, height, fill=False, color="#56B4E9", lw=2, zorder=3)
        )
    for panel, sentence in zip((own, mirrored), sentences, strict=True):
        shown = panel.imshow(
            maps[sentence], vmin=low, vmax=high, alpha=0.55, cmap="inferno", zorder=2
        )
        panel.set_title(f"“{sentence}.”", fontsize=9)
    figure.colorbar(shown, ax=mirrored, shrink=0.75, label="similarity (cosine)")
    for panel in (radiograph, own, mirrored):
        panel.imshow(maps.image, cmap="gray", zorder=1)
        panel.set_axis_off()
    bars = classes.barh(list(probabilities.index), probabilities, color=POSITIVE)
    classes.bar_label(bars, fmt="%.2f", padding=2)
    classes.set(xlim=(0, 1.15), xticks=(0, 0.5, 1), xlabel="zero-shot probability")


def draw_false_negatives(run: Path, axes: Any) -> None:
    """For frequent and rare sentences: the share of studies of which they are true."""
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.data.text.evidence import Evidence

    prepared = PreparedSet.open(run / "prepared")
    train = prepared.images.loc[prepared.images["split"] == "train", "study_id"].unique()
    rows = {name: row for row, name in enumerate(prepared.studies["study_id"])}
    studies = np.array([rows[name] for name in train])
    said = prepared.sentences["text"][prepared.sentences["study_id"].isin(train)].value_counts()
    texts = [*said.index[:7], *said.index[said == 5][:3]]
    places = {text: place for place, text in enumerate(prepared.texts)}
    pairs = Evidence.open(prepared).pairs(studies, np.array([places[text] for text in texts]))
    shares = (pairs == 1).mean(axis=0)
    order = np.argsort(shares)
    axes.barh([f"“{texts[i]}”" for i in order], shares[order], color=NEGATIVE)
    axes.set(xlim=(0, 1), xlabel="share of the other studies whose report implies the sentence")


def draw_differences(axes: Any) -> None:
    """Differences to InfoNCE in zero-shot AUC, with 95% over patients and seeds."""
    import pandas as pd

    every = pd.read_parquet(DOCS / "studies" / "positives.parquet")
    every = every[(every["against"] == "InfoNCE") & (every["metric"] == "zero_shot.mean_auc")]
    places = np.arange(len(GRIDS))[::-1]
    for shift, (arm, label, colour, marker) in zip((0.14, -0.14), ARMS, strict=True):
        own = every[every["method"] == arm].set_index("grid")
        rows = own.loc[[grid for _, grid in GRIDS], ["value", "low", "high"]]
        means, lows, highs = rows.to_numpy().T
        axes.errorbar(
            means, places + shift, xerr=[means - lows, highs - means],
            fmt=marker, color=colour, label=label, capsize=2,
        )  # fmt: skip
    axes.axvline(0, color=MUTED, linewidth=1)
    axes.set_yticks(places, [title for title, _ in GRIDS])
    axes.set_xlabel("zero-shot AUC, difference to InfoNCE (95% over patients and seeds)")
    axes.legend(frameon=False, loc="lower right")


def photograph_report(run: Path, out: Path) -> None:
    """The head of the run's report, as the system's Chromium shows it."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1180, "height": 900})
        page.goto((run / "report.html").resolve().as_uri())
        page.screenshot(path=out)
        browser.close()
    with Image.open(out) as picture:  # 256 colours are enough, and a third of the bytes
        small = picture.convert("RGB").quantize(256)
    small.save(out, optimize=True)


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished demo")
    run = parser.parse_args().run
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    mpl.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    IMAGES.mkdir(exist_ok=True)
    figure = plt.figure(figsize=(12, 3.1), layout="constrained")
    draw_example(run, figure)
    figure.savefig(IMAGES / "example.png", dpi=90)
    for name, draw, height in (
        ("false_negatives", lambda axes: draw_false_negatives(run, axes), 3.2),
        ("differences", draw_differences, 2.9),
    ):
        figure, axes = plt.subplots(figsize=(7.5, height), layout="constrained")
        draw(axes)
        figure.savefig(IMAGES / f"{name}.png", dpi=90)
    photograph_report(run, IMAGES / "report.png")


if __name__ == "__main__":
    main()
