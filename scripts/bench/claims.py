"""How well claims are read from sentences, and what follows of them about pairs.

    python scripts/bench/claims.py openi FOLDER       F1 against Open-i's MeSH headings
    python scripts/bench/claims.py denials PREPARED   what agreeing pairs say

FOLDER holds Open-i (``NLMCXR_reports.tgz`` and ``indiana_reports.csv``), PREPARED has claims
(`medclip-debias claims`). The lexicon was tuned on the reports whose hashed id is even (``--half
tuned``); the published figures are those of the other half. ``--certain`` counts what is claimed
without a doubt alone, ``--split test`` the reports of one split of `openi-report-80-10-10-v1`.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import typer

from medclip_debias.data.sources.detect import detect
from medclip_debias.data.splits import seeded_split
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims import RuleParser
from medclip_debias.data.text.claims.table import read_claims
from medclip_debias.data.text.evidence import Evidence
from medclip_debias.data.text.reports import report_sentences
from medclip_debias.markdown import markdown_table

DRAWS, SEED = 1000, 0
app = typer.Typer(help=__doc__, add_completion=False)


def show(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; shares with three digits."""
    cells = [[f"{c:.3f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    print("\n".join(markdown_table(head, cells, words=1)))


# ----------------------------------------------------------------------------------- Open-i

HEADINGS: dict[str, tuple[str, ...]] = {
    "cardiomegaly": ("Cardiomegaly", "Cardiac Shadow/enlarged"),
    "pleural_effusion": ("Pleural Effusion",),
    "pneumothorax": ("Pneumothorax",),
    "atelectasis": ("Pulmonary Atelectasis",),
    "consolidation": ("Consolidation",),
    "pneumonia": ("Pneumonia",),
    "edema": ("Pulmonary Edema",),
    "congestion": ("Pulmonary Congestion",),
    "opacity": ("Opacity", "Infiltrate", "Airspace Disease", "Consolidation", "Pneumonia"),
    "infiltrate": ("Infiltrate",),
    "airspace_opacity": ("Airspace Disease",),
    "nodule": ("Nodule",),
    "mass": ("Mass",),
    "granuloma": ("Calcified Granuloma", "Granuloma", "Granulomatous Disease"),
    "calcified_granuloma": ("Calcified Granuloma",),
    "emphysema": ("Emphysema", "Pulmonary Emphysema", "Bullous Emphysema", "Blister"),
    "copd": ("Pulmonary Disease, Chronic Obstructive",),
    "hyperinflation": ("Lung/hyperdistention", "Lung, Hyperlucent", "Diaphragm/flattened"),
    "low_lung_volume": ("Lung/hypoinflation", "Volume Loss"),
    "interstitial_markings": (
        *("Markings/interstitial", "Opacity/interstitial", "Lung Diseases, Interstitial"),
        "Pulmonary Fibrosis",
    ),
    "vascular_crowding": ("Markings/bronchovascular",),
    "calcified_lymph_nodes": ("Calcinosis/lymph nodes",),
    "scarring": ("Cicatrix",),
    "pleural_thickening": ("Thickening/pleura",),
    "blunted_angle": ("Costophrenic Angle/blunted",),
    "elevated_diaphragm": ("Diaphragm/elevated",),
    "eventration": ("Diaphragmatic Eventration",),
    "hiatal_hernia": ("Hernia, Hiatal",),
    "tortuous_aorta": ("Aorta/tortuous", "Aorta, Thoracic/tortuous"),
    "aortic_atherosclerosis": ("Atherosclerosis", "Calcinosis/aorta", "Calcinosis/blood vessels"),
    "scoliosis": ("Scoliosis", "Spine/curvature"),
    "kyphosis": ("Kyphosis",),
    "degenerative_spine": (
        *("Spine/degenerative", "Thoracic Vertebrae/degenerative", "Osteophyte", "Spondylosis"),
        *("Lumbar Vertebrae/degenerative", "Arthritis"),
    ),
    "fracture": ("Fractures, Bone",),
    "central_line": ("Catheters, Indwelling",),
    "surgical_material": ("Surgical Instruments", "Sutures", "Spinal Fusion"),
}
"""For each finding its headings; ``A/b`` is a heading A that has the qualifier b."""


def half_of(study: str) -> str:
    """Which half a report is in, by the hash of its id."""
    return ("tuned", "held out")[int(hashlib.sha256(study.encode()).hexdigest(), 16) % 2]


def openi_reports(
    folder: Path, half: str, split: str | None = None
) -> tuple[list[list[str]], list[set[str]]]:
    """Sentences and headings of the reports of one half, and of one split, that have both."""
    with (folder / "indiana_reports.csv").open(encoding="utf-8", newline="") as file:
        headings = {f"CXR{row['uid']}": row["MeSH"] for row in csv.DictReader(file)}
    sentences, marked = [], []
    for study in detect(folder / "NLMCXR_reports.tgz").studies():
        if split is not None and seeded_split(study.study_id) != split:
            continue
        given = headings.get(study.study_id, "No Indexing")
        if study.report and half_of(study.study_id) == half and "No Indexing" not in given:
            found = [text for _, text in report_sentences(study.report).sentences]
            if found:
                sentences.append(found)
                marked.append(_qualified(given))
    return sentences, marked


def _qualified(given: str) -> set[str]:
    names: set[str] = set()
    for entry in given.split(";"):
        main, *qualifiers = (part.strip() for part in entry.split("/"))
        names |= {main, *(f"{main}/{q}" for q in qualifiers)}
    return names


def stated(parser: RuleParser, sentences: Iterable[str], certain: bool = False) -> set[str]:
    """Findings that a report claims present, surely or not, and what they also are."""
    found: set[str] = set()
    for text in sentences:
        for claim in parser.parse(text).claims:
            if claim.present and (claim.certain or not certain):
                found |= parser.lexicon.ancestors[claim.finding]
    return found


@app.command()
def openi(
    folder: Path,
    half: Literal["tuned", "held out"] = "held out",
    split: Literal["train", "validate", "test"] | None = None,
    certain: bool = False,
) -> None:
    """Print precision, recall and F1 with bootstrap intervals over reports."""
    parser = RuleParser()
    sentences, marked = openi_reports(folder, half, split)
    read = [stated(parser, report, certain) for report in sentences]
    rng = np.random.default_rng(SEED)
    weights = rng.multinomial(len(read), np.full(len(read), 1 / len(read)), size=DRAWS)
    print(f"{len(read)} reports, {half}, lexicon {parser.lexicon.hash}, {DRAWS} draws\n")
    scores, rows = [], []
    for finding, names in HEADINGS.items():
        truth = np.array([bool(m & set(names)) for m in marked])
        if not truth.any():
            rows.append((finding, "0", "", "", "", "", ""))
            continue
        found = np.array([finding in r for r in read])
        both, one = (truth & found).astype(int), truth.astype(int) + found.astype(int)
        f1 = 2 * both.sum() / max(one.sum(), 1)
        drawn = 2 * (weights @ both) / np.maximum(weights @ one, 1)
        scores.append((f1, drawn))
        low, high = np.percentile(drawn, [2.5, 97.5])
        shares = (f"{both.sum() / max(of.sum(), 1):.2f}" for of in (found, truth))
        rows.append(
            (finding, truth.sum(), found.sum(), *shares, f"{f1:.2f}", f"{low:.2f} to {high:.2f}")
        )
    mean = np.mean([s[0] for s in scores])
    low, high = np.percentile(np.mean([s[1] for s in scores], axis=0), [2.5, 97.5])
    rows.append(
        (f"mean of {len(scores)}", "", "", "", "", f"{mean:.3f}", f"{low:.3f} to {high:.3f}")
    )
    show(("finding", "headed", "read", "precision", "recall", "F1", "95%"), rows)


# ------------------------------------------------------------------- evidence about pairs


@app.command()
def denials(folder: Path) -> None:
    """Of all pairs of a training study and another one's sentence, which agree, and what they say.

    A sentence counts as often as other studies say it.
    """
    prepared = PreparedSet.open(folder)
    claims = read_claims(prepared).claims
    said = prepared.sentences
    rows = pd.Index(prepared.studies["study_id"]).get_indexer(pd.Index(said["study_id"]))
    places = pd.Index(prepared.texts).get_indexer(pd.Index(said["text"]))
    train = (prepared.studies["split"] == "train").to_numpy()[rows]
    studies, row_of = np.unique(rows[train], return_inverse=True)
    sentences, column_of = np.unique(places[train], return_inverse=True)
    times_said = np.tile(np.bincount(column_of), (len(studies), 1))
    np.subtract.at(times_said, (row_of, column_of), 1)  # a study's own occurrences
    agree = times_said * (Evidence.open(prepared).pairs(studies, sentences) == 1)
    polarities = [{claim.present for claim in claims[n]} for n in sentences]
    kinds = {"findings": {True}, "denials": {False}, "both": {True, False}, "no claim": set()}
    print(f"{len(studies):,} training studies, {times_said.sum():,} pairs,", end=" ")
    print(f"{agree.sum() / times_said.sum():.3f} agree\n")
    shares = []
    for name, polarity in kinds.items():
        of_kind = np.array([p == polarity for p in polarities])
        parts = [float(n[:, of_kind].sum() / n.sum()) for n in (times_said, agree)]
        shares.append((name, *parts))
    show(("the sentence claims", "of all pairs", "of agreeing pairs"), shares)


if __name__ == "__main__":
    app()
