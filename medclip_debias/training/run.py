"""One training run, from validated settings to a model folder.

The loop is plain PyTorch (autocast, AdamW, ``torch.distributed``) and not Lightning Fabric:
importing Fabric takes longer here than all other imports of a run together, and cached gradients
(`medclip_debias.training.step`) need the collectives themselves.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medclip_debias.data.loader import Batch, iterate
from medclip_debias.data.prompts import default_prompts
from medclip_debias.data.verify import check_sample
from medclip_debias.errors import UserError, explained
from medclip_debias.evaluation.prompt_checks import UNSAID, prompt_record
from medclip_debias.files import write_json
from medclip_debias.losses.distributed import Ranks
from medclip_debias.models.dual_encoder import load_state
from medclip_debias.models.starting import TrainableModel
from medclip_debias.training.checkpoint import (
    best_path,
    checkpoints,
    drop_best,
    load_checkpoint,
    load_newest,
    save_checkpoint,
    save_state,
)
from medclip_debias.training.folder import (
    bond,
    check_bond,
    continues,
    identity,
    is_finished,
    mark_finished,
    open_folder,
    plans,
    unmark_finished,
)
from medclip_debias.training.lock import RunLock, locked
from medclip_debias.training.logs import RunLog, Window, last_loss, memory
from medclip_debias.training.pace import Pace, what_trains
from medclip_debias.training.place import Place
from medclip_debias.training.processes import share_from_first, together, total
from medclip_debias.training.progress_log import FINISHED, RUNNING, Line, ProgressLog, Watcher
from medclip_debias.training.settings import RunSettings
from medclip_debias.training.signals import (
    StoppedBySignalError,
    StopSignals,
    before_the_first_step,
    stop_signals,
)
from medclip_debias.training.trainer import Trainer
from medclip_debias.training.validation_state import BestSoFar
from medclip_debias.training.watch import Watch

Progress = Callable[[int, int, float], None]
Validator = Callable[[TrainableModel], dict[str, float]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """What a run left behind.

    Attributes:
        model: its folder.
        steps: steps done, fewer than asked for where the run stopped early.
        loss: mean over the last logged steps.
        images_per_second: studies of the batch a second, since the start or resume.
        resumed_at: steps done before.
        best: best value of ``best_metric`` in the validations, None without any.
        best_step: steps done when it was reached.
        finished_before: whether there was nothing left to do, and the model was left as it is.
        kept: which weights the model folder holds, ``last`` or ``best``.
        kept_step: steps done when they were reached.
    """

    model: Path
    steps: int
    loss: float
    images_per_second: float
    resumed_at: int
    best: float | None = None
    best_step: int = 0
    finished_before: bool = False
    kept: str = "last"
    kept_step: int = 0


def train(
    settings: RunSettings,
    *,
    where: str = "the settings",
    fresh: bool = False,
    progress: Progress | None = None,
    validator: Validator | None = None,
    allow_changed_data: bool = False,
    warn: Callable[[str], None] | None = None,
    say: Callable[[str], None] | None = None,
    line: Line | None = None,
    watcher: Watcher | None = None,
    longer: bool = False,
) -> RunResult:
    """Train a model, resuming where an earlier call with equal settings stopped.

    A run that is finished is left alone, as long as its model folder is as it was written.

    Under torchrun or srun every process calls this; process 0 alone validates and writes.

    Args:
        settings: the whole run.
        where: file the settings came from, for messages.
        fresh: start over, dropping the run's checkpoints.
        progress: called with steps done, steps to do, and the running loss.
        validator: called every ``validate_every`` steps with the model in evaluation mode;
            returns metrics, among them the setting ``best_metric``.
        allow_changed_data: resume although the prepared set has changed.
        warn: called with a sentence about a damaged checkpoint; by default it is logged.
        say: called at the start with what it starts from and what trains; by default it is logged.
        line: called with each line of ``train.log``.
        watcher: called after validations and checkpoints and at the end; what it fails by is a
            warning.
        longer: continue a run, finished or not, with more steps (or patience) than it had.

    Returns:
        The model folder ``out/model`` and metrics of the run.

    Raises:
        UserError: the prepared set, language model or scores do not fit, the set changed without
            a new hash, another run trains in the folder, it holds a run with other settings or a
            checkpoint written under others, the loss stopped being a number, the memory or the
            disk is full, a process of the data loader died.
        StoppedBySignalError: SIGTERM, SIGUSR1, SIGHUP or SIGINT came; the state is saved.
    """
    place = Place.from_environment()
    limit = settings.train.stall_minutes
    with (
        stop_signals() as signals,
        Watch(limit, place) as watch,
        together(place, settings.train.device, watch) as (ranks, device),
    ):
        watch.enter(None)
        trainer = Trainer(settings, where, ranks, device, warn or _log.warning)
        check_sample(trainer.prepared)
        # What follows changes the folder: from here on a signal is an answer to wait for.
        signals.at_once = False
        run = _Run(trainer, validator, warn or _log.warning, signals, watch, (line, watcher))
        if run.asked_to_stop():
            raise StoppedBySignalError(before_the_first_step(signals.name), signals.name)
        with run.hold_folder():
            start = run.open_folder(fresh, allow_changed_data, longer)
            if run.first:
                write_json(settings.out / "parameters.json", trainer.counts)
                for sentence in trainer.start.sentences() if trainer.start else ():
                    (say or _log.info)(sentence)
                (say or _log.info)(what_trains(trainer.counts))
                for sentence in continues(trainer, start):
                    (say or _log.info)(sentence)
            return run.loop(start, progress)


class _Run:
    """A trainer, its folder, and what happens between steps."""

    def __init__(
        self,
        trainer: Trainer,
        validator: Validator | None,
        warn: Callable[[str], None],
        signals: StopSignals,
        watch: Watch,
        shown: tuple[Line | None, Watcher | None],
    ) -> None:
        self.trainer = trainer
        self.signals = signals
        self.watch = watch
        self.ranks: Ranks = trainer.ranks
        self.settings = trainer.settings
        self.out = trainer.settings.out
        self.folder = self.out / "checkpoints"
        self.warn = warn
        train = self.settings.train
        self.validator = validator
        if self.first and train.validate_every and validator is None:
            raise UserError(
                f"{trainer.where}: setting 'train.validate_every' is {train.validate_every}, but "
                "nothing that validates was given; set it to 0."
            )
        self.best = BestSoFar(train.best_metric, train.patience)
        self._best_before = 0  # step of the best model, at the last checkpoint
        self._loss = math.nan
        self._window = Window()
        self._shown = shown
        self._told: ProgressLog | None = None  # in process 0
        self._lock: RunLock | None = None

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.ranks.rank == 0

    def asked_to_stop(self) -> bool:
        """Whether a signal came to any process; the same in all."""
        self.watch.enter("others")
        asked = total(float(self.signals.name is not None), self.ranks, self.trainer.device)
        self.watch.enter(None)
        return asked > 0

    # ----------------------------------------------------------------------- the folder

    @contextmanager
    def hold_folder(self) -> Iterator[None]:
        """Keep other runs out of the folder; process 0 does it for all."""
        if not self.first:
            yield
            return
        with locked(self.out, self.warn) as self._lock:
            yield

    def _still_mine(self) -> None:
        if self._lock is not None:
            self._lock.check()

    def open_folder(self, fresh: bool, allow_changed_data: bool, longer: bool) -> int:
        """Make or check the run's folder; return the step to start at."""
        newest: tuple[Path, dict[str, Any]] | None = None
        if self.first:
            how = {"allow_changed_data": allow_changed_data, "longer": longer}
            open_folder(self.trainer, fresh=fresh, **how)
            newest = load_newest(self.folder, self.warn)
            if newest:
                self._check_bond(newest[1], newest[0], allow_changed_data)
        self.watch.enter(None if self.first else "others")
        name = share_from_first(newest[0].name if newest else None, self.ranks)
        self.watch.enter(None)
        if name is None:
            return 0
        path = self.folder / name
        state = newest[1] if newest else load_checkpoint(path)
        sentence = f"{path}: is no checkpoint of such a run; give another 'out', or --fresh"
        with explained(sentence, KeyError, TypeError, ValueError, AttributeError):
            self.trainer.restore(state, str(path))
            self.best.restore(state["best"])
            if "window" in state:  # else the checkpoint is of an earlier version
                self._window.restore(state["window"])
            self._best_before = self.best.step
            return int(state["step"])

    def _check_bond(self, state: dict[str, Any], path: Path, allow_changed_data: bool) -> None:
        say, trainer = self.warn, self.trainer
        check_bond(trainer, state, path, allow_changed_data=allow_changed_data, say=say)

    def _checkpoint(self, done: int) -> None:
        if self.first:
            self._still_mine()
            state = self.trainer.state() | bond(self.trainer)
            state |= {"best": self.best.state(), "window": self._window.state()}
            save_checkpoint(self.folder, done, state)
            drop_best(self.folder, keep={self.best.step, self._best_before})
            self._best_before = self.best.step

    # ------------------------------------------------------------------------- the loop

    def loop(self, start: int, progress: Progress | None) -> RunResult:
        """Train from step ``start`` to the end and write the model folder."""
        train = self.settings.train
        done = start
        self._loss = last_loss(self.out / "metrics.csv") if start else math.nan
        over = start == train.steps or bool(start and self.best.gives_up)
        finished = over and self.first and is_finished(self.out, start)
        if over and share_from_first(finished, self.ranks):
            return self._result(start, start, 0.0, finished_before=True)
        if self.first:
            unmark_finished(self.out)
            line, watcher = self._shown
            self._told = ProgressLog(self.out, train, start, self.best, line, self.warn, watcher)
        self.signals.begun = True
        with self._open_log(start) as log:
            pace = Pace(train.batch_size, start, train.steps)
            with self._ends(pace), closing(self._steps(start, log, pace)) as steps:
                for done in steps:
                    if self._told:
                        self._told.done = done
                    if progress and self.first:
                        progress(done, train.steps, self._loss)
            if self._told:
                self.watch.enter("files")
                self._save_model()
                mark_finished(self.out, done)
                self._told.say(f"finished: {self._told.weights(done, True)}")
                self.watch.enter(None)
                self._told.look(done, FINISHED, pace, self.trainer.result, log)
        if self.asked_to_stop():
            raise StoppedBySignalError(
                f"stopped by {self._who()} after the last step; the model is saved and the run is "
                "finished.",
                self.signals.name,
            )
        speed = (done - start) * train.batch_size / pace.elapsed if done > start else 0.0
        return self._result(start, done, speed)

    @contextmanager
    def _ends(self, pace: Pace) -> Iterator[None]:
        """Say in the log and on the page that the steps ended before the last one."""
        try:
            yield
        except (UserError, StoppedBySignalError) as error:
            if self._told:
                stopped = isinstance(error, StoppedBySignalError)
                text = str(error) if stopped else "ended by an error, which the terminal says"
                self._told.end(text, pace)
            raise

    def _result(
        self, start: int, done: int, speed: float, *, finished_before: bool = False
    ) -> RunResult:
        best = self.best
        folder = self.out / "model"
        return RunResult(
            *(folder, done, self._loss, speed, start, best.value, best.step, finished_before),
            *(self.settings.train.keep, self._kept(done)),
        )

    def _kept(self, done: int) -> int:
        """Steps done when the weights of the model folder were reached."""
        return self.best.step if self.settings.train.keep == "best" else done

    def _steps(self, start: int, log: RunLog | None, pace: Pace) -> Generator[int]:
        """Take the steps from ``start``; yield how many are done after each."""
        train = self.settings.train
        if start == train.steps or (start and self.best.gives_up):
            return  # only the model is left to write
        with closing(self._batches(start, pace)) as batches:
            for step, batch in enumerate(batches, start=start):
                self.watch.enter("step")
                asked = self.signals.name is not None
                try:
                    metrics = self.trainer.step(step, batch, stop=asked)
                except UserError as error:
                    raise UserError(f"{error}{self._last_good()}") from error
                self._window.add(metrics)
                done = step + 1
                over = done == train.steps
                asked = self.trainer.asked_to_stop
                if done % train.log_every == 0 or over:
                    self._write_row(log, done, self._window.means(), pace)
                validates = train.validate_every and (done % train.validate_every == 0 or over)
                if validates:
                    asked = self._validate(done, log) or asked
                    over = over or self.best.gives_up
                stopped = asked and not over
                saves = done % train.checkpoint_every == 0 or over or stopped
                if saves:
                    self.watch.enter("files" if self.first else "others")
                    self._checkpoint(done)
                if (validates or saves) and not (over or stopped):
                    self._look(done, log, pace)
                if validates or saves:
                    pace.restart()  # the next row is of steps alone
                yield done
                if stopped:
                    raise StoppedBySignalError(self._stopped(done), self.signals.name)
                if over:
                    return
                self.watch.enter("data")

    def _look(self, done: int, log: RunLog | None, pace: Pace) -> None:
        """Let the page be written anew, from the weights that a validation sees."""
        if self._told:
            model = self.trainer.result
            model.eval()
            self.watch.enter(None)  # no part of the run, so it stalls none
            self._told.look(done, RUNNING, pace, model, log)
            self.trainer.train_mode()

    def _batches(self, start: int, pace: Pace) -> Generator[Batch]:
        """The batches from step ``start`` on; how long each was waited for goes to ``pace``."""
        train = self.settings.train
        self.watch.enter("data")
        batches = iterate(self.trainer.batches, start, train.steps, train.workers)
        with closing(batches):
            while True:
                asked = time.perf_counter()
                batch = next(batches, None)
                if batch is None:
                    return
                pace.waited += time.perf_counter() - asked
                pace.steps_taken += 1
                yield batch

    def _write_row(
        self, log: RunLog | None, done: int, means: dict[str, float], pace: Pace
    ) -> None:
        self._loss = means["loss"]
        metrics = pace.metrics() | memory(self.trainer.device)
        if log:
            epoch = done / self.trainer.batches.steps_per_epoch
            row = {"step": done, "epoch": epoch, "lr": self.trainer.rate(done - 1)}
            row |= means | metrics
            log.write(row)
            if self._told:
                self._told.row(done, row, pace)

    def _validate(self, done: int, log: RunLog | None) -> bool:
        """Validate after ``done`` steps; return whether a signal came to process 0 meanwhile."""
        metrics: dict[str, float] = {}
        self.watch.enter("validation" if self.first else "others")
        if self.validator and self.first:
            model = self.trainer.result
            model.eval()
            metrics = self.validator(model)
            self.trainer.train_mode()
            if log:
                log.write_validation({"step": done} | metrics)
        metrics, asked = share_from_first((metrics, self.signals.name is not None), self.ranks)
        better = self.best.see(done, metrics)
        if self._told:
            self._told.validation(done, metrics, better)
        if better and self.first:
            self.watch.enter("files")
            weights = self.trainer.result.state_dict()
            self._still_mine()
            state = {"model": weights, "step": done} | bond(self.trainer)
            save_state(best_path(self.folder, done), state)
        return bool(asked)

    def _open_log(self, start: int) -> RunLog | nullcontext[None]:
        if not self.first:
            return nullcontext()
        train = self.settings.train
        shown = identity(self.trainer)
        return RunLog(
            self.out,
            start,
            wandb=train.wandb,
            project=train.wandb_project,
            settings={name: shown[name] for name in ("train", "loss", "provenance")},
            warn=self.warn,
        )

    def _last_good(self) -> str:
        found = checkpoints(self.folder)
        return f" The last good checkpoint is {found[-1]}." if found else ""

    def _stopped(self, done: int) -> str:
        return (
            f"stopped by {self._who()} after step {done} of {self.settings.train.steps}, which is "
            "saved; run the same command again to resume."
        )

    def _who(self) -> str:
        return self.signals.name or "a signal to another process"

    def _save_model(self) -> None:
        self._still_mine()
        model, steps = self.trainer.result, None
        if self.settings.train.keep == "best":
            path = best_path(self.folder, self.best.step)
            state = load_checkpoint(path)
            # Its data may be what the run had before it was allowed to resume with others.
            self._check_bond(state, path, allow_changed_data=True)
            load_state(model, state["model"], str(path))
            steps = int(state["step"])
        model.prompts = default_prompts()
        model.provenance = identity(self.trainer) | {"studies": len(self.trainer.studies)}
        start = self.trainer.start
        if start is not None:  # what is said of every model: it holds for what is trained from it
            said = {"licence": start.licence, "imported": start.imported}
            model.provenance |= {key: value for key, value in said.items() if value}
        meta = self.trainer.prepared.meta
        # What the model says of a real radiograph means nothing then (`models.synthetic`).
        model.provenance["synthetic"] = meta.get("synthetic", "unknown")
        # Not part of the identity: a run of an earlier version would not resume.
        model.provenance["parameters"] = self.trainer.counts
        model.provenance["data"] = {key: meta.get(key) for key in ("kind", "synthetic")}
        model.provenance[UNSAID] = prompt_record(self.trainer.prepared)
        if self.settings.train.ema:
            model.provenance["weights"] = "exponential moving average"
        model.provenance["kept"] = self.settings.train.keep
        if steps is not None:
            model.provenance["best_step"] = steps
        if before := plans(self.out):
            model.provenance["continued"] = before
        model.eval()
        folder = self.out / "model"
        sentence = f"{folder}: the model cannot be written; free some space, then run the same "
        with explained(sentence + "command again", OSError):
            model.save(folder)
