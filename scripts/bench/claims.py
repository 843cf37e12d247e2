"""How well claims are read from sentences.

    python scripts/bench/claims.py phantom PHANTOM...     precision and recall against the truth
    python scripts/bench/claims.py openi FOLDER           F1 against Open-i's MeSH headings
    python scripts/bench/claims.py sample FOLDER OUT.tsv  300 sentences and their claims, to judge
    python scripts/bench/claims.py verdicts JUDGED.tsv    counts of the verdicts in that file

FOLDER holds Open-i (``NLMCXR_reports.tgz`` and ``indiana_reports.csv``); PHANTOM is one that
`medclip-debias phantom` wrote. The lexicon was tuned on the reports whose hashed id is even
(``--half tuned``); the published figures are those of the other half. ``--certain`` counts what is
claimed without a doubt alone, ``--split test`` the reports of one split of
`openi-report-80-10-10-v1` alone.
"""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import typer

from medclip_debias.data.sources.detect import detect
from medclip_debias.data.splits import seeded_split
from medclip_debias.data.text.claims import Claim, RuleParser, load_lexicon
from medclip_debias.data.text.reports import report_sentences
from medclip_debias.phantom.truth import Clause, statement_from_json

DRAWS, SEED = 1000, 0
app = typer.Typer(help=__doc__, add_completion=False)

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
    print("| claims | in the truth | precision | recall |\n| --- | ---: | ---: | ---: |")
    for name, (both, extra, missed) in counts.items():
        precision, recall = both / max(both + extra, 1), both / max(both + missed, 1)
        print(f"| {name} | {both + missed} | {precision:.4f} | {recall:.4f} |")


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
    print("| finding | headed | read | precision | recall | F1 | 95% |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
    scores = []
    for finding, names in HEADINGS.items():
        truth = np.array([bool(m & set(names)) for m in marked])
        if not truth.any():
            print(f"| {finding} | 0 | | | | | |")
            continue
        found = np.array([finding in r for r in read])
        both, one = (truth & found).astype(int), truth.astype(int) + found.astype(int)
        f1 = 2 * both.sum() / max(one.sum(), 1)
        drawn = 2 * (weights @ both) / np.maximum(weights @ one, 1)
        scores.append((f1, drawn, truth.sum()))
        low, high = np.percentile(drawn, [2.5, 97.5])
        precision, recall = both.sum() / max(found.sum(), 1), both.sum() / max(truth.sum(), 1)
        print(
            f"| {finding} | {truth.sum()} | {found.sum()} | {precision:.2f} | {recall:.2f}"
            f" | {f1:.2f} | {low:.2f} to {high:.2f} |"
        )
    mean = np.mean([s[0] for s in scores])
    low, high = np.percentile(np.mean([s[1] for s in scores], axis=0), [2.5, 97.5])
    print(f"| mean of {len(scores)} | | | | | {mean:.3f} | {low:.3f} to {high:.3f} |")


# ------------------------------------------------------------------------- judged by eye

VERDICTS = ("right", "missed", "wrong")


@app.command()
def sample(folder: Path, out: Path, count: int = 300, seed: int = SEED) -> None:
    """Write sentences of the held-out half with what was read, for the verdicts of a reader."""
    parser = RuleParser()
    sentences, _ = openi_reports(folder, "held out")
    texts = sorted({text for report in sentences for text in report})
    chosen = np.random.default_rng(seed).choice(len(texts), count, replace=False)
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["verdict", "hash", "text", "claims"])
        for i in sorted(chosen):
            name = hashlib.sha256(texts[i].encode()).hexdigest()[:12]
            writer.writerow(["", name, texts[i], "; ".join(map(shown, parser.parse(texts[i])[0]))])


def shown(claim: Claim) -> str:
    sign = ("+" if claim.present else "-") + ("" if claim.certain else "?")
    parts = (claim.side, claim.zone, claim.severity, claim.change)
    return " ".join([sign + claim.finding, *filter(None, parts)])


@app.command()
def verdicts(path: Path) -> None:
    """Print how many sentences have each verdict, with exact intervals."""
    from scipy.stats import binomtest

    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    print("| sample | verdict | sentences | share | 95% |\n| --- | --- | ---: | ---: | --- |")
    for number in sorted({row["sample"] for row in rows}):
        given = Counter(row["verdict"] for row in rows if row["sample"] == number)
        total = sum(given.values())
        for name in VERDICTS:
            low, high = binomtest(given[name], total).proportion_ci()
            share = given[name] / total
            print(f"| {number} | {name} | {given[name]} | {share:.3f} | {low:.3f} to {high:.3f} |")


if __name__ == "__main__":
    app()
