"""Find every objective of this folder, validate ``loss:`` settings, build objectives."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from medclip_debias import losses
from medclip_debias.config import validate
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.losses.base import LossSettings, Objective


def objectives() -> dict[str, type[Objective]]:
    """All objectives by kind, in alphabetical order; imports each file of this folder."""
    for module in pkgutil.iter_modules(losses.__path__):
        importlib.import_module(f"{losses.__name__}.{module.name}")
    return dict(sorted(Objective.register.items()))


def loss_settings(content: Mapping[str, Any], where: str) -> LossSettings:
    """Validate the ``loss`` part of a run's settings by the objective it names.

    Raises:
        UserError: the kind is missing or unknown, or a setting of it is wrong.
    """
    known = objectives()
    kind = content.get("kind")
    if kind not in known:
        hint = did_you_mean(str(kind), known)
        raise UserError(
            f"{where}: setting 'loss.kind' is {kind!r}{hint}; known kinds: {', '.join(known)}."
        )
    return validate(known[kind].settings_class, content, where, "loss.")


def build_objective(settings: LossSettings) -> Objective:
    """Build the objective of validated ``settings``."""
    return objectives()[settings.kind](settings)


def describe() -> list[dict[str, Any]]:
    """Every objective with its formula, paper and default settings."""
    return [
        {
            "kind": kind,
            "formula": cls.formula,
            "paper": cls.paper,
            "settings": cls.settings_class().model_dump(mode="json", exclude={"kind"}),
        }
        for kind, cls in objectives().items()
    ]
