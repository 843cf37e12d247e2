"""The training loop, from validated settings to a model folder.

It is plain PyTorch (autocast, AdamW, ``torch.distributed``) and not Lightning Fabric: importing
Fabric takes longer here than all other imports of a run together, and cached gradients
(`medclip_debias.training.step`) need the collectives themselves.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.data.joint import JointSet
from medclip_debias.data.loader import Batch, iterate
from medclip_debias.data.verify import check_sample
from medclip_debias.errors import UserError, explained
from medclip_debias.files import write_json
from medclip_debias.models.start import TrainableModel
from medclip_debias.training.checkpoint import BestSoFar, RunState, checkpoints, load_checkpoint
from medclip_debias.training.distributed import Processes, StallTimer, processes
from medclip_debias.training.folder import RunFolder
from medclip_debias.training.lock import locked
from medclip_debias.training.logs import last_row
from medclip_debias.training.pace import Pace, what_trains
from medclip_debias.training.settings import RunSettings
from medclip_debias.training.signals import BEFORE_THE_FIRST_STEP, StoppedBySignalError, StopSignals
from medclip_debias.training.step import Trainer

if TYPE_CHECKING:
    from torch import Tensor

Progress = Callable[[int, int, float], None]
Validator = Callable[[TrainableModel], dict[str, float]]
Say = Callable[[str], None]

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
    warn: Say = _log.warning,
    say: Say = _log.info,
    line: Callable[[str, bool], None] | None = None,
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
        line: called with each line of ``train.log``, and whether such lines are frequent.
        longer: continue a run, finished or not, with more steps (or patience) than it had.

    Returns:
        The model folder ``out/model`` and metrics of the run.

    Raises:
        UserError: the prepared set, language model or scores do not fit, the set changed without
            a new hash, another run trains in the folder, it holds a run with other settings or a
            checkpoint written under others, the loss stopped being a number, the memory or the
            disk is full.
        StoppedBySignalError: SIGTERM, SIGUSR1, SIGHUP or SIGINT came; the state is saved.
    """
    options, out = settings.train, settings.out
    with processes(options.device, options.stall_minutes) as group:
        ranks, signals, stall = group.ranks, group.signals, group.stall
        is_first = ranks.rank == 0
        trainer = Trainer(settings, where, ranks, group.device, warn)
        check_sample(trainer.prepared)
        if is_first and options.validate_every and validator is None:
            raise UserError(
                f"{where}: setting 'train.validate_every' is {options.validate_every}, but nothing "
                "that validates was given; set it to 0."
            )
        # What follows changes the folder: from here on a signal waits for an answer.
        signals.at_once = False
        group.stop_if_signalled(BEFORE_THE_FIRST_STEP)

        with locked(out) if is_first else nullcontext():
            # ---- set up, restore
            state = RunState(BestSoFar(options.best_metric, options.patience))
            folder = newest = None
            if is_first:
                folder = RunFolder(trainer)
                newest = folder.open(
                    warn, fresh=fresh, allow_changed_data=allow_changed_data, longer=longer
                )
            done = start = _restore(trainer, state, group, newest)
            if folder:
                _introduce(folder, start, say)
            is_over = start == options.steps or (start > 0 and state.best.gives_up)
            finished = is_over and folder is not None and folder.is_finished(start)
            if is_over and group.share_from_first(finished):
                return _result(trainer, state, start, start, finished_before=True)
            signals.begun = True
            pace = Pace(options.batch_size, start, options.steps)
            log = folder.begin(start, warn, line) if folder else nullcontext()

            # ---- take steps
            steps = range(start, start if is_over else options.steps)
            with log, closing(_batches(trainer, steps, pace, stall)) as batches:
                for step, batch in zip(steps, batches, strict=True):
                    state.window.add(_step(trainer, step, batch, signals))
                    done = step + 1
                    is_over = done == options.steps
                    is_stopped = trainer.asked_to_stop

                    if is_over or done % options.log_every == 0:
                        means = state.window.means()
                        state.loss = means["loss"]
                        if folder:
                            folder.log_row(done, means, pace)

                    validates = options.validate_every and (
                        is_over or done % options.validate_every == 0
                    )
                    if validates:
                        metrics, was_signalled = _validate(trainer, validator, group)
                        is_best = state.best.see(done, metrics)
                        if folder:
                            stall.enter("files")
                            folder.log.write_validation(done, metrics, state.best.verdict())
                            if is_best:
                                folder.save_best(done)
                        is_stopped |= was_signalled
                        is_over |= state.best.gives_up

                    saves = is_over or is_stopped or done % options.checkpoint_every == 0
                    if saves and folder:
                        stall.enter("files")
                        folder.save(done, state)

                    if validates or saves:
                        stall.enter(None)  # pictures are no part of the run, so they stall none
                        if folder and not is_stopped:
                            folder.heatmaps.draw(done)
                        pace.restart()  # the next row is of steps alone
                    if progress and is_first:
                        progress(done, options.steps, state.loss)
                    if is_over:
                        break
                    if is_stopped:
                        raise StoppedBySignalError(
                            f"stopped by {signals.origin} after step {done} of {options.steps}, "
                            "which is saved; run the same command again to resume.",
                            signals.name,
                        )

                # ---- save the model, stop
                if folder:
                    stall.enter("files")
                    folder.finish(done, state.best.step)
            after = "after the last step; the model is saved and the run is finished."
            group.stop_if_signalled(after)
            return _result(trainer, state, start, done, seconds=pace.elapsed)


# --------------------------------------------------------------------------- before the first step


def _restore(
    trainer: Trainer, state: RunState, group: Processes, newest: tuple[Path, dict[str, Any]] | None
) -> int:
    """Continue from the checkpoint that process 0 found; return the step to start at."""
    name = group.share_from_first(newest[0].name if newest else None)
    if name is None:
        return 0
    path = trainer.settings.out / "checkpoints" / name
    saved = newest[1] if newest else load_checkpoint(path)
    sentence = f"{path}: does not fit these settings; give another 'out', or --fresh"
    with explained(sentence, KeyError, TypeError, ValueError, AttributeError):
        trainer.restore(saved, str(path))
        state.restore(saved)
        state.loss = last_row(trainer.settings.out / "metrics.csv").get("loss", math.nan)
        return int(saved["step"])


def _introduce(folder: RunFolder, start: int, say: Say) -> None:
    """Say what the run starts from, and what trains."""
    trainer = folder.trainer
    write_json(folder.out / "parameters.json", trainer.counts)
    sets = trainer.prepared.describe() if isinstance(trainer.prepared, JointSet) else []
    starts = trainer.start.sentences() if trainer.start else []
    options = trainer.settings.train
    rate = [f"the learning rate {options.rate_in_words()}"] * (options.warmup_steps > options.steps)
    boxes = [trainer.boxes.describe()] if trainer.boxes else []
    for sentence in [
        *sets,
        *starts,
        *boxes,
        what_trains(trainer.counts),
        *rate,
        *folder.continues(start),
    ]:
        say(sentence)


def _batches(trainer: Trainer, steps: range, pace: Pace, stall: StallTimer) -> Generator[Batch]:
    """The batches of ``steps``; how long each was waited for goes to ``pace``."""
    if not steps:
        return
    workers = trainer.settings.train.workers
    with closing(iterate(trainer.batches, steps.start, steps.stop, workers)) as batches:
        while True:
            stall.enter("data")
            asked = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            pace.waited += time.perf_counter() - asked
            pace.steps_taken += 1
            stall.enter("step")
            yield batch


def _step(trainer: Trainer, step: int, batch: Batch, signals: StopSignals) -> dict[str, Tensor]:
    """Take a step; an error names the last good checkpoint."""
    try:
        return trainer.step(step, batch, stop=signals.name is not None)
    except UserError as error:
        last = checkpoints(trainer.settings.out / "checkpoints")[-1:]
        hint = f" The last good checkpoint is {last[0]}." if last else ""
        raise UserError(f"{error}{hint}") from error


def _validate(
    trainer: Trainer, validator: Validator | None, group: Processes
) -> tuple[dict[str, float], bool]:
    """The metrics of process 0, in all, and whether a signal came to it meanwhile."""
    metrics: dict[str, float] = {}
    if validator and group.ranks.rank == 0:
        group.stall.enter("validation")
        trainer.result.eval()
        metrics = validator(trainer.result)
        trainer.train_mode()
    metrics, is_stopped = group.share_from_first((metrics, group.signals.name is not None))
    return metrics, is_stopped


# --------------------------------------------------------------------------------------- at the end


def _result(
    trainer: Trainer,
    state: RunState,
    start: int,
    done: int,
    *,
    seconds: float = math.inf,
    finished_before: bool = False,
) -> RunResult:
    options, best = trainer.settings.train, state.best
    return RunResult(
        model=trainer.settings.out / "model",
        steps=done,
        loss=state.loss,
        images_per_second=(done - start) * options.batch_size / seconds,
        resumed_at=start,
        best=best.value,
        best_step=best.step,
        finished_before=finished_before,
        kept=options.keep,
        kept_step=best.step if options.keep == "best" else done,
    )
