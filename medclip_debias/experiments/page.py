"""The page of an experiment: what was done and found, the tables, how to repeat it.

It is written in Markdown; the HTML page is that Markdown with the plot in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from medclip_debias.experiments.experiment import Experiment, Summary
from medclip_debias.markdown import markdown_table
from medclip_debias.reporting.tables import Table


def page(experiment: Experiment, found: Summary, results: Mapping[str, Any]) -> str:
    """Write the page; the files that it points to lie beside it."""
    lines = [f"# {experiment.title}", ""]
    if experiment.source:
        lines += [f"Source: {experiment.source}.", ""]
    settings = experiment.shown(results["settings"])
    lines += [
        experiment.about.strip(),
        "",
        *_outdated(experiment, results),
        "## Findings",
        "",
        *(f"- {sentence}" for sentence in found.findings),
        "",
        f"![{experiment.title}]({experiment.plot})",
        "",
        *tables(found.tables),
        "## Repeat it",
        "",
        "```",
        experiment.command(),
        "```",
        f"{results['cells']} cells, {results['seconds']:.0f} s of measuring in all (what another "
        f"{experiment.kind} had measured before is not counted). Settings:",
        "",
        *(f"- {key.replace('_', ' ')}: {_words(value)}" for key, value in settings.items()),
        "",
        "Every cell: [results.json](results.json) (`results.json` of the run); settings "
        f"for {experiment.reader}: [settings.yaml](settings.yaml).",
        "",
    ]
    return "\n".join(lines)


def html_page(text: str, svg: bytes) -> str:
    """A page in Markdown as one HTML page that needs no other file, with the plot ``svg`` in it."""
    from markdown_it import MarkdownIt

    from medclip_debias.reporting.page import render
    from medclip_debias.reporting.plots import inline

    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    title = tokens[1].content
    names = iter(range(1, len(tokens)))
    for place, token in enumerate(tokens):
        if token.type == "th_open":
            token.attrSet("scope", "col")
        elif token.type == "tr_open" and tokens[place + 1].type == "td_open":
            head, _, end = tokens[place + 1 : place + 4]  # the first cell names the row
            head.tag = end.tag = "th"
            head.attrSet("scope", "row")
    plot = inline(svg, f"Plot of {title}; its numbers are in the tables")
    markdown.add_render_rule("image", lambda *_: str(plot))
    markdown.add_render_rule(
        "table_open",
        lambda *_: (
            f'<div class="scroll" tabindex="0" role="region" aria-label="Table {next(names)}">'
            "<table>"
        ),
    )
    markdown.add_render_rule("table_close", lambda *_: "</table></div>")
    body = markdown.renderer.render(tokens[3:], markdown.options, {})
    first, *rest = map(Markup, re.split(r"<h2>(.*?)</h2>\n", body))
    sections = list(zip(rest[::2], rest[1::2], strict=True))
    return render("experiment.html.j2", heading=title, introduction=first, sections=sections)


def _words(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value)) or "none"
    if isinstance(value, Mapping):
        return "; ".join(f"{key.replace('_', ' ')}: {_words(each)}" for key, each in value.items())
    return "none" if value is None else str(value)


def _outdated(experiment: Experiment, results: Mapping[str, Any]) -> list[str]:
    """What to know of cells that an earlier version of the experiment measured."""
    version = type(experiment).version
    if results["version"] >= version:
        return []
    what = experiment.outdated.strip()
    return [
        f"**The cells of this page were measured by version {results['version']} of the "
        f"{experiment.kind}; the command under 'Repeat it' runs version {version}, which measures "
        "them all again.**",
        *([what] if what else []),
        "",
    ]


def tables(given: Sequence[Table]) -> list[str]:
    """The lines of several tables, each under its title."""
    return [
        line
        for one in given
        for line in (f"### {one.title}", "", *markdown_table(one.head, one.rows), "")
    ]
