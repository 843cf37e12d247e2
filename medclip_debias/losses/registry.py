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
from medclip_debias.losses.negatives import policies, policy_settings


def import_all() -> None:
    """Import each file of this folder, which registers its objective or policy."""
    for module in pkgutil.iter_modules(losses.__path__):
        importlib.import_module(f"{losses.__name__}.{module.name}")


def objectives() -> dict[str, type[Objective]]:
    """All objectives by kind, in alphabetical order."""
    import_all()
    return dict(sorted(Objective.register.items()))


def loss_settings(content: Mapping[str, Any], where: str, prefix: str = "loss.") -> LossSettings:
    """Validate the ``loss`` part of a run's settings by the objective it names.

    Args:
        content: mapping with a ``kind``.
        where: file it came from, for the message.
        prefix: place of ``content`` in that file.

    Raises:
        UserError: the kind is missing or unknown, or a setting of it is wrong.
    """
    known = objectives()
    kind = content.get("kind")
    if kind not in known:
        hint = did_you_mean(str(kind), known)
        raise UserError(
            f"{where}: setting '{prefix}kind' is {kind!r}{hint}; known kinds: {', '.join(known)}."
        )
    return validate(known[kind].settings_class, _parts(content, where, prefix), where, prefix)


def _parts(content: Mapping[str, Any], where: str, prefix: str) -> Mapping[str, Any]:
    """Validate ``negatives`` and ``core`` first, so that a message can name their own keys."""
    result = dict(content)
    entries, core = content.get("negatives"), content.get("core")
    if isinstance(entries, list | tuple):
        result["negatives"] = tuple(
            policy_settings(entry, where, f"{prefix}negatives.{place}.")
            for place, entry in enumerate(entries)
        )
    if isinstance(core, Mapping):
        result["core"] = loss_settings(core, where, f"{prefix}core.")
    return result


def build_objective(settings: LossSettings) -> Objective:
    """Build the objective of validated ``settings``."""
    return objectives()[settings.kind](settings)


def describe() -> list[dict[str, Any]]:
    """Every objective, then every policy on negatives: formula, paper, default settings.

    ``role`` is ``objective`` (a ``loss.kind``) or ``policy`` (a kind in ``loss.negatives``).
    """
    entries: list[dict[str, Any]] = []
    for role, known in (("objective", objectives()), ("policy", policies())):
        entries.extend(
            {
                "kind": kind,
                "role": role,
                "formula": cls.formula,
                "paper": cls.paper,
                "settings": cls.settings_class().model_dump(mode="json", exclude={"kind"}),
            }
            for kind, cls in known.items()
        )
    return entries
