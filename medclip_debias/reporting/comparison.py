"""Write a comparison: JSON, a page, Markdown, LaTeX, and a forest plot as SVG and PNG."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from medclip_debias.evaluation.provenance import plain
from medclip_debias.files import atomic_file, write_json, write_text
from medclip_debias.models.synthetic import WARNING
from medclip_debias.reporting.content import number
from medclip_debias.reporting.forest import forest
from medclip_debias.reporting.page import render
from medclip_debias.reporting.plots import inline
from medclip_debias.reporting.tables import (
    PrintedTable,
    class_table,
    comparison_table,
    latex,
    markdown,
    seeds_sentence,
    settings_table,
)


def write_comparison(content: Mapping[str, Any], out: Path) -> list[Path]:
    """Write ``comparison`` with the endings json, md, tex, html, svg and png; return the paths."""
    tables = [comparison_table(content)]
    classes = class_table(content)
    if classes is not None:
        tables.append(classes)
    plots = forest(content)
    paths = {kind: out / f"comparison.{kind}" for kind in ("json", "md", "tex", "svg", "png")}
    write_json(paths["json"], plain(content))
    settings = settings_table(content)
    every = [settings, *tables] if settings else tables
    printed = "\n".join(markdown(table) for table in every)
    write_text(paths["md"], f"{seeds_sentence(content)}\n\n{printed}{_ranks(content)}")
    write_text(paths["tex"], "\n".join(latex(table) for table in every))
    for kind, content_of_file in plots.items():
        with atomic_file(paths[kind]) as temporary:
            temporary.write_bytes(content_of_file)
    paths["html"] = out / "comparison.html"
    write_text(paths["html"], _page(content, tables, plots["svg"]))
    return list(paths.values())


def _ranks(content: Mapping[str, Any]) -> str:
    ranks = content["average_ranks"]
    if not ranks:
        return ""
    listed = ", ".join(f"{label} {number(float(r), 2)}" for label, r in ranks.items())
    return f"\nAverage rank over the metrics (1 is best): {listed}.\n"


def _in_words(table: PrintedTable | None) -> PrintedTable | None:
    """A table of settings without the marks of YAML."""
    if table is None:
        return None
    blank = {"null": "none", "[]": "none", "{}": "none", "true": "yes", "false": "no"}
    rows = tuple(
        (
            name.replace(".", ": ").replace("_", " "),
            *(
                blank.get(value, value if "/" in value else value.replace("_", " "))
                for value in values
            ),
        )
        for name, *values in table.rows
    )
    return replace(table, rows=rows)


def _page(content: Mapping[str, Any], tables: list[Any], plot: bytes) -> str:
    label = (
        f"Differences to {content['baseline']} with 95% intervals, one panel for each metric; the "
        "numbers are in the table below"
    )
    runs = [
        (
            group["label"],
            f"{run}, seed {'not named' if seed is None else seed}, model {model}, code "
            f"{code or 'not named'}",
        )
        for group in content["groups"]
        for run, seed, model, code in zip(
            *(group[key] for key in ("runs", "seeds", "model_hashes", "code_hashes")), strict=False
        )
    ]
    return render(
        "comparison.html.j2",
        content=content,
        settings=_in_words(settings_table(content)),
        seeds=seeds_sentence(content),
        warning=WARNING if WARNING in content.get("notes", ()) else None,
        tables=tables,
        plot=inline(plot, label),
        runs=runs,
        ranks=_ranks(content).strip(),
    )
