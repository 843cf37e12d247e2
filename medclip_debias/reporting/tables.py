"""Tables for papers and pages: Markdown and LaTeX (booktabs) of one run or of several."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medclip_debias.evaluation.catalogue import METRICS, Metric
from medclip_debias.evaluation.table import Results
from medclip_debias.files import write_text
from medclip_debias.markdown import markdown_table, one_line, plain_words
from medclip_debias.reporting.content import at, few_patients, interval, number, patients_of

_TEX = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    # After the end of a row, or a rule, a bracket would be read as a length, a star as an option.
    "[": "{[}",
    "*": "{*}",
    "\N{EN DASH}": "--",
}


@dataclass(frozen=True)
class PrintedTable:
    """Words in rows and columns.

    Attributes:
        head: titles of the columns.
        rows: cells, each row as long as ``head``.
        caption: what the table shows, in sentences.
        words: how many columns, from the left, hold words; the others hold numbers.
        bold: row and column of the cells that stand out.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    words: int = 1
    bold: frozenset[tuple[int, int]] = frozenset()

    def marked(self, words: Callable[[str], str], bold: str) -> list[list[str]]:
        """The rows with every cell as ``words`` writes it, put into ``bold`` where it stands out.

        Args:
            words: escapes what the format would read as its own.
            bold: the format's way, with ``{}`` for the cell.
        """
        return [
            [
                bold.format(words(cell)) if (row, column) in self.bold else words(cell)
                for column, cell in enumerate(cells)
            ]
            for row, cells in enumerate(self.rows)
        ]


def markdown(table: PrintedTable) -> str:
    """The table as Markdown, its caption below."""
    head = [plain_words(title) for title in table.head]
    lines = markdown_table(head, table.marked(plain_words, "**{}**"), table.words)
    return "\n".join([*lines, "", plain_words(table.caption), ""])


def latex(table: PrintedTable) -> str:
    r"""The table as a LaTeX ``table``; needs ``\usepackage{booktabs}``."""
    columns = "l" * table.words + "r" * (len(table.head) - table.words)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{tex(table.caption)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _ampersands([tex(title) for title in table.head]),
        r"\midrule",
        *(_ampersands(row) for row in table.marked(tex, r"\textbf{{{}}}")),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def tex(text: str) -> str:
    """Text with LaTeX's own characters escaped, on one line, without control characters.

    Hyphens stay hyphens: LaTeX would make a dash of two.
    """
    line = re.sub(r"-(?=-)", "-\0", one_line(text))
    return "".join("{}" if letter == "\0" else _TEX.get(letter, letter) for letter in line)


def _ampersands(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


# ------------------------------------------------------------------------------- of runs


def results_table(runs: Mapping[str, Results]) -> PrintedTable:
    """Every metric of one run or of several, with 95% intervals.

    Args:
        runs: name to the content of ``results.json``.
    """
    rows = []
    for metric in METRICS:
        cells = [_cell(metric, results) for results in runs.values()]
        if any(cells):
            rows.append((metric.title, *(cell or number(None) for cell in cells)))
    return PrintedTable(("metric", *runs), tuple(rows), _caption(list(runs.values())))


def _cell(metric: Metric, results: Results) -> str:
    value = results.value(metric.protocol, metric.name)
    if value is None:
        return ""
    bounds = results.interval(metric.protocol, metric.name)
    shown = number(float(value), metric.digits)
    return f"{shown} ({interval(bounds, metric.digits)})" if bounds else shown


def _caption(runs: Sequence[Results]) -> str:
    splits = ", ".join(dict.fromkeys(str(run.get("split")) for run in runs))
    data = ", ".join(dict.fromkeys(str(run.get("data_hash"))[:16] for run in runs))
    models = ", ".join(str(run.get("model_hash")) for run in runs)
    text = f"Split {splits} of data {data}; model {models}."
    if any(run.resamples for run in runs):
        text += " In brackets 95% intervals, expanded percentile bootstrap over patients."
        if few := few_patients(count for run in runs for count in patients_of(run)):
            text += f" {few}"
    for note in dict.fromkeys(note for run in runs for note in run.get("notes") or ()):
        text += f" {note}"
    if any(at(run, "data", "synthetic") for run in runs):
        text += " Synthetic data: generated images and reports, no patient."
    return text


def write_run_tables(folder: Path, name: str, results: Results) -> list[Path]:
    """Write ``results.md`` and ``results.tex`` beside a run's report; return their paths."""
    table = results_table({name: results})
    paths = [folder / "results.md", folder / "results.tex"]
    write_text(paths[0], markdown(table))
    write_text(paths[1], latex(table))
    return paths


# -------------------------------------------------------------------------- of comparisons


def comparison_table(content: Mapping[str, Any]) -> PrintedTable:
    """One row for each metric and run of a comparison."""
    rows = []
    for row in content["rows"]:
        better = "lower is better" if row["lower_is_better"] else ""
        for place, (label, entry) in enumerate(row["groups"].items()):
            title = row["title"] + (f" ({better})" if better else "")
            cells = (title if not place else "", label, *_entry(entry, int(row["digits"])))
            rows.append(cells)
    head = ("metric", "run", "value", "95%", "difference", "95%", "p", "Holm", "verdict")
    return PrintedTable(head, tuple(rows), comparison_caption(content), words=2)


def class_table(content: Mapping[str, Any]) -> PrintedTable | None:
    """AUC per class by DeLong's test; None where it was not computed."""
    rows = []
    for row in content["classes"]:
        if "reason" in row:
            rows.append((row["class"], number(None), row["reason"], *[number(None)] * 5))
        for place, (label, entry) in enumerate(row["groups"].items()):
            value, _, *rest = _entry(entry, 3)
            rows.append((row["class"] if not place else "", label, value, *rest))
    if not rows:
        return None
    caption = (
        "AUC per class. DeLong's test with patients as clusters (Obuchowski 1997); Holm's "
        "correction over the tests of this table."
    )
    head = ("class", "run", "AUC", "difference", "95%", "p", "Holm", "verdict")
    return PrintedTable(head, tuple(rows), caption, words=2)


def _entry(entry: Mapping[str, Any], digits: int) -> tuple[str, ...]:
    value = number(float(entry["value"]), digits)
    if entry.get("sd") is not None:
        value += f" (sd {number(float(entry['sd']), digits)})"
    dash = number(None)
    bounds = interval(entry.get("interval"), digits)
    if "difference" not in entry:
        return value, bounds, "baseline", dash, dash, dash, dash
    return (
        value,
        bounds,
        f"{entry['difference']:+.{digits}f}",
        interval(entry["difference_interval"], digits),
        p_value(entry["p"]),
        p_value(entry["p_holm"]),
        verdict(entry),
    )


def p_value(value: float | None) -> str:
    """A p-value as papers print it.

    >>> p_value(0.00012), p_value(0.0449), p_value(1.0)
    ('< 0.001', '0.045', '1.000')
    """
    if value is None:
        return number(None)
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def verdict(entry: Mapping[str, Any]) -> str:
    """The verdict, with ``better`` or ``worse`` where a difference shows.

    >>> verdict({"verdict": "real", "better": True})
    'real, better'
    >>> verdict({"verdict": "differs on these patients, one seed each", "better": False})
    'differs on these patients, one seed each: worse'
    """
    words = str(entry["verdict"])
    if words.startswith("not "):
        return words
    mark = "," if words == "real" else ":"
    return f"{words}{mark} {'better' if entry['better'] else 'worse'}"


def settings_table(content: Mapping[str, Any]) -> PrintedTable | None:
    """The settings in which the groups differ; None where there is none."""
    if not content.get("settings"):
        return None
    labels = [group["label"] for group in content["groups"]]
    rows = tuple(
        (entry["setting"], *(_setting(entry["values"][label]) for label in labels))
        for entry in content["settings"]
    )
    caption = "Settings that differ: a difference below may come from any of them."
    return PrintedTable(("setting", *labels), rows, caption, words=1 + len(labels))


def seeds_sentence(content: Mapping[str, Any]) -> str:
    """How many seeds each group has, and what follows from it."""
    parts, few = [], False
    for group in content["groups"]:
        count, named = len(group["runs"]), [s for s in group["seeds"] if s is not None]
        few = few or count == 1
        words = "one seed" if count == 1 else f"{count} seeds"
        which = f" ({', '.join(map(str, named))})" if named else ""
        parts.append(f"{group['label']}: {words}{which}")
    sentence = f"Seeds: {'; '.join(parts)}."
    if not content.get("settings"):
        sentence = f"No setting differs that the runs name. {sentence}"
    if few:
        sentence += (
            " With one seed on a side a difference is one of these trainings on these patients;"
            " another seed may turn it round."
        )
    return sentence


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def comparison_caption(content: Mapping[str, Any]) -> str:
    """How the metrics of a comparison were computed, in sentences."""
    options = content["options"]
    several = any(len(group["runs"]) > 1 for group in content["groups"])
    sentences = [
        f"Differences to {content['baseline']}, split {content['split']} of data "
        f"{content['data_hash'][:16]}{_patients(content)}.",
        f"95% intervals and two-sided p-values: t, with the standard error of a paired bootstrap, "
        f"{options['resamples']:,} resamples of the patients.",
    ]
    if several:
        sentences.append(
            "Runs of several seeds: mean (sd); where both sides have them, p and interval are over "
            "other patients and other seeds together (t, Satterthwaite's degrees of freedom)."
        )
    if any(len(group["runs"]) == 1 for group in content["groups"]):
        sentences.append(
            "One seed says nothing of how another training would turn out: what differs with one "
            "seed on a side is not called real."
        )
    sentences.append(
        f"Real, or differs: at most {options['alpha']:g} after Holm's correction over the "
        f"{options['tests']} tests of this table; 'not shown' is no proof of equality."
    )
    if few := few_patients(row["patients"] for row in content["rows"]):
        sentences.append(few)
    codes = sorted({h for group in content["groups"] for h in group["code_hashes"] if h})
    if len(codes) > 1:
        sentences.append(
            f"The runs were evaluated by {len(codes)} versions of the code ({', '.join(codes)}): "
            "part of a difference may come from that; evaluate them by one version to exclude it."
        )
    sentences += content.get("notes", [])
    forced = [f"Forced although {problem}." for problem in content["forced"]]
    return " ".join(forced + sentences)


def _patients(content: Mapping[str, Any]) -> str:
    counts = {row["patients"] for row in content["rows"] if row["patients"]}
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    return f", {low:,} patients" if low == high else f", {low:,} to {high:,} patients"
