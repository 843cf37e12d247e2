"""How well claims are read from sentences, and what follows of them about pairs.

    python scripts/bench/claims.py phantom PHANTOM...          precision and recall by the truth
    python scripts/bench/claims.py openi FOLDER                F1 against Open-i's MeSH headings
    python scripts/bench/claims.py evidence PREPARED PHANTOM   how often a verdict is right
    python scripts/bench/claims.py denials PREPARED            what agreeing pairs say

FOLDER holds Open-i (``NLMCXR_reports.tgz`` and ``indiana_reports.csv``); PHANTOM is one that
`medclip-debias phantom` wrote; PREPARED has claims (`medclip-debias claims`). The lexicon was tuned
on the reports whose hashed id is even (``--half tuned``); the published figures are those of the
other half. ``--certain`` counts what is claimed without a doubt alone, ``--split test`` the reports
of one split of `openi-report-80-10-10-v1` alone.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import typer

from medclip_debias.data.sources.detect import detect
from medclip_debias.data.splits import seeded_split
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims import Claim, RuleParser, load_lexicon
from medclip_debias.data.text.claims.table import read_claims
from medclip_debias.data.text.evidence import Evidence
from medclip_debias.data.text.reports import report_sentences
from medclip_debias.markdown import markdown_table
from medclip_debias.phantom.truth import Clause, Truth, statement_from_json

DRAWS, SEED = 1000, 0
app = typer.Typer(help=__doc__, add_completion=False)


def show(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; shares with three digits."""
    cells = [[f"{c:.3f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    print("\n".join(markdown_table(head, cells, words=1)))


# ---------------------------------------------------------------------------------- phantom

DEVICES = {"central_line": "line", "endotracheal_tube": "tube", "pacemaker": "pacemaker"}
TYPE_OF = {
    **{name: name for name in ("pneumonia", "edema", "pneumothorax", "atelectasis")},
    **{name: name for name in ("cardiomegaly", "nodule", "scoliosis")},
    **DEVICES,
    "pleural_effusion": "effusion",
    "hiatal_hernia": "hernia",
}
ZONED = ("pneumonia", "nodule")
"""Types of the phantom that have a zone; "basilar atelectasis" is its name for any atelectasis."""
GRADE = {"small": "small", "mild": "small", "large": "large", "severe": "large"}
READ_GRADE = {"mild": "small", "moderate": "large", "severe": "large"}


def of_clause(clause: Clause) -> tuple[str, ...]:
    """A clause of the truth as the words that are compared."""
    return (
        clause.finding,
        "present" if clause.present else "absent",
        "uncertain" if clause.hedged else "certain",
        clause.side or "",
        (clause.zone or "") if clause.finding in ZONED else "",
        GRADE.get(clause.severity or "", ""),
    )


def of_claim(claim: Claim) -> tuple[str, ...]:
    finding = TYPE_OF[claim.finding]
    zone = claim.zone if finding in ZONED else ""
    graded = READ_GRADE.get(claim.severity, "")
    return finding, claim.polarity, claim.certainty, claim.side, zone, graded


@app.command()
def phantom(folders: list[Path]) -> None:
    """Print precision and recall of each kind of claim over all occurrences of sentences."""
    parser = RuleParser(load_lexicon("phantom"))
    wanted: dict[str, Callable[[tuple[str, ...]], tuple[str, ...] | None]] = {
        "finding and polarity": lambda c: c[:2],
        "present": lambda c: c[:1] if c[1] == "present" else None,
        "absent": lambda c: c[:1] if c[1] == "absent" else None,
        "uncertain": lambda c: c[:2] if c[2] == "uncertain" else None,
        "side": lambda c: (*c[:2], c[3]) if c[3] else None,
        "zone": lambda c: (*c[:2], c[4]) if c[4] else None,
        "severity": lambda c: (*c[:2], c[5]) if c[5] else None,
        "everything": lambda c: c,
    }
    types = sorted(set(TYPE_OF.values()))
    wanted |= {t: (lambda c, t=t: c[:2] if c[0] == t else None) for t in types}  # type: ignore[misc]
    counts = {name: np.zeros(3, dtype=int) for name in wanted}
    sentences = 0
    for folder in folders:
        table = pd.read_parquet(folder / "truth" / "sentences.parquet")
        for text, statement in zip(table["text"], table["statement"], strict=True):
            sentences += 1
            truth = {of_clause(c) for c in statement_from_json(statement).clauses}
            read = {of_claim(c) for c in parser.parse(text).claims if c.finding in TYPE_OF}
            for name, part in wanted.items():
                a = {p for c in truth if (p := part(c)) is not None}
                b = {p for c in read if (p := part(c)) is not None}
                counts[name] += (len(a & b), len(b - a), len(a - b))
    print(f"{sentences} sentences, lexicon {parser.lexicon.name} {parser.lexicon.hash}\n")
    rows = []
    for name, (both, extra, missed) in counts.items():
        shares = (f"{both / max(both + part, 1):.4f}" for part in (extra, missed))
        rows.append((name, both + missed, *shares))
    show(("claims", "in the truth", "precision", "recall"), rows)


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
            found = [text for _, text in report_sentences(study.report)]
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
def evidence(folder: Path, tree: Path) -> None:
    """Print how often a verdict is what a phantom's images show, over all training pairs."""
    prepared = PreparedSet.open(folder)
    images = prepared.images.drop_duplicates("study_id")
    train = images[images["split"] == "train"]
    said = prepared.sentences["text"][prepared.sentences["study_id"].isin(train["study_id"])]
    weight = said.value_counts()
    studies = pd.Index(prepared.studies["study_id"]).get_indexer(train["study_id"])
    sentences = pd.Index(prepared.texts).get_indexer(weight.index)
    agrees = Truth(tree).agreement(list(weight.index), [str(name) for name in train["image_id"]]).T

    def share(chosen: np.ndarray) -> float:
        return float((chosen * weight.to_numpy()).sum() / (len(studies) * weight.sum()))

    rows = []
    every = load_lexicon("phantom").names
    for name, always in (("no finding", ()), ("mentioned by half", 0.5), ("every finding", every)):
        found = Evidence.open(prepared, always).pairs(studies, sentences)
        yes, no = share(found == 1), share(found == -1)
        right = share((found == 1) & agrees) / yes, share((found == -1) & ~agrees) / no
        rows.append((name, yes, right[0], no, right[1], share(found == 0)))
    show(("absent if not mentioned", "agree", "right", "contradict", "right", "unknown"), rows)
    print(f"true share: {share(agrees):.3f}")


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
