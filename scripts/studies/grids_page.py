"""The measured part of a study's page that rests on several grids, with one family for Holm.

Run as ``python scripts/studies/grids_page.py docs/studies/NAME.md [FOLDER ...]``. Each folder of a
grid that is whole is read into ``NAME.json``; then the tables between the page's two markers and
``NAME.svg`` are written anew from that file, so that a page can be made again without its runs.
Holm's correction stands twice: over the differences of each grid, as the grid's own page has it,
and over all differences of the study.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import COMPARED, Metric
from medclip_debias.evaluation.statistics import ALPHA, holm, seed_summary
from medclip_debias.experiments.differences import with_interval
from medclip_debias.experiments.grid import ONLY
from medclip_debias.files import read_json, write_json, write_text

START, END = "<!-- measured -->", "<!-- end of measured -->"
METRICS: dict[str, Metric] = {metric.key: metric for metric in COMPARED}
MAIN = "zero_shot.mean_auc"

Grid = Mapping[str, Any]


def grid_of(folder: Path) -> dict[str, Any]:
    """What the page needs of a measured grid.

    Raises:
        UserError: the folder holds no results of a grid.
    """
    results = read_json(folder / "results.json", "run 'medclip-debias experiment' to write it")
    figures, settings = results.get("figures"), results.get("settings")
    if not (isinstance(figures, dict) and isinstance(settings, dict) and "contrasts" in figures):
        raise UserError(f"{folder}/results.json: holds no grid of 'medclip-debias experiment'.")
    kept = ("title", "about", "baseline", "seeds", "metrics")
    return {name: settings[name] for name in kept} | {
        "cells": results["cells"],
        "hours": round(results["seconds"] / 3600, 2),
        "means": figures["means"],
        "contrasts": figures["contrasts"],
    }


def corrected(grids: Mapping[str, Grid]) -> int:
    """Put Holm's p over the whole page into every tested contrast; returns how many there are."""
    tested = [c for grid in grids.values() for c in grid["contrasts"] if c["p"] is not None]
    for one, p in zip(tested, holm([one["p"] for one in tested]), strict=True):
        one["p_page"] = p
    return len(tested)


def section(name: str, grid: Grid) -> list[str]:
    """Heading, means and differences of one grid."""
    seeds, settings = len(grid["seeds"]), list(grid["means"])
    metrics = {key: METRICS[key] for key in grid["metrics"]}
    cells = f"`experiments/{name}`, {grid['cells']} cells, {grid['hours']} h of one core"
    lines = [f"### {grid['title']}", "", f"{cells}.", ""]
    for setting in settings:
        head = "" if setting == ONLY else f"{setting}: "
        titles = " | ".join(metric.title for metric in metrics.values())
        lines += [f"| {head}mean over {seeds} seed{'s' * (seeds > 1)} | {titles} |"]
        lines += ["| --- " * (len(metrics) + 1) + "|"]
        for method, own in grid["means"][setting].items():
            values = [_mean(own[key], metric) for key, metric in metrics.items()]
            lines.append(f"| {method} | {' | '.join(values)} |")
        lines += ["", f"| {head}difference | {titles} |", "| --- " * (len(metrics) + 1) + "|"]
        for method, against in _pairs(grid, setting):
            values = [
                _difference(_contrast(grid, setting, method, against, key), metric)
                for key, metric in metrics.items()
            ]
            lines.append(f"| {method} minus {against} | {' | '.join(values)} |")
        lines.append("")
    if len(settings) > 1:
        lines += _over_settings(grid, metrics)
    return lines


def _over_settings(grid: Grid, metrics: Mapping[str, Metric]) -> list[str]:
    """Each difference over the settings, with a t interval over them."""
    settings = list(grid["means"])
    lines = [f"| over {len(settings)} settings | {' | '.join(m.title for m in metrics.values())} |"]
    lines += ["| --- " * (len(metrics) + 1) + "|"]
    for method, against in _pairs(grid, settings[0]):
        cells = []
        for key, metric in metrics.items():
            each = [_contrast(grid, s, method, against, key)["difference"] for s in settings]
            found = seed_summary(each)
            assert found.interval is not None
            cells.append(with_interval(found.mean, found.interval, metric.digits))
        lines.append(f"| {method} minus {against} | {' | '.join(cells)} |")
    return [*lines, ""]


def _mean(own: Mapping[str, Any], metric: Metric) -> str:
    value = f"{own['mean']:.{metric.digits}f}"
    if own["interval"] is None:
        return value
    low, high = (f"{bound:.{metric.digits}f}" for bound in own["interval"])
    return f"{value} [{low}, {high}]"


def _difference(one: Mapping[str, Any], metric: Metric) -> str:
    if one["interval"] is None:
        return f"{one['difference']:+.{metric.digits}f}"
    passed = sum(_at_most_alpha(one.get(key)) for key in ("p_holm", "p_page"))
    stars = f" {'*' * passed}" if passed else ""
    return with_interval(one["difference"], tuple(one["interval"]), metric.digits) + stars


def _at_most_alpha(p: float | None) -> bool:
    return p is not None and p <= ALPHA


def _pairs(grid: Grid, setting: str) -> list[tuple[str, str]]:
    named = [(c["method"], c["against"]) for c in grid["contrasts"] if c["setting"] == setting]
    return list(dict.fromkeys(named))


def _contrast(grid: Grid, setting: str, method: str, against: str, metric: str) -> Any:
    wanted = (setting, method, against, metric)
    return next(
        c
        for c in grid["contrasts"]
        if (c["setting"], c["method"], c["against"], c["metric"]) == wanted
    )


def written(page: str, grids: Mapping[str, Grid], tests: int) -> str:
    """The page with its measured part renewed.

    Raises:
        UserError: the page lacks its two markers.
    """
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise UserError(f"the page has no lines '{START}' and '{END}' to write between.")
    family = (
        f"Means with 95% over seeds; differences in pairs of seeds on the same patients, with 95% "
        f"over patients and, from two seeds on, seeds. One star marks p of at most {ALPHA:.2f} "
        f"after Holm's correction over the differences of the grid, two after that over all "
        f"{tests} differences of this page."
    )
    lines = [family, ""]
    for name, grid in grids.items():
        lines += section(name, grid)
    return before + START + "\n" + "\n".join(lines) + END + after


def line_of(title: str, setting: str) -> str:
    """What a line of the plot is called: where it was measured, and what tells it from others.

    >>> line_of("Open-i: false negatives as positives, once more", "all")
    'Open-i, once more'
    >>> line_of("Open-i: false negatives as positives, other splits", "split 11")
    'Open-i, split 11'
    """
    place, _, about = title.partition(": ")
    more = about.split(", ")[1:] if setting == ONLY else [setting]
    return ", ".join([place, *more])


def plot(grids: Mapping[str, Grid], methods: Sequence[str], path: Path) -> None:
    """Difference in AUC to the baseline: a panel for each method, a line for each grid.

    A line keeps its place in the panel of a method that its grid lacks.

    Raises:
        UserError: two lines would have one name, and one of them would be lost.
    """
    from matplotlib import rc_context

    from medclip_debias.files import atomic_file
    from studies.plots import intervals, panels

    found: dict[str, dict[str, Any]] = {method: {} for method in methods}
    for grid in grids.values():
        for one in grid["contrasts"]:
            wanted = one["metric"] == MAIN and one["against"] == grid["baseline"]
            if wanted and one["method"] in found and one["interval"] is not None:
                p = 1.0 if one.get("p_holm") is None else one["p_holm"]
                line = line_of(grid["title"], one["setting"])
                if line in found[one["method"]]:
                    raise UserError(
                        f"two grids have a line '{line}' in the plot; name one anew, or leave one "
                        "out by --no-line."
                    )
                found[one["method"]][line] = (
                    one["difference"],
                    tuple(one["interval"]),
                    p,
                )
    found = {method: values for method, values in found.items() if values}
    baseline = next(iter(grids.values()))["baseline"]
    figure, axes = panels(len(found), [f"{method} minus {baseline}" for method in found])
    measured = {line for values in found.values() for line in values}
    every = dict.fromkeys(
        line_of(one["title"], setting) for one in grids.values() for setting in one["means"]
    )
    lines = [line for line in every if line in measured]
    ends = [
        end for values in found.values() for _, interval, _ in values.values() for end in interval
    ]
    pad = 0.06 * (max(*ends, 0) - min(*ends, 0))
    for number, (axis, values) in enumerate(zip(axes, found.values(), strict=False)):
        intervals(axis, values, lines, names=number == 0)
        axis.set_xlabel("zero-shot AUC")
        axis.set_xlim(min(*ends, 0) - pad, max(*ends, 0) + pad)  # one scale for all panels
        axis.set_ylim(-0.6, len(lines) - 0.4)
    figure.set_figheight(1.5 + 0.4 * len(lines))
    # Without a salt of its own each drawing of the same would have other ids.
    with atomic_file(path) as temporary, rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(temporary, format="svg", metadata={"Date": None})


def main() -> None:
    """Read the command line; take grids in, write the page and its plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="the study's page, with its markers")
    parser.add_argument("folders", type=Path, nargs="*", help="folders of grids to take in")
    parser.add_argument("--plot", nargs="*", default=[], help="methods of the plot")
    parser.add_argument(
        "--no-line", nargs="*", default=[], metavar="GRID", help="grids without a line in the plot"
    )
    options = parser.parse_args()
    store = options.page.with_suffix(".json")
    try:
        grids = read_json(store, "") if store.is_file() else {}
        grids |= {folder.name: grid_of(folder) for folder in options.folders}
        tests = corrected(grids)
        write_json(store, grids)
        write_text(options.page, written(options.page.read_text(), grids, tests))
        if options.plot:
            if unknown := set(options.no_line) - set(grids):
                raise UserError(f"--no-line: {', '.join(sorted(unknown))}: no grid of this page.")
            drawn = {name: grid for name, grid in grids.items() if name not in options.no_line}
            plot(drawn, options.plot, options.page.with_suffix(".svg"))
    except UserError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
