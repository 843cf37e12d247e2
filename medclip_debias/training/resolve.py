"""Settings of a run as they are resolved: every default written out, the loss validated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medclip_debias.config import validate
from medclip_debias.errors import UserError
from medclip_debias.losses.objective import LossSettings, loss_settings, objectives
from medclip_debias.losses.presets import NAMED as PRESETS
from medclip_debias.losses.presets import with_preset
from medclip_debias.named_settings import config_file, named_file
from medclip_debias.settings_files import Named, apply_overrides, load_yaml, merge
from medclip_debias.training.settings import RunSettings

_NOTHING = object()


def _with_config(content: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    return merge(content, load_yaml(named_file(name, where), NAMED))


NAMED: Named = {**PRESETS, "config": _with_config}
"""What ``extends`` may name in the file of a run or grid: ``loss:NAME`` and ``config:NAME``."""


def load_run(
    config: Path | str, overrides: Sequence[str] = (), loss: str | None = None
) -> RunSettings:
    """Read, override and validate the settings of a run; its ``loss`` is not looked into yet.

    Args:
        config: YAML file of the run or the name of one (`medclip_debias.named_settings`), whose
            ``extends`` is followed; or the folder of a run.
        overrides: ``key.path=value`` words, over the preset.
        loss: name of a preset over the file (`medclip_debias.losses.presets.with_preset`).

    Raises:
        UserError: there is no such file or preset, or a setting is unknown, missing or wrong.
    """
    run = Path(config)
    content = _of_run(run) if run.is_dir() else load_yaml(config_file(config), NAMED)
    sources: list[str] = []
    if loss is not None:
        content = with_preset(content, loss, "--loss")
        sources = [f"--loss {loss}"]
    if overrides:
        sources.append("the settings on the command line")
    where = f"{config} (with {' and '.join(sources)})" if sources else str(config)
    return validate(RunSettings, apply_overrides(content, overrides), where)


def _of_run(folder: Path) -> dict[str, Any]:
    """The settings that the run in ``folder`` was started with, for a run in that folder."""
    path = folder / "settings.yaml"
    if not path.is_file():
        raise UserError(
            f"{folder}: is a folder without settings.yaml, so no run; give the YAML file of a run, "
            "or the folder that 'train' wrote."
        )
    content = load_yaml(path) | {"out": str(folder)}
    content.pop("provenance", None)
    model = content.get("model")
    if isinstance(model, dict) and "start_from" in model:
        content.pop("preprocessing", None)  # it is the start's
    return content


def resolved(
    config: Path | str, overrides: Sequence[str] = (), loss: str | None = None
) -> dict[str, Any]:
    """Everything a run would use, as plain values."""
    run, objective = _read(config, overrides, loss)
    return run.model_dump(mode="json") | {"loss": objective.model_dump(mode="json")}


def changed(
    config: Path | str, overrides: Sequence[str] = (), loss: str | None = None
) -> dict[str, Any]:
    """The part of `resolved` that differs from the defaults; ``loss.kind`` is always there."""
    run, objective = _read(config, overrides, loss)
    usual = objectives()[objective.kind].settings_class().model_dump(mode="json")
    differing = _difference(objective.model_dump(mode="json"), usual)
    content = run.model_dump(mode="json", exclude_defaults=True, exclude={"loss"})
    return content | {"loss": {"kind": objective.kind} | differing}


def _read(
    config: Path | str, overrides: Sequence[str], loss: str | None
) -> tuple[RunSettings, LossSettings]:
    run = load_run(config, overrides, loss)
    return run, loss_settings(run.loss, str(config))


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
