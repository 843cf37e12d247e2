"""The folder of a run: what it was started with, whether it may resume, its checkpoints and model.

Every checkpoint carries the settings that it was written under and the hashes of what the run
starts from; `settings.yaml` says the same to people.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from medclip_debias import __version__
from medclip_debias.config import ModelSettings
from medclip_debias.data.prompts import default_prompts
from medclip_debias.data.text.claims.table import claims_hash
from medclip_debias.errors import UserError, explained
from medclip_debias.evaluation.prompt_checks import UNSAID, prompt_record
from medclip_debias.files import (
    file_hash,
    read_json_or_none,
    remove_leftovers,
    write_json,
    write_text,
)
from medclip_debias.language.masked_lm import language_model_hash
from medclip_debias.losses.samples import SampleTable
from medclip_debias.models.checkpoint import load_strictly
from medclip_debias.settings_files import load_yaml
from medclip_debias.training.checkpoint import (
    RunState,
    best_path,
    drop_best,
    drop_checkpoints,
    load_checkpoint,
    load_newest,
    save_checkpoint,
    save_state,
)
from medclip_debias.training.logs import Heatmaps, RunLog, memory
from medclip_debias.training.pace import Pace
from medclip_debias.training.step import Trainer

# Settings that change how fast a run goes or how much it says, but not what it computes.
_FREE = {
    "out",
    "train.workers",
    "train.stall_minutes",
    "train.log_every",
    "train.preview",
    "train.checkpoint_every",
    "train.device",
    "train.deterministic",
    "train.wandb",
    "train.wandb_project",
    "train.augment.where",
    "train.features.folder",
    "model.similarity.chunk",
}
EXTENDED = ("train.steps", "train.patience")
"""What may be raised when a run is continued."""
_FINISHED = "finished.json"
_DATA = "provenance.data_hash"
_CLAIMS = "provenance.claims_hash"


def deciding(content: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that decide what it computes, by dotted key."""
    return {key: value for key, value in _flat(dict(content)).items() if key not in _FREE}


class RunFolder:
    """The folder ``out`` of a run, as process 0 reads and writes it.

    Attributes:
        identity: the settings of the run and the hashes of what it starts from.
        settings: `identity` by dotted key, as checkpoints carry it.
        plans: what `EXTENDED` was before each time that the run was continued.
        earlier_data: hashes of the data that earlier steps learned from, where it was another.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.out = trainer, trainer.settings.out
        self.checkpoints = self.out / "checkpoints"
        model = trainer.settings.model
        provenance: dict[str, Any] = {
            "medclip_debias": __version__,
            "data_hash": trainer.prepared.content_hash,
        }
        if trainer.start is not None:
            provenance["start"] = trainer.start.provenance
        elif isinstance(model, ModelSettings):
            provenance["language_model_hash"] = language_model_hash(model.text.folder)
        if "claims" in trainer.objective.requires:
            provenance["claims_hash"] = claims_hash(trainer.prepared)
        if trainer.boxes is not None:
            provenance["boxes_hash"] = trainer.boxes.files_hash
        self.identity = trainer.settings.model_dump(mode="json") | {
            "loss": trainer.loss_settings.model_dump(mode="json"),
            "provenance": provenance,
        }
        self.settings = _flat(self.identity)
        self.plans: list[dict[str, Any]] = []
        self.earlier_data: list[str] = []

    def open(
        self,
        warn: Callable[[str], None],
        *,
        fresh: bool,
        allow_changed_data: bool,
        longer: bool = False,
    ) -> tuple[Path, dict[str, Any]] | None:
        """Make the folder, or take up its newest checkpoint if it is of the same run."""
        with explained(f"{self.out}: cannot be written; give another folder in 'out'", OSError):
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.out)
            remove_leftovers(self.checkpoints)
            if fresh:
                drop_checkpoints(self.checkpoints)
        newest = load_newest(self.checkpoints, warn)
        if newest:
            before = _written_under(*newest)
            longer = longer or self._was_continued()
            self._check_same(before, longer=longer, allow_changed_data=allow_changed_data)
            self.plans = list(newest[1].get("plans", []))
            self._note_plan({name: before.get(name) for name in EXTENDED})
            self.earlier_data = list(newest[1].get("earlier_data", []))
            if before.get(_DATA) != self.settings[_DATA]:
                self.earlier_data.append(before[_DATA])
                if any(isinstance(m, SampleTable) for m in self.trainer.objective.modules()):
                    warn(
                        f"{self.out}: its loss keeps numbers of each study by its place in the set;"
                        " in the changed data they may be another study's (--fresh starts over)."
                    )
        elif not fresh and (self.out / _FINISHED).is_file():
            raise UserError(
                f"{self.out}: holds a finished run whose checkpoints are gone, and its model would "
                "be replaced; give another 'out', or --fresh to start over."
            )
        with explained(f"{self.out}: cannot be written; give another folder in 'out'", OSError):
            content = yaml.safe_dump(self.identity, sort_keys=False)
            write_text(self.out / "settings.yaml", content)
        return newest

    def _check_same(
        self, old: Mapping[str, Any], *, longer: bool, allow_changed_data: bool
    ) -> None:
        """A checkpoint must not continue under other settings, nor unasked on other data."""
        new, out = self.settings, self.out
        free = {*_FREE, *(EXTENDED if longer else ())}
        differ = {k for k in {*old, *new} if old.get(k) != new.get(k) and k not in free}
        forgiven = {_DATA, "prepared", *([_CLAIMS] if allow_changed_data else ())}
        settings = sorted(differ - forgiven)
        remedy = "give another 'out', or --fresh to start over."
        if settings == [_CLAIMS]:
            raise UserError(
                f"{out}: its run began with other claims than {new['prepared']} has now; restore"
                f" their file, {remedy}"
            )
        if settings:
            names = ", ".join(settings[:4])
            names += f" and {len(settings) - 4} more" if len(settings) > 4 else ""
            more = ""
            if set(settings) <= set(EXTENDED):
                more = f", of {old.get('train.steps')} steps (give --continue to train it for more)"
            raise UserError(f"{out}: holds a run with other settings ({names}){more}; {remedy}")
        if _DATA in differ and not allow_changed_data:
            raise UserError(
                f"{out}: its run began on data with the hash {old.get(_DATA)}, but"
                f" {new['prepared']} now has {new[_DATA]}; restore the old set, start over with"
                " --fresh, or resume anyway with --allow-changed-data."
            )

    # -------------------------------------------------------------- a run that is continued

    def _was_continued(self) -> bool:
        """Whether `settings.yaml` has this plan, of a run killed before it had a checkpoint."""
        try:
            noted = _flat(load_yaml(self.out / "settings.yaml"))
        except UserError:
            return False
        return all(noted.get(name) == self.settings[name] for name in EXTENDED)

    def _note_plan(self, plan: dict[str, Any]) -> None:
        """Keep what the run was planned as before it was continued."""
        if all(plan[name] == self.settings[name] for name in EXTENDED):
            return
        had, wanted = plan["train.steps"], self.settings["train.steps"]
        if not (isinstance(had, int) and had <= wanted):
            raise UserError(
                f"{self.out}: its run has {had} steps, and {wanted} are asked for; a run is "
                "continued with more, or give another 'out'."
            )
        self.plans.append(plan)

    def continues(self, start: int) -> list[str]:
        """What becomes of the learning rate, after ``start`` steps, in a run that had fewer."""
        train = self.trainer.settings.train
        if not (start and self.plans):
            return []
        had = self.plans[-1]["train.steps"]
        sentence = f"a run of {had} steps, continued after step {start} to step {train.steps}: "
        if train.schedule == "constant":
            rate = "the learning rate stays, as in a run of so many steps from the start"
        else:
            rate = (
                f"the learning rate was on its way to 0 at step {had}, and follows the cosine of "
                f"{train.steps} steps from here on ({self.trainer.rate(start):.3g} at the next "
                "step)"
            )
        return [sentence + rate]

    # -------------------------------------------------------------- while steps are taken

    def begin(
        self, start: int, warn: Callable[[str], None], line: Callable[[str, bool], None] | None
    ) -> RunLog:
        """Take back that the run has finished, and open its log."""
        (self.out / _FINISHED).unlink(missing_ok=True)
        self.log = RunLog(self.trainer.settings, start, self.identity, warn, line)
        self.heatmaps = Heatmaps(self.trainer, self.log, warn)
        return self.log

    def log_row(self, step: int, means: dict[str, float], pace: Pace) -> None:
        """Write the means since the last row, the rate, the speed and the memory."""
        epoch = step / self.trainer.batches.steps_per_epoch
        row = {"step": step, "epoch": epoch, "lr": self.trainer.rate(step - 1)}
        row |= means | pace.metrics() | memory(self.trainer.device)
        if self.trainer.precision.scaler.is_enabled():
            row["skipped_steps"] = self.trainer.left_out(step)
        self.log.write_row(row, pace.left(step))

    def save_best(self, step: int) -> None:
        """Write the weights of the best validation so far."""
        content = {"model": self.trainer.result.state_dict(), "settings": self.settings}
        save_state(best_path(self.checkpoints, step), content | {"step": step})

    def save(self, step: int, state: RunState) -> None:
        """Write a checkpoint; of the best weights, keep those of the two last checkpoints."""
        content = self.trainer.state() | state.content()
        content |= {"settings": self.settings, "plans": self.plans}
        content["earlier_data"] = self.earlier_data
        save_checkpoint(self.checkpoints, step, content)
        drop_best(self.checkpoints, keep={state.best.step, state.best_at_checkpoint})
        state.best_at_checkpoint = state.best.step

    def finish(self, step: int, best_step: int) -> None:
        """Write the model of the run's end, and note its files' hashes; log what it holds."""
        train = self.trainer.settings.train
        self._save_model(best_step)
        write_json(self.out / _FINISHED, {"step": step, "model": self._model_hashes()})
        weights = "the moving average of the weights" if train.ema else "the weights"
        which = f"after step {step}, the last (train.keep: last)"
        if train.keep == "best":
            which = f"after step {best_step}, the best by {train.best_metric} (train.keep: best)"
        self.log.say(f"finished: the model folder holds {weights} {which}")
        if train.precision == "fp16" and (left_out := self.trainer.left_out(step)):
            self.log.say(f"{left_out} of {step} steps were skipped: their gradient overflowed fp16")

    def is_finished(self, step: int) -> bool:
        """Whether the run has finished after ``step`` steps, and the model is as it was then."""
        noted = read_json_or_none(self.out / _FINISHED)
        try:
            return noted is not None and noted == {"step": step, "model": self._model_hashes()}
        except OSError:
            return False

    def _model_hashes(self) -> dict[str, str]:
        return {path.name: file_hash(path) for path in sorted((self.out / "model").iterdir())}

    def _save_model(self, best_step: int) -> None:
        """Write the model folder, with the weights that ``train.keep`` asks for."""
        trainer, model, folder = self.trainer, self.trainer.result, self.out / "model"
        train, meta = trainer.settings.train, trainer.prepared.meta
        provenance = self.identity | {"studies": len(trainer.studies)}
        if trainer.start is not None:  # what is said of it holds for what is trained from it
            inherited = {"licence": trainer.start.licence, "imported": trainer.start.imported}
            provenance |= {key: value for key, value in inherited.items() if value}
        # What a model of generated radiographs says of a real one means nothing.
        provenance["synthetic"] = meta.get("synthetic", "unknown")
        provenance["parameters"] = trainer.counts
        provenance["data"] = {key: meta.get(key) for key in ("kind", "synthetic")}
        if "sets" in meta:
            provenance["data"]["sets"] = meta["sets"]
        # Of a start that read other text it is not known which prompts that says.
        if train.task == "image_text" and not (trainer.start and trainer.start.read_text):
            provenance[UNSAID] = prompt_record(trainer.studies.texts)
        if train.ema:
            provenance["weights"] = "exponential moving average"
        provenance["kept"] = train.keep
        if train.keep == "best":
            path = best_path(self.checkpoints, best_step)
            content = load_checkpoint(path)
            # Its plan and data may be what the run had before it was continued, or allowed others.
            written_under = _written_under(path, content)
            self._check_same(written_under, longer=True, allow_changed_data=True)
            load_strictly(model, content["model"], str(path))
            provenance["best_step"] = int(content["step"])
        if self.plans:
            provenance["continued"] = self.plans
        if self.earlier_data:
            provenance["earlier_data_hashes"] = self.earlier_data
        model.prompts, model.provenance = default_prompts(), provenance
        model.eval()
        sentence = f"{folder}: the model cannot be written; free some space, then run the same"
        with explained(f"{sentence} command again", OSError):
            model.save(folder)


def _written_under(path: Path, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    settings = checkpoint.get("settings")
    if not isinstance(settings, dict):
        raise UserError(
            f"{path}: does not say which settings it was written under, so it is not a checkpoint"
            " of this run; give another 'out', or --fresh to start over."
        )
    return settings


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix: content}
    result: dict[str, Any] = {}
    for key, value in content.items():
        result |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return result
