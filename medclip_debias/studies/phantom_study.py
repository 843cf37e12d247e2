"""What the studies that train on the phantom have in common: cells, choosing, tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from medclip_debias.config import Settings, json_hash
from medclip_debias.errors import explained
from medclip_debias.files import write_json
from medclip_debias.studies.phantom_data import PhantomData, make_phantom
from medclip_debias.studies.phantom_methods import Candidate
from medclip_debias.studies.phantom_run import METRICS, TrainDials, train_and_measure
from medclip_debias.studies.study import Cell, Row, Study, Table

LABELS = {
    "auc": "AUC",
    "accuracy": "bal. acc.",
    "ece": "ECE",
    "fine_auc": "fine AUC",
    "head_auc": "head AUC",
    "tail_auc": "tail AUC",
    "cnr": "CNR",
    "miou": "mIoU",
    "pointing": "pointing",
    "recall": "Recall",
    "median_rank": "MedR",
    "lenient_recall": "Recall, lenient",
}
SHOWN = ("auc", "accuracy", "ece", "fine_auc", "tail_auc", "cnr", "miou", "recall", "median_rank")
MEASUREMENT_VERSION = 1
"""Raised when the same cell would be measured otherwise."""
SELECTION_SEED = 1000
"""First seed of the phantoms on which settings are chosen; no reported cell has it."""
CHOOSING = ("auc", "accuracy", "cnr", "miou", "recall", "median_rank")
"""What settings are chosen by: the paper's six figures, all of them by rank."""
SECONDS_PER_STUDY = 0.027
"""Of making a phantom and its language model; only for the prediction."""
SEEDS_NEEDED = {"cnr": 10}
"""Seeds without which no sentence and no star speaks of a metric: CNR varies most of all."""


class PhantomStudySettings(Settings):
    """Settings that every study on the phantom has.

    Attributes:
        seeds: each is a phantom, a language model and a training of its own, so intervals over
            them cover the data as well.
        data: of the phantom; its ``seed`` is overwritten.
        train: of every cell.
    """

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    data: PhantomData = PhantomData()
    train: TrainDials = TrainDials()
    seconds_per_step: float = Field(0.075, gt=0, description="only for the prediction")


class PhantomStudy(Study):
    """Base of the studies whose cells train one model on one phantom."""

    settings_class: ClassVar[type[Settings]] = PhantomStudySettings
    settings: Any

    def cell(
        self,
        candidate: Candidate,
        seed: int,
        *,
        data: Mapping[str, Any] | None = None,
        **names: Any,
    ) -> dict[str, Any]:
        """A cell: one candidate on the phantom of ``seed``.

        Args:
            candidate: objective and what it changes.
            seed: of data and training.
            data: what is changed in the settings' ``data``; ``dials`` are merged.
            **names: plain values that say what the cell is for.
        """
        s = self.settings
        given = s.data.model_dump(mode="json") | {"seed": seed} | dict(data or {})
        if data and "dials" in data:
            given["dials"] = s.data.dials | data["dials"]
        return {
            **names,
            "candidate": candidate.label,
            "loss": candidate.loss,
            "aggregator": candidate.aggregator,
            "seed": seed,
            "data": given,
            "train": s.train.model_dump(mode="json"),
        }

    def seconds(self, cell: Cell) -> float:
        """Steps, and a few seconds for measuring; little where another study has measured it."""
        if self.inputs is not None and self._measured(cell).is_file():
            return 0.1
        return float(6 + self.settings.seconds_per_step * cell["train"]["steps"])

    def shared(self, cell: Cell) -> Mapping[str, Any] | None:
        """The phantom."""
        found: Mapping[str, Any] = cell["data"]
        return found

    def make_shared(self, wanted: Mapping[str, Any], folder: Path) -> None:
        """Make the phantom."""
        make_phantom(PhantomData(**wanted), folder)

    def shared_seconds(self, wanted: Mapping[str, Any]) -> float:
        """By the number of studies."""
        return float(SECONDS_PER_STUDY * (wanted["studies"] + wanted["test_studies"]))

    def measure(self, cell: Cell) -> Row:
        """Train and measure, unless another study has measured the same."""
        path = self._measured(cell)
        if path.is_file():
            with explained(f"{path}: cannot be read; remove it to measure it again", ValueError):
                known: Row = json.loads(path.read_text(encoding="utf-8"))
                return known
        row = train_and_measure(
            self.shared_folder(cell),
            TrainDials(**cell["train"]),
            cell["loss"],
            seed=cell["seed"],
            aggregator=cell["aggregator"],
        )
        write_json(path, row)
        return row

    def _measured(self, cell: Cell) -> Path:
        """Where a measurement lies for the other studies."""
        assert self.inputs is not None
        return self.inputs / "measured" / f"{measurement_key(cell)}.json"


def measurement_key(cell: Cell) -> str:
    """Names all that a training and its measurement depend on, whichever study asks."""
    parts = ("data", "train", "loss", "aggregator", "seed")
    return json_hash([MEASUREMENT_VERSION, *(cell[part] for part in parts)])


def quick_settings(kind: type[PhantomStudySettings], **more: Any) -> Any:
    """Settings of a run of a few minutes: little data, few steps, two seeds."""
    language = PhantomData().language | {"hidden": 32, "vocabulary": 400, "steps": 60}
    data = PhantomData(studies=160, test_studies=60, language=language)
    train = TrainDials(steps=8, batch_size=16, warmup_steps=2, dim=16)
    return kind(**({"seeds": (0, 1), "data": data, "train": train} | more))


# -------------------------------------------------------------------------------- choosing


def best_candidate(rows: Sequence[Row]) -> str:
    """Label of the candidate with the best mean rank over `CHOOSING`; the first of equals.

    Args:
        rows: of phantoms that no reported figure uses; several seeds of a candidate are averaged.
    """
    from medclip_debias.evaluation.statistics import average_ranks

    own = by_method(rows, "candidate")
    means = [[np.mean([r[m] for r in each.values()]) for m in CHOOSING] for each in own.values()]
    ranks = average_ranks(means, [not METRICS[m] for m in CHOOSING])
    return str(list(own)[int(np.argmin(ranks))])


# ---------------------------------------------------------------------------------- tables


def by_method(rows: Sequence[Row], key: str = "method") -> dict[Any, dict[int, Row]]:
    """Rows of each method by seed, methods in order of first use."""
    found: dict[Any, dict[int, Row]] = {}
    for row in rows:
        found.setdefault(row[key], {})[row["seed"]] = row
    return found


def mean_sd(values: Sequence[float], digits: int = 3) -> str:
    """Mean, and the standard deviation over seeds in brackets."""
    if len(values) < 2:
        return f"{np.mean(values):.{digits}f}"
    return f"{np.mean(values):.{digits}f} ({np.std(values, ddof=1):.{digits}f})"


def with_interval(value: float, interval: tuple[float, float], digits: int = 3) -> str:
    """A difference and its interval, all signed: ``+0.046 [+0.024, +0.068]``."""
    low, high = interval
    return f"{value:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def digits_of(metric: str) -> int:
    """Digits after the point that a table shows."""
    return {"cnr": 2, "median_rank": 0}.get(metric, 3)


def figure_table(
    title: str, groups: Mapping[Any, Mapping[int, Row]], metrics: Sequence[str] = SHOWN
) -> Table:
    """Mean and sd over seeds of every method, with its average rank over the metrics."""
    from medclip_debias.evaluation.statistics import average_ranks

    means = [[np.mean([r[m] for r in own.values()]) for m in metrics] for own in groups.values()]
    ranks = average_ranks(means, [not METRICS[m] for m in metrics])
    body = [
        [
            str(name),
            *(mean_sd([r[m] for r in own.values()], digits_of(m)) for m in metrics),
            f"{rank:.1f}",
        ]
        for (name, own), rank in zip(groups.items(), ranks, strict=True)
    ]
    return Table(title, ["", *(LABELS[m] for m in metrics), "mean rank"], body)


def differences(
    groups: Mapping[Any, Mapping[int, Row]], baseline: Any, metric: str
) -> dict[Any, tuple[float, tuple[float, float], float]]:
    """Paired difference to ``baseline`` of every other method: value, t interval, Holm's p.

    The p of a metric in `SEEDS_NEEDED` is nan, which is below nothing, until there are as many.
    """
    from medclip_debias.evaluation.statistics import holm, paired_seeds

    base = {seed: row[metric] for seed, row in groups[baseline].items()}
    found = {}
    for name, own in groups.items():
        if name == baseline:
            continue
        result = paired_seeds({seed: row[metric] for seed, row in own.items()}, base)
        if result is not None:
            found[name] = result[:3]
    adjusted = holm([p for _, _, p in found.values()])
    if len(base) < SEEDS_NEEDED.get(metric, 0):
        adjusted = [math.nan] * len(adjusted)
    return {
        name: (value, interval, p)
        for (name, (value, interval, _)), p in zip(found.items(), adjusted, strict=True)
    }


def star_note(metrics: Iterable[str], seeds: int) -> str:
    """For a title: which of the metrics have too few seeds for a star; often empty."""
    return "".join(
        f" ({LABELS[metric]}: no star with fewer than {needed} seeds)"
        for metric, needed in SEEDS_NEEDED.items()
        if metric in metrics and seeds < needed
    )


def difference_table(
    title: str,
    groups: Mapping[Any, Mapping[int, Row]],
    baseline: Any,
    metrics: Sequence[str] = SHOWN,
) -> Table:
    """Paired differences to ``baseline`` with 95% intervals; a star where Holm's p < .05.

    Metrics with too few seeds for a star are named in the title.
    """
    columns = {metric: differences(groups, baseline, metric) for metric in metrics}
    body = []
    for name in groups:
        if name == baseline:
            continue
        cells = []
        for metric in metrics:
            if name not in columns[metric]:
                cells.append("")
                continue
            value, interval, p = columns[metric][name]
            star = " *" if p < 0.05 else ""
            cells.append(with_interval(value, interval, digits_of(metric)) + star)
        body.append([str(name), *cells])
    title += star_note(metrics, len(groups[baseline]))
    return Table(title, [f"minus {baseline}", *(LABELS[m] for m in metrics)], body)


def verdict(
    groups: Mapping[Any, Mapping[int, Row]],
    name: Any,
    baseline: Any,
    metrics: Sequence[str],
    among: Sequence[Any] | None = None,
) -> str:
    """One clause: where ``name`` is better or worse than ``baseline``.

    What is named has p < .05 after Holm's correction, and seeds enough (`SEEDS_NEEDED`).

    Args:
        groups: rows of each method by seed.
        name: of the method.
        baseline: what it is held against.
        metrics: judged, each with a correction of its own.
        among: methods that the correction is over; by default this one alone.
    """
    chosen = {baseline: groups[baseline]} | {one: groups[one] for one in among or [name]}
    better: list[str] = []
    worse: list[str] = []
    for metric in metrics:
        found = differences(chosen, baseline, metric)
        if name not in found:
            return f"{name} against {baseline}: too few seeds to say anything"
        value, _, p = found[name]
        if not p < 0.05 or value == 0:
            continue
        text = f"{LABELS[metric]} {value:+.{digits_of(metric)}f}"
        (better if (value > 0) == METRICS[metric] else worse).append(text)
    said = ["better in " + ", ".join(better)] if better else []
    said += ["worse in " + ", ".join(worse)] if worse else []
    return f"{name} against {baseline}: " + (
        "; ".join(said) or "no difference that chance rules out"
    )
