"""The Markdown page of a study: what was done, what it shows, the tables, how to repeat it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medclip_debias.studies.study import Study, Summary, Table


def page(study: Study, found: Summary, results: Mapping[str, Any]) -> str:
    """Write the page; its figure lies beside it as ``figure.svg``."""
    lines = [
        f"# {study.title}",
        "",
        f"Source: {study.source}.",
        "",
        study.about.strip(),
        "",
        "## What the figures say",
        "",
        *(f"- {sentence}" for sentence in found.findings),
        "",
        f"![{study.title}]({study.name}.svg)",
        "",
    ]
    lines += [
        *tables(found.tables),
        "## Repeat it",
        "",
        "```",
        f"medclip-debias study {study.name} --out runs/studies/{study.name}",
        "```",
        f"{results['cells']} cells, {results['seconds']:.0f} s of measuring in all. Settings: "
        + ", ".join(f"`{key}` {value}" for key, value in results["settings"].items())
        + ".",
        "",
    ]
    return "\n".join(lines)


def tables(given: Sequence[Table]) -> list[str]:
    """The lines of several tables, each under its title."""
    return [line for one in given for line in (f"### {one.title}", "", *markdown(one), "")]


def markdown(table: Table) -> list[str]:
    """The lines of a Markdown table."""
    head = "| " + " | ".join(table.columns) + " |"
    rule = "|" + " --- |" * len(table.columns)
    return [head, rule, *("| " + " | ".join(row) + " |" for row in table.rows)]
