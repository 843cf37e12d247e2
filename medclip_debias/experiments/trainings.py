"""The cells of a grid: each a run that is trained and evaluated in a folder of its own."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from medclip_debias.config import Settings, json_hash, validate
from medclip_debias.data.executor import cpus, map_pieces, worker_number
from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import COMPARED
from medclip_debias.experiments.doses import changed, dose, is_dose
from medclip_debias.experiments.experiment import Cell, Experiment, Row, Summary
from medclip_debias.experiments.grid import ONLY, GridSettings, runs
from medclip_debias.experiments.judgement import HOW, Judged, judged, plotted, summarised
from medclip_debias.files import file_hash, is_there
from medclip_debias.reporting.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from medclip_debias.training.settings import RunSettings

TRIAL_STEPS = 3  # the first loads and allocates; the last is timed
LONG_BUILD = 20.0
"""Seconds beside which imports do not count."""
ENCODING_SHARE = 1 / 3
"""Of a training step, for the prediction: evaluation has no backward pass."""
_FOLDERS = ("start_from", "weights", "language_model")
"""Settings of a run that may name a folder, by the last part of their keys."""
REPORTED = ("loss", "scale", "removed", "clamped", "mean_eta")
"""What a run's last log row says of its objective; the dose of a correction is among it."""


class Trainings(Experiment):
    """A grid of trainings on any prepared set.

    ``inputs`` is the folder of the runs. What names a cell is what its result depends on: the
    settings that decide what a run computes, the content of the prepared set, of the language
    model and of every file that they name, and how the model is evaluated; not the names in the
    grid, nor the places of files.
    """

    name: ClassVar[str] = "grid"
    settings_class: ClassVar[type[Settings]] = GridSettings
    settings: GridSettings

    def __init__(self, settings: GridSettings, inputs: Path) -> None:
        """Take a grid, and the folder of its runs."""
        super().__init__(settings, inputs)
        self.title = settings.title or settings.name
        self.about = f"{settings.about.strip()}\n\n{HOW}".strip()
        self.tables: list[Table] = []
        self._pace: dict[str, tuple[float, float]] = {}
        self._cells: list[dict[str, Any]] | None = None
        self._found: Judged | None = None

    def command(self) -> str:
        """With the settings that lie beside the page."""
        return f"medclip-debias experiment settings.yaml --out runs/experiments/{self.label()}"

    def label(self) -> str:
        """The grid's name."""
        return self.settings.name

    def shown(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """The grid without its runs, which ``settings.yaml`` holds."""
        return {key: settings[key] for key in ("seeds", "baseline", "metrics", "evaluate")}

    # ---------------------------------------------------------------------------- the grid

    def cells(self) -> list[dict[str, Any]]:
        """Every run, with what names it."""
        if self._cells is not None:
            return self._cells
        hashes: dict[str, str] = {}
        evaluate = self.settings.evaluate.model_dump(mode="json")
        self._cells = [
            {
                "setting": run.setting,
                "method": run.method,
                "seed": run.seed,
                "run": run.content,
                "evaluate": evaluate,
                "depends": _depends(run.content, evaluate, hashes),
            }
            for run in runs(self.settings)
        ]
        return self._cells

    def key(self, cell: Cell) -> str:
        """By what the cell depends on, whatever the grid calls it."""
        return json_hash([self.name, self.version, cell["depends"]])

    def folder(self, cell: Cell) -> Path:
        """The run folder of a cell: named by what its training depends on, so that it is kept
        where only the evaluation is another.
        """
        assert self.inputs is not None
        names = [cell["method"]] + ([cell["setting"]] if cell["setting"] != ONLY else [])
        words = [re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") for name in names]
        training = {name: value for name, value in cell["depends"].items() if name != "evaluate"}
        key = json_hash([self.name, self.version, training])[:10]
        known = sorted(self.inputs.glob(f"*_{key}"))  # perhaps under an earlier name
        return known[0] if known else self.inputs / "_".join([*words, f"seed{cell['seed']}", key])

    def evaluated(self, cell: Cell) -> Path:
        """Where the evaluation of a cell lies, in its run folder."""
        return self.folder(cell) / f"evaluate_{json_hash(cell['depends']['evaluate'])[:6]}"

    def run_settings(self, cell: Cell) -> RunSettings:
        """Settings of the run of a cell, for `medclip_debias.training.train.train`."""
        from medclip_debias.data.store import PreparedSet
        from medclip_debias.training.settings import RunSettings

        folder, run = self.folder(cell), cell["run"]

        def filled(eta: Mapping[str, Any]) -> Mapping[str, Any]:
            if not is_dose(eta):
                return eta
            prepared = PreparedSet.open(Path(run["prepared"]))
            text = run["model"].get("text")  # none where the run starts from a trained model
            return dose(eta, prepared, language_model=Path(text["folder"]) if text else None)

        content = run | {"out": str(folder), "loss": changed(run["loss"], eta=filled)}
        return validate(RunSettings, content, _name(cell))

    # ------------------------------------------------------------------------- the seconds

    def seconds(self, cell: Cell) -> float:
        """Steps that are left, and the evaluation, at a pace that was measured."""
        from medclip_debias.data.store import PreparedSet
        from medclip_debias.training.checkpoint import checkpoints

        train = cell["run"]["train"]
        saved = checkpoints(self.folder(cell) / "checkpoints")
        done = int(saved[-1].stem.rpartition("_")[2]) if saved else 0
        pace, before = self.settings.seconds_per_step, 0.0
        if pace is None:  # by the first cell of each setting that asks
            if cell["setting"] not in self._pace:
                # Not in this process: it would hold the device, and threads no child inherits.
                (self._pace[cell["setting"]],) = map_pieces(_trial, [(self, cell)], 2)
            pace, before = self._pace[cell["setting"]]
        splits = PreparedSet.open(Path(cell["run"]["prepared"])).images["split"]
        batches = int((splits == cell["evaluate"]["split"]).sum()) / train["batch_size"]
        left = max(0, train["steps"] - done)
        return float(2 * before + pace * (left + ENCODING_SHARE * batches))

    def trial(self, cell: Cell) -> tuple[float, float]:
        """Take a few steps of the run of ``cell``; nothing is written to its folder."""
        import tempfile

        from medclip_debias.training.settings import RunSettings
        from medclip_debias.training.step import Trainer

        self.begin(1)
        run = cell["run"] | {"loss": changed(cell["run"]["loss"], eta=_constant)}
        with tempfile.TemporaryDirectory() as folder:
            settings = validate(RunSettings, run | {"out": folder}, _name(cell))
            before = 0.0
            for _ in range(2):  # the first imports as well, which no later cell does again
                began = time.perf_counter()
                trainer = Trainer(settings, _name(cell))
                before = time.perf_counter() - began
                if before > LONG_BUILD:
                    break
            seconds = 0.0
            for step in range(TRIAL_STEPS):
                began = time.perf_counter()
                float(trainer.step(step)["loss"])  # waits for the device
                seconds = time.perf_counter() - began
        return seconds, before

    # ----------------------------------------------------------------------- the measuring

    def begin(self, workers: int) -> None:
        """Share cores and GPUs among the processes; each cell is a run of one process alone."""
        import torch

        for name in ("RANK", "SLURM_STEP_NUM_TASKS"):  # of a worker that srun started
            os.environ.pop(name, None)
        if workers > 1:
            torch.set_num_threads(max(1, cpus() // workers))
            if torch.cuda.is_available():  # `auto` and `cuda` mean this one in here from now on
                torch.cuda.set_device(worker_number() % torch.cuda.device_count())

    def measure(self, cell: Cell) -> Row:
        """Train (or resume), evaluate, and read the metrics."""
        from medclip_debias.evaluation.evaluate import evaluate
        from medclip_debias.evaluation.validation import validator_of
        from medclip_debias.training.logs import last_row
        from medclip_debias.training.train import train

        try:
            settings = self.run_settings(cell)
            limit = settings.train.validate_images
            assert isinstance(settings.prepared, Path)  # as the grid's reader has seen
            validator = validator_of(settings.prepared, limit)
            trained = train(settings, where=_name(cell), validator=validator)
            results = evaluate(
                trained.model,
                settings.prepared,
                self.evaluated(cell),
                heatmaps=0,
                device=settings.train.device,
                **dict(self.settings.evaluate),
            )
        except UserError as error:
            raise UserError(f"{_name(cell)}, seed {cell['seed']}: {error}") from error
        values = {metric.key: results.value(metric.protocol, metric.name) for metric in COMPARED}
        last = last_row(settings.out / "metrics.csv")
        return {
            "folder": "/".join(self.evaluated(cell).parts[-2:]),
            "metrics": {key: value for key, value in values.items() if value is not None},
            "auc_by_class": results.by_class("zero_shot", "auc"),
            "skipped": dict(results["skipped"]),
            "train": {name: last[name] for name in REPORTED if name in last},
        }

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Means, differences to the baseline and to the controls, and what they say."""
        summary = summarised(self.settings, rows, self._judge(rows))
        self.tables = list(summary.tables)
        return summary

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Differences to the baseline and to the controls with their intervals."""
        return plotted(self.settings, rows, self._judge(rows))

    def _judge(self, rows: Sequence[Row]) -> Judged:
        if self._found is None:
            assert self.inputs is not None
            self._found = judged(self.settings, rows, self.inputs)
        return self._found


def _trial(job: tuple[Trainings, Cell]) -> tuple[float, float]:
    experiment, cell = job
    return experiment.trial(cell)


def _constant(eta: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"kind": "constant"} if is_dose(eta) else eta


def _name(cell: Cell) -> str:
    setting = f" of setting '{cell['setting']}'" if cell["setting"] != ONLY else ""
    return f"method '{cell['method']}'{setting}"


# ------------------------------------------------------------------------ what names a cell


def _depends(
    run: Mapping[str, Any], evaluate: Mapping[str, Any], hashes: dict[str, str]
) -> dict[str, Any]:
    """All that the result of a run depends on, files and folders by their content."""
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.data.text.claims.table import FILE as CLAIMS
    from medclip_debias.data.text.claims.table import claims_hash
    from medclip_debias.language.masked_lm import language_model_hash
    from medclip_debias.training.folder import deciding

    def known(place: str, of: Any) -> str:
        if place not in hashes:
            hashes[place] = of(Path(place))
        return hashes[place]

    def by_content(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: by_content(part) for key, part in value.items()}
        if isinstance(value, list):
            return [by_content(part) for part in value]
        if isinstance(value, str) and is_there(value):
            place = Path(value)
            return {"file": known(value, file_hash)} if place.suffix and place.is_file() else value
        return value

    settings = deciding(run)
    text = settings.pop("model.text.folder", None)
    prepared = str(settings.pop("prepared"))
    for name, value in settings.items():
        if name.rpartition(".")[2] in _FOLDERS and value and Path(value).is_dir():
            settings[name] = {"folder": known(value, _folder_hash)}
    content = {
        "run": by_content(settings),
        "data": known(prepared, lambda place: PreparedSet.open(place).content_hash),
        "evaluate": by_content(_judging(evaluate)),
    }
    if text is not None:
        content["language_model"] = known(text, language_model_hash)
    if _reads_claims(run["loss"]):
        place = str(Path(prepared) / CLAIMS)
        content["claims"] = known(place, lambda file: claims_hash(file.parent))
    return content


def _folder_hash(folder: Path) -> str:
    return file_hash(*sorted(path for path in folder.rglob("*") if path.is_file()))


def _reads_claims(loss: Any) -> bool:
    """Whether a part of the objective's settings is the evidence ``claims``."""
    if isinstance(loss, Mapping):
        evidence = loss.get("evidence")
        own = isinstance(evidence, Mapping) and evidence.get("kind") == "claims"
        return own or any(_reads_claims(part) for part in loss.values())
    return isinstance(loss, list | tuple) and any(_reads_claims(part) for part in loss)


def _judging(evaluate: Mapping[str, Any]) -> dict[str, Any]:
    """What of the settings of ``evaluate`` decides the metrics.

    Without triplets nothing about them does, so that cells from before there were any stay valid.
    """
    judged = {k: v for k, v in evaluate.items() if k not in ("bootstrap", "batch_size")}
    if judged.get("triplets") is None:
        judged.pop("triplets", None)
        options = judged.get("options") or {}
        judged["options"] = {k: v for k, v in options.items() if k != "triplet_reports"}
    return judged
