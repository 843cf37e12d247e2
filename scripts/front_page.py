"""Draw the pictures of README.md and the pages: maps, plots, the report and the viewer.

    python scripts/front_page.py runs/demo                   # behind `make demo`; into docs/images
    python scripts/front_page.py runs/demo --only viewer     # one of them

The radiographs are the phantom's; the plot of differences is of docs/studies/positives.parquet.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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


def draw_grounding(run: Path, figure: Any) -> None:
    """Four maps whose peak lies in a true box, and four whose peak does not: as the report has."""
    import io
    from base64 import b64decode

    from PIL import Image

    from medclip_debias.reporting.report import opening_pictures
    from medclip_debias.reporting.run_files import read_heatmaps

    groups = opening_pictures(read_heatmaps(run / "heatmaps")["items"])
    for part, (title, shown) in zip(figure.subfigures(2, 1), groups, strict=True):
        part.suptitle(title.split(" (")[0], fontsize=10, weight="bold", x=0.01, ha="left")
        for panel, item in zip(part.subplots(1, 4), shown, strict=True):
            with Image.open(io.BytesIO(b64decode(item["picture"].split(",", 1)[1]))) as picture:
                panel.imshow(picture.convert("RGB"))
            text = item["text"]
            panel.set_title(text if len(text) <= 44 else f"{text[:43]}…", fontsize=8)
            panel.set_axis_off()


def draw_data_flow(axes: Any) -> None:
    """How a batch becomes a loss: encoders, similarity, and what corrects for false negatives."""
    boxes = {
        "radiograph": (0, 4, "radiographs"),
        "sentence": (0, 2.6, "sentences"),
        "reports": (0, 0.2, "reports or labels"),
        "image_encoder": (1, 4, "image encoder\n(ResNet)"),
        "text_encoder": (1, 2.6, "text encoder\n(CXR-BERT)"),
        "language_model": (1, 1.3, "masked\nlanguage model"),
        "evidence": (2.2, 0.2, "evidence on pairs:\nlabels, claims, text"),
        "similarity": (2.2, 3.3, "similarity h of regions\nand sentence: LSE + NL"),
        "eta": (2.2, 1.3, "share of false\nnegatives, eta"),
        "loss": (3.3, 1.6, "objective\n(loss.kind)"),
        "use": (3.3, 4, "heatmaps, zero-shot\nclasses, retrieval"),
    }
    arrows = [
        ("radiograph", "image_encoder", ""),
        ("sentence", "text_encoder", ""),
        ("sentence", "language_model", ""),
        ("image_encoder", "similarity", "unit vectors\nof regions"),
        ("text_encoder", "similarity", "unit vector\nof a sentence"),
        ("language_model", "eta", ""),
        ("reports", "evidence", ""),
        ("similarity", "loss", "logits s = g2 h"),
        ("eta", "loss", "debiased"),
        ("evidence", "loss", "remove, weigh,\nor positives"),
        ("similarity", "use", ""),
    ]
    drawn = {}
    for name, (column, row, words) in boxes.items():
        corrects = name in ("language_model", "eta", "evidence", "reports")
        style = {"boxstyle": "round,pad=0.45", "facecolor": "white", "linewidth": 1.5}
        style["edgecolor"] = NEGATIVE if corrects else POSITIVE
        drawn[name] = axes.text(column, row, words, ha="center", va="center", bbox=style)
    axes.set(xlim=(-0.3, 3.7), ylim=(-0.4, 4.6))
    axes.set_axis_off()
    axes.figure.draw_without_rendering()
    for start, end, words in arrows:
        ends = {"patchA": drawn[start].get_bbox_patch(), "patchB": drawn[end].get_bbox_patch()}
        xy, source = (boxes[name][:2] for name in (end, start))
        style = {"arrowstyle": "-|>", "color": MUTED, "shrinkA": 2, "shrinkB": 2} | ends
        axes.annotate("", xy=xy, xytext=source, arrowprops=style)
        middle = [0.42 * a + 0.58 * b for a, b in zip(xy, source, strict=True)]
        axes.text(*middle, words, fontsize=8, ha="center", va="center", backgroundcolor="white")


@contextmanager
def browser_page(width: int, height: int) -> Iterator[Any]:
    """A page of the system's Chromium, as the tests of the viewer open one."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield browser.new_page(viewport={"width": width, "height": height})
        browser.close()


def photograph_report(run: Path, out: Path) -> None:
    """The head of the run's report."""
    with browser_page(1180, 900) as page:
        page.goto((run / "report.html").resolve().as_uri())
        page.screenshot(path=out)
    make_small(out)


def photograph_viewer(run: Path, out: Path) -> None:
    """The viewer on a held-out radiograph of the phantom, with the map of a sentence."""
    images = run / "phantom" / "files" / "p19"
    command = [sys.executable, "-m", "medclip_debias", "view", f"{run / 'model'}", "--port", "0"]
    command += ["--images", f"{images}", "--device", "cpu", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = json.loads(server.stdout.readline())["address"]
            with browser_page(1180, 900) as page:
                page.goto(address)
                page.wait_for_selector("#findings-lists button", timeout=60_000)
                page.fill("#sentence", "The heart is enlarged.")
                page.click("#add button")
                page.wait_for_selector("#list li", timeout=60_000)
                page.wait_for_timeout(1000)
                page.screenshot(path=out)
        finally:
            server.send_signal(signal.SIGINT)
    make_small(out)


def make_small(path: Path) -> None:
    """Write a picture anew with 256 colours: a third of the bytes."""
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
    small.save(path, optimize=True)


def main() -> None:
    names = ["example", "grounding", "false_negatives", "differences", "data_flow"]
    names += ["report", "viewer"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished demo")
    parser.add_argument("--only", choices=names, action="append", help="one of the pictures")
    arguments = parser.parse_args()
    run, wanted = arguments.run, arguments.only or names
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    mpl.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    IMAGES.mkdir(exist_ok=True)
    figures: dict[str, tuple[Callable[[Any], None], tuple[float, float]]] = {
        "example": (partial(draw_example, run), (12, 3.1)),
        "grounding": (partial(draw_grounding, run), (12, 4.2)),
        "false_negatives": (lambda f: draw_false_negatives(run, f.subplots()), (7.5, 3.2)),
        "differences": (lambda f: draw_differences(f.subplots()), (7.5, 2.9)),
        "data_flow": (lambda f: draw_data_flow(f.subplots()), (10, 4.2)),
    }
    for name in wanted:
        path = IMAGES / f"{name}.png"
        if name in figures:
            draw, size = figures[name]
            figure = plt.figure(figsize=size, layout="constrained")
            draw(figure)
            figure.savefig(path, dpi=90)
        else:
            (photograph_report if name == "report" else photograph_viewer)(run, path)
        if name in ("example", "grounding"):
            make_small(path)


if __name__ == "__main__":
    main()
