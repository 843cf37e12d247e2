"""In which settings the runs of a comparison differ: what a difference of metrics may come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from medclip_debias.evaluation.runs import PLACE, Group, Run

WITHIN = "differs within the group"
NOT_SAID = "not said"


def differing_settings(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Settings of training, architecture and preprocessing in which runs differ.

    The training's seed and the place of its files are no settings. A run whose model does not say
    how it was trained has what its results say of architecture and preprocessing.

    Returns:
        One entry a setting, in the order of their names: ``setting`` (as ``train.lr``) and
        ``values``, what it is in each group by label (`NOT_SAID` where it is missing, `WITHIN`
        where the group's own runs differ).
    """
    found = {group.label: [dict(_settings(run)) for run in group.runs] for group in groups}
    names = sorted({name for runs in found.values() for run in runs for name in run})
    entries = []
    for name in names:
        values = {}
        for label, runs in found.items():
            own = [run.get(name, NOT_SAID) for run in runs]
            values[label] = own[0] if all(value == own[0] for value in own) else WITHIN
        first, *others = values.values()
        if WITHIN in values.values() or any(value != first for value in others):
            entries.append({"setting": name, "values": values})
    return entries


def _settings(run: Run) -> Iterator[tuple[str, Any]]:
    model = run.results.get("model") or {}
    provenance = model.get("provenance")
    trained = provenance if isinstance(provenance, Mapping) else {}
    own = {name: value for name, value in trained.items() if name not in PLACE}
    train = own.get("train")
    if isinstance(train, Mapping):
        own["train"] = {name: value for name, value in train.items() if name != "seed"}
    yield from _flat("", own)
    for part in ("architecture", "preprocessing"):
        yield from _flat(part, model.get(part) or {})


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), part)
    elif name:
        yield name, value
