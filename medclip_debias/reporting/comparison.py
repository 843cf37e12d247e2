"""Write a comparison: JSON, a page, Markdown, LaTeX, and a forest plot as SVG and PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medclip_debias.errors import UserError
from medclip_debias.evaluation.provenance import plain
from medclip_debias.files import atomic_file, read_json, write_json, write_text
from medclip_debias.models.synthetic import WARNING
from medclip_debias.reporting.content import number, render, setting_words
from medclip_debias.reporting.plots import forest, inline
from medclip_debias.reporting.run_files import check_own
from medclip_debias.reporting.tables import (
    class_table,
    comparison_table,
    latex,
    markdown,
    seeds_sentence,
    settings_table,
)


def write_comparison(content: Mapping[str, Any], out: Path) -> list[Path]:
    """Write ``comparison`` with the endings json, md, tex, html, svg and png; return the paths."""
    settings, tables = settings_table(content), [comparison_table(content)]
    if classes := class_table(content):
        tables.append(classes)
    ranks, plots = "", forest(content)
    if content["average_ranks"]:
        listed = (f"{run} {number(float(n), 2)}" for run, n in content["average_ranks"].items())
        ranks = f"Average rank over the metrics (1 is best): {', '.join(listed)}."
    paths = {kind: out / f"comparison.{kind}" for kind in ("json", "md", "tex", *plots, "html")}
    write_json(paths["json"], plain(content))
    every = [*([settings] if settings else []), *tables]
    printed, end = "\n".join(map(markdown, every)), f"\n{ranks}\n" if ranks else ""
    write_text(paths["md"], f"{seeds_sentence(content)}\n\n{printed}{end}")
    write_text(paths["tex"], "\n".join(map(latex, every)))
    for kind, plot in plots.items():
        with atomic_file(paths[kind]) as temporary:
            temporary.write_bytes(plot)
    label = (
        f"Differences to {content['baseline']} with 95% intervals, one panel for each metric; the "
        "numbers are in the table below"
    )
    page = render(
        "comparison.html.j2",
        content=content,
        settings=settings_table(content, setting_words),
        seeds=seeds_sentence(content),
        warning=WARNING if WARNING in content.get("notes", ()) else None,
        tables=tables,
        plot=inline(plots["svg"], label),
        ranks=ranks,
    )
    write_text(paths["html"], page)
    return list(paths.values())


def comparison_part(run: Path) -> dict[str, Any] | None:
    """The comparison that `demo` leaves beside a run: other objectives of the same seed."""
    path = run / "beside" / "comparison.json"
    check_own(path.parent)
    check_own(path)
    if not path.is_file():
        return None
    content = read_json(path, "run 'medclip-debias compare' again")
    try:
        label = f"Differences to {content['baseline']} with 95% intervals; numbers in the table"
        return {
            "baseline": content["baseline"],
            "labels": [group["label"] for group in content["groups"]],
            "plot": inline(forest(content)["svg"], label),
            "table": comparison_table(content),
            "seeds": seeds_sentence(content),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path}: is not a file of 'compare'; run 'medclip-debias compare' again, or remove it."
        ) from error
