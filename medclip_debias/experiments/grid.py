"""A grid file: settings x methods x seeds, read and resolved into the settings of every run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from medclip_debias.config import Settings, StartSettings, validate
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.evaluation.catalogue import COMPARED
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.experiments.doses import changed, is_dose, with_start
from medclip_debias.losses.objective import loss_settings
from medclip_debias.named_settings import config_file
from medclip_debias.settings_files import apply_overrides, inherited, load_yaml, merge
from medclip_debias.training.resolve import NAMED
from medclip_debias.training.settings import RunSettings

ONLY = "all"
"""Name of the one setting of a grid that names none."""
_NAME = re.compile(r"[^=,*?\[\]]+")


class EvaluateSettings(Settings):
    """What ``evaluate`` is asked for by its keywords, the same in every cell.

    Attributes:
        split: that is judged.
        prompts: packaged name or YAML file; the model's own by default.
        classes: of the prompt set; all by default.
        labels: table of labels instead of the set's own.
        class_images: list of images of one class each.
        phrases: box file instead of the set's own phrases.
        triplets: reports with a finding negated and omitted.
        options: further choices (docs/evaluation.md).
        bootstrap: resamples behind the intervals of each cell's own results.
        batch_size: images encoded at a time.
    """

    split: Literal["test", "validate"] = "test"
    prompts: str | None = None
    classes: tuple[str, ...] | None = None
    labels: Path | None = None
    class_images: Path | None = None
    phrases: Path | None = None
    triplets: Path | None = None
    options: EvaluationOptions = EvaluationOptions()
    bootstrap: int = Field(1000, ge=0)
    batch_size: int = Field(64, ge=1)


class GridSettings(Settings):
    """An experiment: every method, under every setting, with every seed.

    Attributes:
        name: of the experiment, and of its folder.
        title: of its page.
        about: what it asks, for the page.
        base: settings of a run, as for ``train``, without ``out`` and seed.
        settings: name to what is changed in ``base`` for all methods; may be left out.
        methods: name to what is changed in ``base`` for that method.
        seeds: of the training (batches, weights, augmentation), the same for every method.
        baseline: method that the others are compared with.
        controls: method to the methods that it is compared with besides.
        metrics: keys of ``results.json`` to compare; all by default. Fewer metrics, chosen before
            looking, leave more power to each.
        evaluate: how each model is judged.
        seconds_per_step: for the prediction; by default measured.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    title: str = ""
    about: str = ""
    base: dict[str, Any]
    settings: dict[str, dict[str, Any]] = Field(default={ONLY: {}}, min_length=1)
    methods: dict[str, dict[str, Any]] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    baseline: str
    controls: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    metrics: tuple[str, ...] | None = None
    evaluate: EvaluateSettings = EvaluateSettings()
    seconds_per_step: float | None = Field(None, gt=0)


@dataclass(frozen=True)
class Run:
    """One training of a grid."""

    setting: str
    method: str
    seed: int
    content: dict[str, Any]


def read_grid(grid_file: Path | str, words: Sequence[str] = ()) -> GridSettings:
    """Read a grid file.

    ``base``, and each entry of ``settings`` and ``methods``, is a mapping, which may have an
    ``extends`` of its own, or what could stand there: the name of a YAML file, relative to the
    grid file, ``config:NAME``, or ``loss:NAME``, a preset.

    Args:
        grid_file: YAML file, or the name of one (`medclip_debias.named_settings`).
        words: ``key=value`` over it, as ``base.train.steps=500``.
    """
    path = config_file(grid_file)
    content = {"name": path.stem} | load_yaml(path, NAMED)
    if "base" in content:
        content["base"] = _extended(content["base"], path)
    for key in ("settings", "methods"):
        if isinstance(content.get(key), Mapping):
            content[key] = {str(n): _extended(v, path) for n, v in content[key].items()}
    where = f"{grid_file} (with the settings on the command line)" if words else str(grid_file)
    grid = validate(GridSettings, apply_overrides(content, words), where)
    named = [("baseline", grid.baseline)]
    for name, controls in grid.controls.items():
        named += [("controls", name), *((f"controls.{name}", control) for control in controls)]
        if name in controls:
            raise UserError(f"{where}: setting 'controls' makes '{name}' its own control.")
    for key, name in named:
        if name not in grid.methods:
            hint = did_you_mean(name, list(grid.methods))
            raise UserError(
                f"{where}: setting '{key}' names '{name}', which is not a method{hint}."
            )
    for name in (*grid.methods, *grid.settings):
        if not _NAME.fullmatch(name):
            raise UserError(f"{where}: the name '{name}' must be without = , * ? [ ].")
    if len(set(grid.seeds)) < len(grid.seeds) or min(grid.seeds) < 0:
        raise UserError(f"{where}: setting 'seeds' must hold different numbers from 0.")
    known = [metric.key for metric in COMPARED]
    for name in grid.metrics or ():
        if name not in known:
            raise UserError(
                f"{where}: setting 'metrics' names '{name}', which is not a metric"
                f"{did_you_mean(name, known)}; known: {', '.join(known)}."
            )
    return grid


def _extended(value: Any, path: Path) -> Any:
    """A part of the grid with what it names or extends."""
    if value is None:
        return {}
    if isinstance(value, str):
        return inherited(value, path, NAMED)
    if not isinstance(value, Mapping) or "extends" not in value:
        return value
    changes = {key: part for key, part in value.items() if key != "extends"}
    return merge(inherited(value["extends"], path, NAMED), changes)


def runs(grid: GridSettings) -> Iterator[Run]:
    """Every run of the grid: seed by seed, so that whole comparisons come first."""
    for seed in grid.seeds:
        for setting, change in grid.settings.items():
            seen: dict[str, str] = {}
            for method, own in grid.methods.items():
                where = f"method '{method}'"
                where += f" of setting '{setting}'" if setting != ONLY else ""
                content = merge(merge(grid.base, change), own)
                content = merge(content, {"out": "set-by-the-experiment", "train": {"seed": seed}})
                run = Run(setting, method, seed, resolved(content, where))
                twin = seen.setdefault(repr(run.content), method)
                if twin != method:
                    raise UserError(f"{where}: it has the same settings as '{twin}'; remove one.")
                yield run


def resolved(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Every setting of a run as plain values, the objective validated, without ``out``."""
    run = validate(RunSettings, content, where)
    if not isinstance(run.prepared, Path):
        raise UserError(
            f"{where}: setting 'prepared' lists several sets, but an experiment evaluates on the"
            " one that it trains on; name one, or use 'train' and 'evaluate' on each."
        )
    loss = changed(run.loss, policy=lambda policy: with_start(policy, run.train.steps))
    doses: list[Mapping[str, Any]] = []

    def plain(eta: Mapping[str, Any]) -> Mapping[str, Any]:
        doses.append(eta)
        return {"kind": "constant"} if is_dose(eta) else eta

    known = loss_settings(changed(loss, eta=plain), where).model_dump(mode="json")
    asked = iter(doses)

    def back(eta: Mapping[str, Any]) -> Mapping[str, Any]:
        given = next(asked, eta)
        return given if is_dose(given) else eta

    result = run.model_dump(mode="json") | {"loss": changed(known, eta=back)}
    del result["out"]
    if isinstance(run.model, StartSettings):
        del result["preprocessing"]  # it is the start's
    return result
