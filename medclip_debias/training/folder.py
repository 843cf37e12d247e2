"""The folder of a run: what it was started with, and whether it may resume.

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
from medclip_debias.files import (
    file_hash,
    read_json_or_none,
    remove_leftovers,
    write_json,
    write_text,
)
from medclip_debias.language.masked_lm import language_model_hash
from medclip_debias.models.checkpoint import load_strictly
from medclip_debias.training.checkpoint import (
    best_path,
    checkpoints,
    drop_checkpoints,
    load_checkpoint,
    load_newest,
)
from medclip_debias.training.settings import TrainSettings
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
CONTINUED = "continued.json"
_FINISHED = "finished.json"
_DATA = "provenance.data_hash"
_CLAIMS = "provenance.claims_hash"


def identity(trainer: Trainer) -> dict[str, Any]:
    """The settings of a run and the hashes of what it starts from."""
    content = trainer.settings.model_dump(mode="json")
    content["loss"] = trainer.loss_settings.model_dump(mode="json")
    provenance: dict[str, Any] = {
        "medclip_debias": __version__,
        "data_hash": trainer.prepared.content_hash,
    }
    model = trainer.settings.model
    if trainer.start is not None:
        provenance["start"] = trainer.start.provenance
    elif isinstance(model, ModelSettings):
        provenance["language_model_hash"] = language_model_hash(model.text.folder)
    if "claims" in trainer.objective.requires:
        provenance["claims_hash"] = claims_hash(trainer.prepared)
    return content | {"provenance": provenance}


def deciding(content: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that decide what it computes, by dotted key."""
    return {key: value for key, value in _flat(dict(content)).items() if key not in _FREE}


def open_folder(
    trainer: Trainer,
    warn: Callable[[str], None],
    *,
    fresh: bool,
    allow_changed_data: bool,
    longer: bool = False,
) -> tuple[Path, dict[str, Any]] | None:
    """Make the run's folder, or take up its newest checkpoint if it is of the same run."""
    out = trainer.settings.out
    folder = out / "checkpoints"
    with explained(f"{out}: cannot be written; give another folder in 'out'", OSError):
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(out)
        remove_leftovers(folder)
        if fresh:
            drop_checkpoints(folder)
        if not checkpoints(folder):
            (out / CONTINUED).unlink(missing_ok=True)
    newest = load_newest(folder, warn)
    if newest:
        old, new = _written_under(*newest), flat_settings(trainer)
        plan = {name: old.get(name) for name in EXTENDED}
        is_longer = longer or plan in plans(out)
        _check_same(old, new, out, longer=is_longer, allow_changed_data=allow_changed_data)
        if is_longer:
            _note_plan(out, plan, new)
    with explained(f"{out}: cannot be written; give another folder in 'out'", OSError):
        write_text(out / "settings.yaml", yaml.safe_dump(identity(trainer), sort_keys=False))
    return newest


def flat_settings(trainer: Trainer) -> dict[str, Any]:
    """`identity` by dotted key, as checkpoints carry it."""
    return _flat(identity(trainer))


def _written_under(path: Path, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    settings = checkpoint.get("settings")
    if not isinstance(settings, dict):
        raise UserError(
            f"{path}: does not say which settings it was written under, so it is no checkpoint of "
            "this run; give another 'out', or --fresh to start over."
        )
    return settings


def _check_same(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    out: Path,
    *,
    longer: bool,
    allow_changed_data: bool,
) -> None:
    """A checkpoint must not continue under other settings, nor unasked on other data."""
    free = {*_FREE, *(EXTENDED if longer else ())}
    differ = {k for k in {*old, *new} if old.get(k) != new.get(k) and k not in free}
    settings = sorted(differ - {_DATA, "prepared"} - ({_CLAIMS} if allow_changed_data else set()))
    remedy = "give another 'out', or --fresh to start over."
    if settings == [_CLAIMS]:
        raise UserError(
            f"{out}: its run began with other claims than {new['prepared']} has now; bring their"
            f" file back, {remedy}"
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
            f"{out}: its run began on data with the hash {old.get(_DATA)}, but {new['prepared']} "
            f"now has {new[_DATA]}; bring the old set back, start over with --fresh, or resume "
            "all the same with --allow-changed-data."
        )


# ------------------------------------------------------------------ a run that is continued


def plans(out: Path) -> list[dict[str, Any]]:
    """What `EXTENDED` was before each time that the run in ``out`` was continued."""
    content = read_json_or_none(out / CONTINUED)
    noted = content.get("plans") if isinstance(content, dict) else None
    return [
        plan
        for plan in (noted if isinstance(noted, list) else ())
        if isinstance(plan, dict)
        and plan.keys() == set(EXTENDED)
        and isinstance(plan["train.steps"], int)
    ]


def continues(trainer: Trainer, start: int) -> list[str]:
    """What becomes of the learning rate, after ``start`` steps, in a run that was to have fewer."""
    train, before = trainer.settings.train, plans(trainer.settings.out)
    if not (start and before):
        return []
    had = before[-1]["train.steps"]
    sentence = f"a run of {had} steps, continued after step {start} to step {train.steps}: "
    if train.schedule == "constant":
        return [sentence + "the learning rate stays, as in a run of so many steps from the start"]
    return [
        f"{sentence}the learning rate was on its way to 0 at step {had}, and follows the cosine of "
        f"{train.steps} steps from here on ({trainer.rate(start):.3g} at the next step)"
    ]


def _note_plan(out: Path, plan: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Keep what the run was planned as before it was continued."""
    earlier = plans(out)
    if plan in earlier or plan == {name: new.get(name) for name in EXTENDED}:
        return
    had, wanted = plan["train.steps"], new["train.steps"]
    if not (isinstance(had, int) and had <= wanted):
        raise UserError(
            f"{out}: its run has {had} steps, and {wanted} are asked for; a run is "
            "continued with more, or give another 'out'."
        )
    write_json(out / CONTINUED, {"plans": [*earlier, plan]})


# ------------------------------------------------------------------------- a finished run


def mark_finished(out: Path, step: int) -> None:
    """Note that ``out/model`` is that of the run's end, after ``step`` steps: its files' hashes."""
    write_json(out / _FINISHED, {"step": step, "model": _hashes(out / "model")})


def unmark_finished(out: Path) -> None:
    """Take the note back, before steps are taken that will end in another model."""
    (out / _FINISHED).unlink(missing_ok=True)


def is_finished(out: Path, step: int) -> bool:
    """Whether `mark_finished` was called after ``step`` steps, and the model is as it was then."""
    noted = read_json_or_none(out / _FINISHED)
    try:
        return noted is not None and bool(noted == {"step": step, "model": _hashes(out / "model")})
    except OSError:
        return False


def _hashes(model: Path) -> dict[str, str]:
    return {path.name: file_hash(path) for path in sorted(model.iterdir())}


def kept_weights(train: TrainSettings, last: int, best: int) -> str:
    """Which weights the model folder holds, in words."""
    weights = "the moving average of the weights" if train.ema else "the weights"
    which = f"after step {last}, the last (train.keep: last)"
    if train.keep == "best":
        which = f"after step {best}, the best by {train.best_metric} (train.keep: best)"
    return f"the model folder holds {weights} {which}"


def save_model(trainer: Trainer, best_step: int) -> None:
    """Write the model folder, with the weights that ``train.keep`` asks for."""
    settings, model = trainer.settings, trainer.result
    provenance = identity(trainer) | {"studies": len(trainer.studies)}
    if trainer.start is not None:  # what is said of it holds for what is trained from it
        inherited = {"licence": trainer.start.licence, "imported": trainer.start.imported}
        provenance |= {key: value for key, value in inherited.items() if value}
    meta = trainer.prepared.meta
    # What the model says of a real radiograph means nothing if it was trained on generated ones.
    provenance["synthetic"] = meta.get("synthetic", "unknown")
    provenance["parameters"] = trainer.counts
    provenance["data"] = {key: meta.get(key) for key in ("kind", "synthetic")}
    if "sets" in meta:
        provenance["data"]["sets"] = meta["sets"]
    if settings.train.ema:
        provenance["weights"] = "exponential moving average"
    provenance["kept"] = settings.train.keep
    if settings.train.keep == "best":
        path = best_path(settings.out / "checkpoints", best_step)
        content = load_checkpoint(path)
        # Its plan and data may be what the run had before it was continued, or allowed others.
        old, new = _written_under(path, content), flat_settings(trainer)
        _check_same(old, new, settings.out, longer=True, allow_changed_data=True)
        load_strictly(model, content["model"], str(path))
        provenance["best_step"] = int(content["step"])
    if earlier_plans := plans(settings.out):
        provenance["continued"] = earlier_plans
    model.prompts, model.provenance = default_prompts(), provenance
    model.eval()
    folder = settings.out / "model"
    sentence = f"{folder}: the model cannot be written; free some space, then run the same command"
    with explained(f"{sentence} again", OSError):
        model.save(folder)


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix: content}
    result: dict[str, Any] = {}
    for key, value in content.items():
        result |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return result
