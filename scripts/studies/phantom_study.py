"""What the studies that train on the phantom have in common: cells, choosing, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from medclip_debias.config import Settings, json_hash
from medclip_debias.experiments.differences import SeedTables, by_method
from medclip_debias.experiments.experiment import Cell, Row, Table
from medclip_debias.files import read_json, write_json
from studies.phantom_data import PhantomData, make_phantom
from studies.phantom_methods import Candidate
from studies.phantom_run import METRICS, PhantomTraining, train_and_measure
from studies.study import TRAININGS_MOVE, Study
from studies.variance import variance_table

LABELS = {name: metric.title for name, metric in METRICS.items()}
SHOWN = ("auc", "accuracy", "ece", "fine_auc", "tail_auc", "cnr", "miou", "recall", "median_rank")
SEEDS_NEEDED = {name: m.seeds_needed for name, m in METRICS.items() if m.seeds_needed}
"""Seeds without which no sentence and no star speaks of a metric: CNR varies most of all."""

_TABLES = SeedTables(METRICS, SHOWN)
digits_of = _TABLES.digits
figure_table = _TABLES.means
interval_table = _TABLES.intervals
differences = _TABLES.differences
star_note = _TABLES.star_note
difference_table = _TABLES.difference_table
contrasts = _TABLES.contrasts
contrast_table = _TABLES.contrast_table
verdict = _TABLES.verdict

FAMILY = """A star, a filled dot in the plot and every sentence of a difference mean p < .05 after
Holm's correction over the whole table of differences: its methods times its metrics, but for
metrics with too few seeds. No star means that chance is not ruled out, not that nothing differs."""
"""What the pages say of the correction."""
DOSE_SHARE = 0.2
"""How far the mean eta of a control may be from that of its method."""

MEASUREMENT_VERSION = 2
"""Raised when the same cell would be measured otherwise."""
SELECTION_SEED = 1000
"""First seed of the phantoms on which settings are chosen; no reported cell has it."""
REPLICATE_SEEDS = 10_000
"""Added to the seed of a training for each further replicate of it."""
CHOOSING = ("auc", "accuracy", "cnr", "miou", "recall", "median_rank")
"""What settings are chosen by: the paper's six metrics, all of them by rank."""
SECONDS_PER_STUDY = 0.027
"""Of making a phantom and its language model; only for the prediction."""


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
    train: PhantomTraining = PhantomTraining()
    seconds_per_step: float = Field(0.075, gt=0, description="only for the prediction")


class PhantomStudy(Study):
    """Base of the studies whose cells train one model on one phantom."""

    version: ClassVar[int] = 2
    outdated: ClassVar[str] = "They hold no AUC of single classes."
    machines: ClassVar[str] = TRAININGS_MOVE
    settings_class: ClassVar[type[Settings]] = PhantomStudySettings
    settings: Any

    def cell(
        self,
        candidate: Candidate,
        seed: int,
        *,
        data: Mapping[str, Any] | None = None,
        replicate: int = 0,
        **names: Any,
    ) -> dict[str, Any]:
        """A cell: one candidate on the phantom of ``seed``.

        Args:
            candidate: objective and what it changes.
            seed: of data and training.
            data: what is changed in the settings' ``data``; ``dials`` are merged.
            replicate: of the training: the same phantom, other weights and batches.
            **names: plain values that say what the cell is for.
        """
        s = self.settings
        given = s.data.model_dump(mode="json") | {"seed": seed} | dict(data or {})
        if data and "dials" in data:
            given["dials"] = s.data.dials | data["dials"]
        again = {"replicate": replicate} if replicate else {}
        return {
            **names,
            **again,
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
            return read_json(path, "remove it to measure it again")
        row = train_and_measure(
            self.shared_folder(cell),
            PhantomTraining(**cell["train"]),
            cell["loss"],
            seed=cell["seed"] + REPLICATE_SEEDS * cell.get("replicate", 0),
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
    again = [cell["replicate"]] if "replicate" in cell else []
    return json_hash([MEASUREMENT_VERSION, *(cell[part] for part in parts), *again])


def quick_settings(kind: type[PhantomStudySettings], **more: Any) -> Any:
    """Settings of a run of a few minutes: little data, few steps, two seeds."""
    language = PhantomData().language | {"hidden": 32, "vocabulary": 400, "steps": 60}
    dials = PhantomData().dials | {"min_side": 64, "max_side": 72}  # drawing takes the longest
    data = PhantomData(studies=160, test_studies=60, dials=dials, language=language)
    train = PhantomTraining(steps=8, batch_size=16, warmup_steps=2, dim=16)
    return kind(**({"seeds": (0, 1), "data": data, "train": train} | more))


# --------------------------------------------------------------------------------- doses


def mean_dose(own: Mapping[int, Row]) -> float:
    """Mean over the seeds of the eta that a method had at the end of training."""
    return float(np.mean([row.get("mean_eta", 0.0) for row in own.values()]))


def of_equal_dose(own: Mapping[int, Row], control: Mapping[int, Row]) -> bool:
    """Whether a control's mean eta is within `DOSE_SHARE` of its method's."""
    dose = mean_dose(own)
    return abs(mean_dose(control) - dose) <= DOSE_SHARE * dose


def against_controls(
    groups: Mapping[Any, Mapping[int, Row]], name: Any, controls: Sequence[Any]
) -> list[str]:
    """One clause for each control of a method; nothing is concluded where their doses differ."""
    pairs = {control: (groups[name], groups[control]) for control in controls}
    columns = contrasts(pairs, SHOWN)
    said = []
    for control in controls:
        start = f"{name} against {control}"
        if not of_equal_dose(*pairs[control]):
            said.append(
                f"{start}: not compared, since their doses differ (mean eta "
                f"{mean_dose(groups[name]):.3f} and {mean_dose(groups[control]):.3f})"
            )
            continue
        if any(control not in columns[metric] for metric in SHOWN):
            said.append(f"{start}: too few seeds to say anything")
            continue
        apart = [
            f"{LABELS[metric]} {columns[metric][control][0]:+.{digits_of(metric)}f}"
            for metric in SHOWN
            if columns[metric][control][2] < 0.05 and columns[metric][control][0] != 0
        ]
        said.append(f"{start}: " + (", ".join(apart) or "no statistically significant difference"))
    return said


def seed_table(title: str, rows: Sequence[Row]) -> list[Table]:
    """How much of the variance over seeds is the seed's, and how much training's."""
    return variance_table(title, rows, SHOWN, [LABELS[metric] for metric in SHOWN])


# -------------------------------------------------------------------------------- choosing


def best_candidate(rows: Sequence[Row]) -> str:
    """Label of the candidate with the best mean rank over `CHOOSING`; the first of equals.

    Args:
        rows: of phantoms that no reported number uses; several seeds of a candidate are averaged.
    """
    own = by_method(rows, "candidate")
    ranks = _TABLES.ranks(own, CHOOSING)
    return str(list(own)[int(np.argmin(ranks))])
