"""Settings of a run as they are resolved: every default written out, the loss validated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from medclip_debias.config import load_settings
from medclip_debias.losses.objective import LossSettings, loss_settings, objectives
from medclip_debias.training.settings import RunSettings

_NOTHING = object()


def resolved(config: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Everything a run would use, as plain values.

    Args:
        config: YAML file of the run; ``extends`` is followed.
        overrides: ``key.path=value`` words.

    Raises:
        UserError: a setting is unknown, missing or wrong.
    """
    run, loss = _read(config, overrides)
    return run.model_dump(mode="json") | {"loss": loss.model_dump(mode="json")}


def changed(config: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The part of `resolved` that differs from the defaults; ``loss.kind`` is always there."""
    run, loss = _read(config, overrides)
    objective = objectives()[loss.kind].settings_class()
    kind = {"kind": loss.kind}
    return _differing(run) | {
        "loss": kind | _difference(loss.model_dump(mode="json"), objective.model_dump(mode="json"))
    }


def _read(config: Path, overrides: Sequence[str]) -> tuple[RunSettings, LossSettings]:
    run = load_settings(RunSettings, config, overrides)
    return run, loss_settings(run.loss, str(config))


def _differing(settings: BaseModel) -> dict[str, Any]:
    """What differs from the defaults of the settings' own classes, required keys included."""
    result: dict[str, Any] = {}
    content = settings.model_dump(mode="json")
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            inner = _differing(value)
            if inner:
                result[name] = inner
        elif field.is_required() or value != field.get_default(call_default_factory=True):
            result[name] = content[name]
    return result


def _difference(content: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in content.items():
        other = default.get(name, _NOTHING)
        if isinstance(value, dict) and isinstance(other, dict):
            same_kind = value.get("kind") == other.get("kind")
            value = _difference(value, other) if same_kind else value
            if value:
                result[name] = value
        elif value != other:
            result[name] = value
    return result
