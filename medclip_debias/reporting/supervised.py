"""What classifiers that saw the labels reach, beside zero-shot classification, for the report.

``probe/probe.json`` in the run's folder holds a linear classifier on the model's features,
``supervised.json`` one that was trained on the labels from scratch. Either may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medclip_debias.errors import UserError
from medclip_debias.evaluation.table import Results
from medclip_debias.files import read_json
from medclip_debias.reporting.content import Rows, at, interval, number
from medclip_debias.reporting.run_files import check_own

LINEAR = "linear at 1"
HEAD: tuple[str, ...] = ("class", "present / absent", "POS", "NEG", "PNC", "95%")
HEAD += ("linear probe", "95%", "supervised", "95%")
"""Columns of `supervised_rows`: AUC of 'X' alone, of 'no X', of both, of what saw the labels."""
_SIDES = ("auc_positive", "auc_negative", "auc")


def supervised_rows(run: Path, results: Results) -> Rows:
    """Per class the columns of `HEAD`; empty without a probe and a supervised network.

    Files of another set or split than the results are left out: their AUCs are of other images.
    The last row is the mean over the classes that all of the shown columns have.

    Args:
        run: the run's folder.
        results: content of its ``results.json``.

    Raises:
        UserError: a file is damaged, or is a link.
    """
    counts = results.details("zero_shot").get("classes") or {}
    zero = {
        name: {side: results.value("zero_shot", side, name) for side in _SIDES} for name in counts
    }
    probe = _classes(run / "probe" / "probe.json", results)
    linear = {name: values[LINEAR] for name, values in probe.items() if LINEAR in values}
    supervised = _classes(run / "supervised.json", results)
    if not zero or not (linear or supervised):
        return []
    rows = []
    for name, values in zero.items():
        judged = " / ".join(number(counts[name].get(key)) for key in ("positive", "negative"))
        row = [name, judged, *(number(values[side]) for side in _SIDES)]
        row.append(interval(results.interval("zero_shot", "auc", name)))
        for other in (linear.get(name), supervised.get(name)):
            row += [number(at(other or {}, "auc")), interval(at(other or {}, "interval"))]
        rows.append(row)
    shown = [column for column in (zero, linear, supervised) if column]
    common = [name for name in zero if all(name in column for column in shown)]
    if common:

        def mean(column: Mapping[str, Any], key: str = "auc") -> str:
            values = [column[name].get(key) for name in common] if column else [None]
            known = [float(value) for value in values if value is not None]
            return number(sum(known) / len(known) if len(known) == len(common) else None)

        sides = [mean(zero, side) for side in _SIDES]
        others = [cell for column in (linear, supervised) for cell in (mean(column), number(None))]
        rows.append([f"mean of {len(common)}", "", *sides, number(None), *others])
    return rows


def _classes(path: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """The classes of a file that was measured on the same images, else none."""
    check_own(path)
    if not path.is_file():
        return {}
    content = read_json(path, "measure it again")
    if any(content.get(key) != results.get(key) for key in ("data_hash", "split")):
        return {}
    classes = content.get("classes")
    if not isinstance(classes, dict) or not all(isinstance(c, dict) for c in classes.values()):
        raise UserError(f"{path}: holds no classes; measure it again.")
    return classes
