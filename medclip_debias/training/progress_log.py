"""What a run says while it works: the lines of ``train.log``, and whoever watches it.

A watcher (the live page of `medclip_debias.reporting.live`) is called after validations and
checkpoints and at the end. It must not change a run, so whatever it fails by is a warning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from medclip_debias.errors import UserError
from medclip_debias.models.starting import TrainableModel
from medclip_debias.training.logs import RunLog
from medclip_debias.training.pace import Pace, clock
from medclip_debias.training.settings import TrainSettings
from medclip_debias.training.validation_state import BestSoFar

FILE = "train.log"
RUNNING, FINISHED = "training", "finished"

Line = Callable[[str, bool], None]
"""Takes a line, and whether such lines are frequent."""


@dataclass(frozen=True)
class Moment:
    """Where a run stands.

    Attributes:
        out: its folder.
        step: steps done.
        steps: steps to do.
        status: ``training``, ``finished``, or what ended it, as ``stopped by SIGTERM ...``.
        elapsed: seconds since it was started or resumed.
        left: seconds that the rest will take.
        best: a sentence on the best validation; empty without any.
        weights: a sentence on which weights the model folder holds or will hold.
    """

    out: Path
    step: int
    steps: int
    status: str
    elapsed: float
    left: float
    best: str
    weights: str


class Watcher(Protocol):
    """Looks at a run now and then."""

    def __call__(self, moment: Moment, model: TrainableModel | None) -> NDArray[np.uint8] | None:
        """Look, and perhaps return a picture ``[H, W, 3]`` for TensorBoard.

        Args:
            moment: where the run stands.
            model: in evaluation mode; None where the last pictures must do.
        """


class ProgressLog:
    """Lines and watchers of one run, in its first process.

    Args:
        out: folder of the run.
        train: its settings.
        start: steps done before.
        best: its validations.
        line: takes each line; it is written to ``train.log`` too.
        warn: takes warnings.
        watcher: called now and then.

    Attributes:
        done: steps done, kept up to date by the run.
    """

    def __init__(
        self,
        out: Path,
        train: TrainSettings,
        start: int,
        best: BestSoFar,
        line: Line | None,
        warn: Callable[[str], None],
        watcher: Watcher | None,
    ) -> None:
        self._out, self._train, self._best = out, train, best
        self._line, self._warn, self._watcher = line, warn, watcher
        self._path, self.done = out / FILE, start
        if not start:
            self._path.unlink(missing_ok=True)
        else:
            self.say(f"resumed after step {start} of {train.steps}")

    def say(self, text: str, frequent: bool = False) -> None:
        """Write one line, with the time before it."""
        text = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}"
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(text + "\n")
        except OSError as error:
            raise UserError(
                f"{self._path}: cannot be written ({error.strerror}); free some space, then run "
                "the same command again."
            ) from error
        if self._line:
            self._line(text, frequent)

    def row(self, done: int, row: Mapping[str, float], pace: Pace) -> None:
        """Say a row of ``metrics.csv``."""
        self.say(
            f"step {done} of {self._train.steps}, lr {row['lr']:.3g}, "
            f"{row['images_per_second']:.1f} images/s, loss {row['loss']:.4f}, "
            f"elapsed {clock(row['seconds'])}, left {clock(pace.left(done))}",
            frequent=True,
        )

    def validation(self, done: int, metrics: Mapping[str, float], better: bool) -> None:
        """Say a validation, and whether it is the best so far."""
        shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        judged = "the best so far" if better else self.best_sentence()
        waited, patience = self._best.waited, self._train.patience
        if not better and patience:
            judged += f"; {waited} of {patience} in a row without a better one"
        self.say(f"step {done}, validation: {shown}; {judged}")

    def best_sentence(self) -> str:
        """``best is step 40 (recall_at_10 0.25)``; empty before the first validation."""
        best = self._best
        if best.value is None:
            return ""
        return f"best is step {best.step} ({best.metric} {best.value:.4g})"

    def weights(self, done: int, over: bool) -> str:
        """Which weights the model folder holds, or will hold."""
        holds = "the model folder holds" if over else "the model folder will hold"
        average = "the moving average of the weights" if self._train.ema else "the weights"
        if self._train.keep == "best":
            best = self._best
            of = f"after step {best.step}" if best.value is not None else "of the best validation"
            return f"{holds} {average} {of}, the best by {best.metric} (train.keep: best)"
        at = f"after step {done}, the last" if over else "of the last step"
        return f"{holds} {average} {at} (train.keep: last)"

    def end(self, why: str, pace: Pace) -> None:
        """Say that the run ended before its last step; the page keeps its last pictures."""
        self.say(why)
        self.look(self.done, why, pace, None)

    def look(
        self, done: int, status: str, pace: Pace, model: Any, log: RunLog | None = None
    ) -> None:
        """Let the watcher look; what it fails by is a warning, and the run goes on."""
        if self._watcher is None:
            return
        moment = Moment(
            *(self._out, done, self._train.steps, status),
            *(pace.elapsed, pace.left(done)),
            *(self.best_sentence(), self.weights(done, status == FINISHED)),
        )
        try:
            picture = self._watcher(moment, model)
            if picture is not None and log is not None:
                log.write_picture("preview", picture, done)
        except Exception as error:  # a page must not end a training of days
            self._watcher = None
            why = str(error) if isinstance(error, UserError) else type(error).__name__
            self._warn(f"{self._out / 'report.html'}: is not kept up to date any more ({why}).")
