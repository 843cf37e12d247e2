"""What a run writes down: ``train.log``, tables, TensorBoard, and Weights & Biases if asked for."""

from __future__ import annotations

import csv
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from medclip_debias.errors import UserError
from medclip_debias.files import atomic_file
from medclip_debias.training.pace import clock
from medclip_debias.training.settings import RunSettings
from medclip_debias.training.signals import StoppedBySignalError

if TYPE_CHECKING:
    from medclip_debias.evaluation.preview import Example
    from medclip_debias.training.step import Trainer

FILE = "train.log"

_log = logging.getLogger(__name__)


class RunLog:
    """Everything that process 0 of a run writes down beside its weights.

    Rows after ``start`` are dropped: those steps are taken again. Only numbers go to Weights &
    Biases, and the settings of ``train`` and ``loss``: never a report's text.
    """

    def __init__(
        self,
        settings: RunSettings,
        start: int,
        identity: Mapping[str, Any],
        warn: Callable[[str], None] = _log.warning,
        line: Callable[[str, bool], None] | None = None,
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._out, self._options, self._line = settings.out, settings.train, line
        shown = {name: identity[name] for name in ("train", "loss", "provenance")}
        self._wandb = _start_wandb(settings, shown) if settings.train.wandb != "off" else None
        self._training = _CsvLog(self._out / "metrics.csv", start, warn)
        self._validation = _CsvLog(self._out / "validation.csv", start, warn)
        self._folder = self._out / "tensorboard"
        with _writable(self._folder):
            self._board = SummaryWriter(str(self._folder), purge_step=start + 1)
        text = yaml.safe_dump(dict(identity), sort_keys=False)
        self.write_text("settings", "```yaml\n" + text + "```", start)
        if start:
            self.say(f"resumed after step {start} of {settings.train.steps}")
        else:
            (self._out / FILE).unlink(missing_ok=True)

    def say(self, text: str, frequent: bool = False) -> None:
        """Write one line of ``train.log``, with the time before it."""
        text = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}"
        path = self._out / FILE
        with _writable(path), path.open("a", encoding="utf-8") as stream:
            stream.write(text + "\n")
        if self._line:
            self._line(text, frequent)

    def write_row(self, row: Mapping[str, float], seconds_left: float) -> None:
        """Add one row of training, with its ``step``."""
        self._write(self._training, row, "")
        self.say(
            f"step {row['step']} of {self._options.steps}, lr {row['lr']:.3g}, "
            f"{row['images_per_second']:.1f} images/s, loss {row['loss']:.4f}, "
            f"elapsed {clock(row['seconds'])}, left {clock(seconds_left)}",
            frequent=True,
        )

    def write_validation(self, step: int, metrics: Mapping[str, float], verdict: str) -> None:
        """Add one row of validation."""
        self._write(self._validation, {"step": step} | dict(metrics), "validation/")
        shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        self.say(f"step {step}, validation: {shown}; {verdict}")

    def write_text(self, name: str, text: str, step: int = 0) -> None:
        """Add a text (Markdown) to TensorBoard; it goes nowhere else."""
        with _writable(self._folder):
            self._board.add_text(name, text, step)

    def write_picture(self, name: str, picture: NDArray[np.uint8], step: int) -> None:
        """Add a picture ``[H, W, 3]`` to TensorBoard; it goes nowhere else."""
        with _writable(self._folder):
            self._board.add_image(name, picture, step, dataformats="HWC")

    def _write(self, table: _CsvLog, row: Mapping[str, float], prefix: str) -> None:
        table.write(row)
        step = int(row["step"])
        scalars = {prefix + name: value for name, value in row.items() if name != "step"}
        with _writable(self._folder):
            for name, value in scalars.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(scalars, step=step)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        # Where there is an error, it is more important than one of writing.
        with suppress(UserError) if error else nullcontext():
            if isinstance(error, StoppedBySignalError):
                self.say(str(error))
            elif isinstance(error, UserError):
                self.say("ended by an error, which the terminal shows")
            with _writable(self._folder):
                self._board.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if error is None else 1)


class Heatmaps:
    """What the model sees of example sentences, for TensorBoard; none where that is not wanted."""

    def __init__(self, trainer: Trainer, log: RunLog, warn: Callable[[str], None]) -> None:
        from medclip_debias.evaluation.preview import choose, refuse

        self._trainer, self._log, self._warn = trainer, log, warn
        self._examples: list[Example] = []
        train, prepared = trainer.settings.train, trainer.prepared
        reason = refuse(prepared, train.preview, train.task)
        if not reason:
            try:
                self._examples = choose(prepared, trainer.model.preprocessing.input_size)
            except UserError:
                reason = "no pictures: no study of the validate split has a sentence"
        if reason:
            log.write_text("preview", reason)

    def draw(self, step: int) -> None:
        """Add the heatmaps after ``step`` steps."""
        if not self._examples:
            return
        from medclip_debias.evaluation.preview import pictures, sheet

        trainer = self._trainer
        trainer.result.eval()
        try:
            drawn = pictures(trainer.result, trainer.prepared, self._examples)
            texts = [example.text for example in self._examples]
            self._log.write_picture("preview", sheet(drawn, texts), step)
        except Exception as error:  # pictures must not end a training of days
            self._examples = []
            reason = str(error) if isinstance(error, UserError) else type(error).__name__
            board = trainer.settings.out / "tensorboard"
            self._warn(f"{board}: shows no more heatmaps ({reason}).")
        trainer.train_mode()


def _start_wandb(run: RunSettings, shown: dict[str, Any]) -> Any:
    try:
        import wandb
    except ImportError:
        raise UserError(
            "train.wandb is set, but Weights & Biases is not installed; install "
            "medclip-debias[wandb], or set train.wandb=off."
        ) from None
    # Numbers only: no console output, no code, no host or user name leaves with them.
    quiet = wandb.Settings(
        console="off", disable_git=True, save_code=False, silent=True, x_disable_meta=True
    )
    where: dict[str, Any] = {"project": run.train.wandb_project, "mode": run.train.wandb}
    where |= {"name": run.out.name, "dir": str(run.out)}
    return wandb.init(**where, config=shown, settings=quiet)


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    """Say which file cannot be written, and what to do."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror or type(error).__name__}); free some "
            "space, or move away what is there, then run the same command again."
        ) from error


class _CsvLog:
    """A CSV file, ``nan`` where a row has no such figure; rows after step ``start`` are dropped."""

    def __init__(self, path: Path, start: int, warn: Callable[[str], None]) -> None:
        self.path = path
        self._columns: list[str] = []
        with _writable(path):
            if start == 0 or not os.path.lexists(path):
                path.unlink(missing_ok=True)
                return
            columns, rows = _read_rows(path)
            if "step" in columns:
                self._columns = columns
                with atomic_file(path) as temporary:
                    self._append(temporary, [r for r in rows if float(r["step"]) <= start], True)
                return
            damaged = path.with_suffix(".damaged.csv")
            path.replace(damaged)
            warn(
                f"{path}: is damaged, so its rows up to step {start} are lost; the rows of "
                f"later steps go into a new file. What is left of it is in {damaged.name}."
            )

    def write(self, row: Mapping[str, float]) -> None:
        new = [name for name in row if name not in self._columns]
        cells = {name: _number(value) for name, value in row.items()}
        with _writable(self.path):
            if not new:
                self._append(self.path, [cells], False)
                return
            before = _read_rows(self.path)[1] if self._columns else []
            self._columns += new
            with atomic_file(self.path) as temporary:
                self._append(temporary, [*before, cells], True)

    def _append(self, path: Path, rows: list[dict[str, str]], with_header: bool) -> None:
        with path.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, self._columns, restval="nan")
            if with_header:
                writer.writeheader()
            writer.writerows(rows)


def last_row(path: Path) -> dict[str, float]:
    """The figures that the last row of a table has; none where there is no row."""
    rows: list[dict[str, str]] = []
    with suppress(OSError):
        rows = _read_rows(path)[1]
    figures = {name: float(cell) for row in rows[-1:] for name, cell in row.items()}
    return {name: value for name, value in figures.items() if not math.isnan(value)}


def _read_rows(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Columns (none where it is no table), and the rows but for one that was cut off."""
    with path.open(newline="", encoding="utf-8", errors="replace") as stream:
        if not stream.readline().endswith("\n"):  # the header itself was cut off
            return [], []
        stream.seek(0)
        reader = csv.DictReader(stream)
        try:
            rows = [row for row in reader if all(map(_is_number, row.values()))]
            return list(reader.fieldnames or []), rows
        except csv.Error:
            return [], []


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def _number(value: Any) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.6g}"


def memory(device: torch.device) -> dict[str, float]:
    """Memory in MiB: resident in this process, and the peak on its GPU."""
    import psutil

    metrics = {"memory_mib": psutil.Process().memory_info().rss / 2**20}
    if device.type == "cuda":
        metrics["gpu_peak_mib"] = torch.cuda.max_memory_allocated(device) / 2**20
    return metrics
