"""Tables for papers and pages: Markdown and LaTeX (booktabs) of one run or of several."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medclip_debias.errors import counted
from medclip_debias.evaluation.catalogue import METRICS, Metric
from medclip_debias.evaluation.table import Results
from medclip_debias.markdown import markdown_table, one_line, plain_words
from medclip_debias.reporting.content import (
    NOTHING,
    at,
    estimate,
    few_patients,
    interval,
    number,
    patients_of,
)

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
_LATEX = r"""\begin{table}
\centering
\caption{<caption>}
\begin{tabular}{<columns>}
\toprule
<head>
\midrule
<rows>\bottomrule
\end{tabular}
\end{table}
"""


@dataclass(frozen=True)
class Table:
    """Cells below heads; the first ``words`` columns hold words, the others numbers."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    words: int = 1
    bold: frozenset[tuple[int, int]] = frozenset()
    total: bool = False

    def marked(self, escape: Callable[[str], str], bold: str) -> list[list[str]]:
        """The rows with every cell escaped, and put into ``bold`` (``{}``) where it stands out."""
        return [
            [
                bold.format(escape(cell)) if (line, column) in self.bold else escape(cell)
                for column, cell in enumerate(cells)
            ]
            for line, cells in enumerate(self.rows)
        ]


def markdown(table: Table) -> str:
    """The table as Markdown, its caption below."""
    head = [plain_words(title) for title in table.head]
    lines = markdown_table(head, table.marked(plain_words, "**{}**"), table.words)
    return "\n".join([*lines, "", plain_words(table.caption), ""])


def latex(table: Table) -> str:
    r"""The table as a LaTeX ``table``; needs ``\usepackage{booktabs}``."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(cells) + r" \\"

    parts = {
        "caption": tex(table.caption or table.title),
        "columns": "l" * table.words + "r" * (len(table.head) - table.words),
        "head": line([tex(title) for title in table.head]),
        "rows": "".join(f"{line(row)}\n" for row in table.marked(tex, r"\textbf{{{}}}")),
    }
    return re.sub(r"<(\w+)>", lambda match: parts[match[1]], _LATEX)


def tex(text: str) -> str:
    """Text with LaTeX's own characters escaped, on one line; two hyphens stay hyphens."""
    line = re.sub(r"-(?=-)", "-\0", one_line(text))
    return "".join("{}" if letter == "\0" else _TEX.get(letter, letter) for letter in line)


# ------------------------------------------------------------------------------- of runs


def results_table(runs: Mapping[str, Results]) -> Table:
    """Every metric of one run or of several by name, with 95% intervals."""

    def cell(metric: Metric, results: Results) -> str:
        place = metric.protocol, metric.name
        return estimate(results.value(*place), results.interval(*place), metric.digits)

    rows = ((m.title, *(cell(m, results) for results in runs.values())) for m in METRICS)
    measured = tuple(row for row in rows if set(row[1:]) != {NOTHING})
    return Table("Results", ("metric", *runs), measured, _caption(list(runs.values())))


def _caption(runs: Sequence[Results]) -> str:
    splits = ", ".join(dict.fromkeys(str(run.get("split")) for run in runs))
    data = ", ".join(dict.fromkeys(str(run.get("data_hash"))[:16] for run in runs))
    models = ", ".join(str(run.get("model_hash")) for run in runs)
    sentences = [f"Split {splits} of data {data}; model {models}."]
    if any(run.resamples for run in runs):
        kind = "In brackets 95% intervals, expanded percentile bootstrap over patients."
        sentences += [kind, few_patients(count for run in runs for count in patients_of(run))]
    sentences += dict.fromkeys(note for run in runs for note in run.get("notes") or ())
    if any(at(run, "data", "synthetic") for run in runs):
        sentences.append("Synthetic data: generated images and reports, no patient.")
    return " ".join(filter(None, sentences))


# -------------------------------------------------------------------------- of comparisons


def comparison_table(content: Mapping[str, Any]) -> Table:
    """One row for each metric and run of a comparison."""
    rows = []
    for row in content["rows"]:
        title = row["title"] + " (lower is better)" * row["lower_is_better"]
        for place, (label, entry) in enumerate(row["groups"].items()):
            rows.append((title * (not place), label, *_entry(entry, int(row["digits"]))))
    head = ("metric", "run", "value", "95%", "difference", "95%", "p", "Holm", "verdict")
    return Table("Metrics", head, tuple(rows), comparison_caption(content), words=2)


def class_table(content: Mapping[str, Any]) -> Table | None:
    """AUC per class by DeLong's test; None where it was not computed."""
    rows: list[tuple[str, ...]] = []
    for row in content["classes"]:
        if "reason" in row:
            rows.append((row["class"], NOTHING, row["reason"], *[NOTHING] * 5))
        for place, (label, entry) in enumerate(row["groups"].items()):
            value, _, *rest = _entry(entry, 3)
            rows.append((row["class"] * (not place), label, value, *rest))
    if not rows:
        return None
    caption = (
        "AUC per class. DeLong's test with patients as clusters (Obuchowski 1997); Holm's "
        "correction over the tests of this table."
    )
    head = ("class", "run", "AUC", "difference", "95%", "p", "Holm", "verdict")
    return Table("Classes", head, tuple(rows), caption, words=2)


def _entry(entry: Mapping[str, Any], digits: int) -> tuple[str, ...]:
    value = number(float(entry["value"]), digits)
    if entry.get("sd") is not None:
        value += f" (sd {number(float(entry['sd']), digits)})"
    bounds = interval(entry.get("interval"), digits)
    if "difference" not in entry:
        return value, bounds, "baseline", *[NOTHING] * 4
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
    return "< 0.001" if value is not None and value < 0.001 else number(value)


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
    return f"{words}{',' if words == 'real' else ':'} {'better' if entry['better'] else 'worse'}"


def settings_table(
    content: Mapping[str, Any], words: Callable[[Any], str] | None = None
) -> Table | None:
    """The settings in which the groups differ, by default as YAML; None where there is none."""
    if not content.get("settings"):
        return None
    labels = [group["label"] for group in content["groups"]]
    words = words or (lambda value: value if isinstance(value, str) else json.dumps(value))
    rows = tuple(
        (entry["setting"], *(words(entry["values"][label]) for label in labels))
        for entry in content["settings"]
    )
    caption = "Settings that differ: a difference below may come from any of them."
    return Table(
        counted(len(rows), "setting"), ("setting", *labels), rows, caption, 1 + len(labels)
    )


def seeds_sentence(content: Mapping[str, Any]) -> str:
    """How many seeds each group has, and what follows from it."""
    parts = []
    for group in content["groups"]:
        count, seeds = len(group["runs"]), [str(s) for s in group["seeds"] if s is not None]
        which = f" ({', '.join(seeds)})" if seeds else ""
        parts.append(f"{group['label']}: {'one seed' if count == 1 else f'{count} seeds'}{which}")
    sentence = f"Seeds: {'; '.join(parts)}."
    if not content.get("settings"):
        sentence = f"None of the settings that the runs name differs. {sentence}"
    if any(len(group["runs"]) == 1 for group in content["groups"]):
        sentence += (
            " With one seed on a side a difference holds for these trainings on these patients;"
            " another seed may reverse it."
        )
    return sentence


def comparison_caption(content: Mapping[str, Any]) -> str:
    """How the metrics of a comparison were computed, in sentences."""
    options, groups = content["options"], content["groups"]
    counts = sorted({row["patients"] for row in content["rows"] if row["patients"]})
    ends = " to ".join(f"{n:,}" for n in dict.fromkeys((counts[0], counts[-1]))) if counts else ""
    codes = sorted({code for group in groups for code in group["code_hashes"] if code})
    runs = {len(group["runs"]) for group in groups}
    sentences = [
        *(f"Forced although {problem}." for problem in content["forced"]),
        f"Differences to {content['baseline']}, split {content['split']} of data "
        f"{content['data_hash'][:16]}{f', {ends} patients' if ends else ''}.",
        "95% intervals and two-sided p-values: t, with the standard error of a paired bootstrap, "
        f"{options['resamples']:,} resamples of the patients.",
    ]
    if max(runs) > 1:
        sentences.append(
            "Runs of several seeds: mean (sd); where both sides have them, p and interval are over "
            "other patients and other seeds together (t, Satterthwaite's degrees of freedom)."
        )
    if 1 in runs:
        sentences.append(
            "One seed says nothing about how another training would turn out: what differs with one"
            " seed on a side is not called real."
        )
    sentences += [
        f"Real, or differs: at most {options['alpha']:g} after Holm's correction over the "
        f"{options['tests']} tests of this table; 'not shown' is not proof of equality.",
        few_patients(row["patients"] for row in content["rows"]),
    ]
    if len(codes) > 1:
        sentences.append(
            f"The runs were evaluated by {len(codes)} versions of the code ({', '.join(codes)}): "
            "part of a difference may come from that; evaluate them by one version to exclude it."
        )
    return " ".join(filter(None, [*sentences, *content.get("notes", [])]))
