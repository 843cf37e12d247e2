"""Runs to compare: found, read, grouped by seed, and refused when they do not belong together."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from medclip_debias.config import json_hash
from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import PROTOCOLS
from medclip_debias.evaluation.item_tables import ITEMS, differing_truth, item_file, read_items
from medclip_debias.evaluation.table import Results, read_results
from medclip_debias.files import is_there

# Where a training run's own place and seed stand: what may differ between seeds of one group.
PLACE = ("out", "prepared", "best_step", "medclip_debias", "data", "synthetic")

WITHIN = "differs within the group"
NOT_SAID = "not said"


@dataclass(frozen=True)
class Run:
    """One evaluation: a folder's ``results.json``, and its items by protocol, sorted by item."""

    folder: Path
    results: Results
    tables: Mapping[str, pd.DataFrame] = field(repr=False)

    @property
    def _provenance(self) -> Mapping[str, Any]:
        provenance = (self.results.get("model") or {}).get("provenance")
        return provenance if isinstance(provenance, Mapping) else {}

    @property
    def seed(self) -> int | None:
        """Seed of its training; None when its model does not say."""
        train = self._provenance.get("train")
        seed = train.get("seed") if isinstance(train, Mapping) else None
        return seed if isinstance(seed, int) else None

    @property
    def training(self) -> dict[str, Any]:
        """The training's settings, without seed and place, as far as its model says them."""
        content = {key: value for key, value in self._provenance.items() if key not in PLACE}
        if isinstance(content.get("train"), Mapping):
            content["train"] = {k: v for k, v in content["train"].items() if k != "seed"}
        return content


@dataclass(frozen=True)
class Group:
    """One or several trainings of one configuration."""

    label: str
    runs: tuple[Run, ...]


# ------------------------------------------------------------------------------- reading


def read_run(folder: Path) -> Run:
    """Read a run's results and items."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; give the --out of 'evaluate'.")
    results = read_results(folder / "results.json")
    tables = {}
    for protocol in PROTOCOLS:
        if protocol not in results.protocols:
            continue
        tables[protocol] = read_items(item_file(folder, protocol), "run 'evaluate' again")
    if not tables:
        raise UserError(f"{folder}/results.json: holds no metric that could be compared.")
    return Run(folder, results, tables)


# ------------------------------------------------------------------------------ grouping


def read_groups(words: Sequence[str], named: Sequence[str] = ()) -> list[Group]:
    """Runs in the groups to compare, in the order given.

    A word is a run's folder, a glob, or ``label=folder,folder`` (folders or globs). Unnamed runs
    are grouped by their training's settings without the seed, unless that leaves a single group:
    then each is its own.
    """
    chosen: list[tuple[str | None, Run]] = []
    for word in (*words, *named):
        label, equals, rest = word.partition("=")
        if word in words and (is_there(word) or not equals):
            chosen += [(None, read_run(path)) for path in _folders(word)]
            continue
        if not equals or not label.strip():
            raise UserError(f"'{word}' is not a group; write label=folder,folder.")
        names = [name.strip() for name in rest.split(",") if name.strip()]
        if not names:
            raise UserError(f"'{word}' names no folder; write label=folder,folder.")
        chosen += [(label.strip(), read_run(path)) for name in names for path in _folders(name)]
    places = [run.folder.resolve() for _, run in chosen]
    twice = next((run for _, run in chosen if places.count(run.folder.resolve()) > 1), None)
    if twice is not None:
        raise UserError(f"{twice.folder}: is given twice; give each run once.")
    if len(chosen) < 2:
        raise UserError("There is only one run; give two or more to compare.")
    groups = _grouped(chosen)
    if len(groups) == 1:
        if chosen[0][0] is not None:
            raise UserError(f"There is only one group, '{groups[0].label}'; give another one.")
        runs = [run for _, run in chosen]
        labels = _labels([[run] for run in runs])
        groups = [Group(label, (run,)) for label, run in zip(labels, runs, strict=True)]
    for group in groups:
        seeds = [run.seed for run in group.runs if run.seed is not None]
        if len(set(seeds)) < len(seeds):
            raise UserError(f"The group '{group.label}' has two runs of one seed; name one only.")
    return groups


def _folders(pattern: str) -> list[Path]:
    if not glob.has_magic(pattern) or is_there(pattern):
        return [Path(pattern)]
    folders = sorted(Path(name) for name in glob.glob(pattern) if Path(name).is_dir())  # noqa: PTH207
    if not folders:
        raise UserError(f"{pattern}: no folder matches.")
    return folders


def _grouped(chosen: Iterable[tuple[str | None, Run]]) -> list[Group]:
    members: dict[tuple[str, Any], list[Run]] = {}
    for label, run in chosen:
        key = ("alone", str(run.folder))
        if label is not None:
            key = ("named", label)
        elif isinstance(run.training.get("train"), Mapping):
            alike = ("settings", json_hash(run.training))
            # The same settings and seed twice is a repetition, not another seed.
            if all(run.seed != other.seed for other in members.get(alike, ())):
                key = alike
        members.setdefault(key, []).append(run)
    labels = _labels(list(members.values()))
    return [
        Group(key[1] if key[0] == "named" else label, tuple(runs))
        for (key, runs), label in zip(members.items(), labels, strict=True)
    ]


def _labels(members: Sequence[Sequence[Run]]) -> list[str]:
    """Each group's first folder's name, longer where two would be equal."""
    paths = [runs[0].folder.resolve() for runs in members]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        short = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(short)) == len(short):
            break
    return [
        f"{name} (+{len(runs) - 1} seeds)" if len(runs) > 1 else name
        for name, runs in zip(short, members, strict=True)
    ]


def differing_settings(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Settings of training, architecture and preprocessing in which runs differ.

    The training's seed and the place of its files are no settings. A run whose model does not say
    how it was trained has what its results say of architecture and preprocessing.

    Returns:
        One entry a setting, in the order of their names: ``setting`` (as ``train.lr``) and
        ``values``, what it is in each group by label (`NOT_SAID` where it is missing, `WITHIN`
        where the group's own runs differ).
    """
    settings = {group.label: [dict(_settings(run)) for run in group.runs] for group in groups}
    names = sorted({name for runs in settings.values() for run in runs for name in run})
    entries = []
    for name in names:
        values = {}
        for label, runs in settings.items():
            first, *others = (run.get(name, NOT_SAID) for run in runs)
            values[label] = first if all(value == first for value in others) else WITHIN
        first, *others = values.values()
        if WITHIN in values.values() or any(value != first for value in others):
            entries.append({"setting": name, "values": values})
    return entries


def _settings(run: Run) -> Iterator[tuple[str, Any]]:
    yield from _flat("", run.training)
    model = run.results.get("model") or {}
    for part in ("architecture", "preprocessing"):
        yield from _flat(part, model.get(part) or {})


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), part)
    elif name:
        yield name, value


# ------------------------------------------------------------------------------- fitting


def differences(groups: Sequence[Group]) -> list[str]:
    """What keeps the runs from being compared, as parts of one sentence; empty for nothing."""
    first, *others = [run for group in groups for run in group.runs]
    reasons = []
    for run in others:
        start = f"{run.folder} and {first.folder} were evaluated "
        ours, theirs = run.results, first.results
        if ours["data_hash"] != theirs["data_hash"]:
            one, two = (str((each.get("data") or {}).get("source")) for each in (ours, theirs))
            data = f"two archives ({one} and {two}; data_hash), so nothing is paired"
            reasons.append(f"{start}on {data if one != two else 'different data (data_hash)'}")
            continue
        if ours["split"] != theirs["split"]:
            reasons.append(f"{start}on different splits")
            continue
        a, b = (each.get("options") or {} for each in (ours, theirs))
        # The bootstrap is computed again, and decisions change no metric that is compared.
        names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
        names = [name for name in names if name not in ("bootstrap", "decisions")]
        if names:
            reasons.append(f"{start}with different options ({', '.join(names)})")
        if ours.get("prompts") != theirs.get("prompts"):
            reasons.append(f"{start}with different prompts")
    return reasons


_OTHER_SECRET = (
    "; the set is the same and its secret is not: copy items.key with a set, and evaluate the older"
    " run again"
)


def mismatch(protocol: str, groups: Sequence[Group]) -> str | None:
    """Why the items of a protocol cannot be paired, or None."""
    runs = [run for group in groups for run in group.runs]
    first = runs[0]
    base = first.tables[protocol]
    for run in runs[1:]:
        table = run.tables[protocol]
        file = f"items/{ITEMS[protocol].file}.parquet"
        pair = f"the items of {run.folder} and {first.folder} do not match ({file}"
        ours, theirs = set(table["item"]), set(base["item"])
        if ours != theirs:
            same = run.results.get("data_hash") == first.results.get("data_hash")
            copied = "" if ours & theirs or not same else _OTHER_SECRET
            return (
                f"{pair}: {len(ours & theirs)} in common, {len(ours - theirs)} and "
                f"{len(theirs - ours)} in one only{copied})"
            )
        if differing := differing_truth(protocol, table, base):
            return (
                f"{pair}: the column '{differing[0]}' differs, or is in one only, although it does"
                " not depend on the model)"
            )
    return None
