"""What a model's probabilities and sets of answers are worth after the prevalence has changed.

    python scripts/bench/decisions.py RUN [--finding 'Pleural Effusion'] [--replicates 400]

RUN is a folder that `evaluate` wrote on a set with many labelled images. Its patients are split at
random into two halves, again and again. The images of one half are calibrated on, thinned to a
prevalence of 0.4; those of the other half are the target, thinned to 0.05. Writes Markdown tables
to standard output: mean over the replicates, and the range that holds 95% of them; how many of them
allow no estimate of the prevalence; the share of them whose coverage is within 1.5% of 90%.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray

from medclip_debias.evaluation.decisions.calibration import FittedClass, fit_classes
from medclip_debias.evaluation.decisions.options import Conformal, Method
from medclip_debias.evaluation.decisions.probability import Unfit, estimated_prevalence, qualities
from medclip_debias.evaluation.table import read_results
from medclip_debias.markdown import markdown_table

HERE, THERE, COVERAGE = 0.4, 0.05, 0.9
METHODS: tuple[Method, ...] = ("platt", "temperature", "isotonic")
QUALITY = ("ece", "ece_equal_mass", "brier", "intercept", "slope")
Floats = NDArray[np.float64]


def thinned(
    rng: np.random.Generator, rows: NDArray[np.intp], positive: NDArray[np.bool_], share: float
) -> NDArray[np.intp]:
    """As many of ``rows`` as can be, of which ``share`` are positive."""
    yes, no = (rng.permutation(rows[positive[rows] == side]) for side in (True, False))
    count = min(len(yes), int(len(no) * share / (1 - share)))
    return np.concatenate([yes[:count], no[: round(count * (1 - share) / share)]])


def replicate(
    rng: np.random.Generator, table: pd.DataFrame, scale: float
) -> dict[tuple[str, str], dict[str, float]]:
    """Metrics of one split of the patients, by what was done and what was measured."""
    names = table["patient"].unique()
    first = table["patient"].isin(rng.permutation(names)[: len(names) // 2]).to_numpy()
    positive, scores = table["label"].to_numpy() == 1, table["score"].to_numpy()
    here = thinned(rng, np.flatnonzero(first), positive, HERE)
    there = thinned(rng, np.flatnonzero(~first), positive, THERE)
    y, d, ones = positive[there], scores[there], np.ones((1, len(there)))
    found: dict[tuple[str, str], dict[str, float]] = {}

    def measure(done: str, prevalence: str, logits: Floats) -> None:
        values = {name: float(v[0]) for name, v in qualities(y, logits, ones).items()}
        found[done, prevalence] = values | {"prevalence": float(y.mean())}

    measure("none: sigmoid(g2 d)", "", scale * d)
    for method in METHODS:
        truth = {"x": positive[here].astype(np.float64)}
        fitted: FittedClass = fit_classes(method, {"x": scores[here]}, truth)[0]["x"]
        measure(method, "of the fit", fitted.logits(d))
        measure(method, "given", fitted.logits(d, THERE))
        if method != "temperature":  # which leaves the mean off, so nothing can be estimated
            try:
                estimated = estimated_prevalence(fitted.logits(d), fitted.prevalence)
            except Unfit:
                found[method, "estimated"] = {}
            else:
                measure(method, "estimated", fitted.logits(d, estimated))
                found[method, "estimated"]["prevalence"] = estimated
        if method != METHODS[0]:
            continue
        ways: list[tuple[Conformal, float, str]] = [
            ("marginal", fitted.prevalence, "marginal, not weighted"),
            ("marginal", THERE, "marginal, weighted"),
            ("class_conditional", THERE, "class-conditional"),
        ]
        for kind, target, name in ways:
            sets, values = fitted.sets(d, COVERAGE, kind, target)
            covered, words = np.where(y, *sets.of(values)), sets.words(values)
            found["sets", name] = {
                "coverage": float(covered.mean()),
                "with the finding": float(covered[y].mean()),
                "without": float(covered[~y].mean()),
                "both": float((words == "both").mean()),
                "none": float((words == "none").mean()),
            }
    found["sizes", ""] = {"here": len(here), "there": len(there), "positive there": int(y.sum())}
    return found


def summary(values: list[float], digits: int = 3) -> str:
    """Mean, and the range of 95%."""
    low, high = np.quantile(values, [0.025, 0.975])
    return f"{np.mean(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def read(run: Path, finding: str) -> pd.DataFrame:
    """Patient, score and label (0, 1) of every image of a run with a label of the finding."""
    items = pd.read_parquet(run / "items" / "zero_shot.parquet")
    columns = {f"score.{finding}": "score", f"label.{finding}": "label"}
    return items.rename(columns=columns)[["patient", "score", "label"]].dropna()


def main(run: Path, finding: str = "Pleural Effusion", replicates: int = 400) -> None:
    """Print the tables."""
    results = read_results(run / "results.json")
    table = read(run, finding)
    rng = np.random.default_rng(0)
    scale = results.details("zero_shot")["scale"]
    parts = [replicate(rng, table, scale) for _ in range(replicates)]
    auc = results.value("zero_shot", "auc", finding)
    sizes = {name: np.mean([p["sizes", ""][name] for p in parts]) for name in parts[0]["sizes", ""]}
    print(
        f"{finding}, AUC {auc:.3f}; {replicates} replicates, images on average: "
        f"{sizes['here']:.0f} to calibrate on, {sizes['there']:.0f} in the target, of them "
        f"{sizes['positive there']:.0f} with the finding.\n"
    )
    names = ("prevalence", *QUALITY)
    rows = []
    for done, prevalence in (key for key in parts[0] if key[0] not in ("sets", "sizes")):
        there = [p[done, prevalence] for p in parts if p[done, prevalence]]
        cells = [summary([each[name] for each in there]) if there else "" for name in names]
        rows.append([done, prevalence, *cells, str(len(parts) - len(there))])
    head = ("calibration", "prevalence taken", *names, "none given")
    print("\n".join(markdown_table(head, rows, words=2)))
    rows = []
    for key in (key for key in parts[0] if key[0] == "sets"):
        cells = [summary([p[key][name] for p in parts]) for name in parts[0][key]]
        near = np.mean([abs(p[key]["coverage"] - COVERAGE) <= 0.015 for p in parts])
        rows.append([key[1], *cells, f"{near:.0%}"])
    titles = ("sets of answers, 90% asked", *parts[0]["sets", "class-conditional"], "within 1.5%")
    print("\n" + "\n".join(markdown_table(titles, rows, words=1)))


if __name__ == "__main__":
    typer.run(main)
