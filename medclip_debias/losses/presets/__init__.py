"""Named presets: a loss with its settings, as a row of a paper's table has them.

Each is a YAML file of this folder. ``--loss NAME`` puts it over a run's file, ``extends: [FILE,
loss:NAME]`` inherits it; what the file says itself stands over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from medclip_debias.config import Settings, validate
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.losses.objective import loss_settings, objectives
from medclip_debias.settings_files import Named, load_yaml, merge

TABLE_1 = "Table 1 of sample-specific debiasing (2023)"


class TableRow(Settings):
    """A row of `TABLE_1`: its number, and its name in this project."""

    row: int = Field(ge=1)
    name: str = Field(min_length=1)


class Preset(Settings):
    """One file of this folder: ``loss``, ``model`` settings beside it, and its ``advice``."""

    about: str = Field(min_length=1)
    paper: str = Field(min_length=1)
    table_1: TableRow | None = None
    advice: str = ""
    model: dict[str, Any] = Field(default_factory=dict)
    loss: dict[str, Any]


@cache
def presets() -> dict[str, Preset]:
    """Every preset by name: the rows of `TABLE_1` in their order, then the others by name."""
    known = {
        path.stem: validate(Preset, load_yaml(path), f"preset '{path.stem}'")
        for path in Path(__file__).parent.glob("*.yaml")
    }
    row = {name: each.table_1.row if each.table_1 else len(known) for name, each in known.items()}
    return dict(sorted(known.items(), key=lambda item: (row[item[0]], item[0])))


def preset(name: str, where: str) -> Preset:
    """The preset ``name``; ``where`` is the file or option that names it, for the message."""
    known = presets()
    if name not in known:
        kind = f"; the kind with its defaults is loss.kind={name}" if name in objectives() else ""
        hint = "" if kind else did_you_mean(name, known)
        raise UserError(
            f"{where}: there is no preset '{name}' of the loss{hint}{kind}; "
            "`medclip-debias losses` lists the presets."
        )
    return known[name]


def with_preset(content: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """The settings ``content`` of a run with the preset ``name`` over them.

    Every default of its loss is written out, so that nothing of the loss in ``content`` remains.
    The folder ``out``, if there is one, becomes the folder of the preset's name in it.
    """
    over = preset(name, where)
    loss = loss_settings(over.loss, f"preset '{name}'").model_dump(mode="json")
    result = merge(content, ({"model": over.model} if over.model else {}) | {"loss": loss})
    if isinstance(content.get("out"), str):
        result["out"] = str(Path(content["out"]) / name)
    return result


NAMED: Named = {"loss": with_preset}
"""What ``extends: loss:NAME`` means, for `medclip_debias.settings_files.load_yaml`."""


def describe_presets() -> list[dict[str, Any]]:
    """Every preset as plain values, with its ``name``."""
    return [{"name": name} | each.model_dump(mode="json") for name, each in presets().items()]
