"""The Markdown page of an experiment: what was done and found, the tables, how to repeat it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from medclip_debias.experiments.experiment import Experiment, Summary, Table
from medclip_debias.markdown import markdown_table


def page(experiment: Experiment, found: Summary, results: Mapping[str, Any]) -> str:
    """Write the page; the files that it points to lie beside it."""
    settings = experiment.shown(results["settings"])
    lines = [f"# {experiment.title}", ""]
    if experiment.source:
        lines += [f"Source: {experiment.source}.", ""]
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
        f"{experiment.kind} had measured before is not counted). Settings: "
        + ", ".join(f"`{key}` {value}" for key, value in settings.items())
        + ".",
        "",
        "Every cell: [results.json](results.json) (`results.json` of the run); settings "
        f"for {experiment.reader}: [settings.yaml](settings.yaml).",
        "",
    ]
    return "\n".join(lines)


def html_page(
    experiment: Experiment, found: Summary, results: Mapping[str, Any], svg: bytes
) -> str:
    """The same as one HTML page that needs no other file, with the plot ``svg`` in it."""
    from medclip_debias.reporting.page import render
    from medclip_debias.reporting.plots import inline

    settings = experiment.shown(results["settings"])
    return render(
        "experiment.html.j2",
        heading=words(experiment.title),
        source=experiment.source,
        introduction=prose(experiment.about),
        outdated=prose("\n".join(_outdated(experiment, results))),
        findings=[words(sentence) for sentence in found.findings],
        plot=inline(svg, f"Plot of {experiment.title}; its numbers are in the tables"),
        tables=[
            (
                words(one.title),
                list(one.columns),
                [[words(cell) for cell in row] for row in one.rows],
            )
            for one in found.tables
        ],
        command=experiment.command(),
        cells=results["cells"],
        seconds=results["seconds"],
        settings=[[key.replace("_", " "), _shown(value)] for key, value in settings.items()],
    )


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_shown(each) for each in value) or "none"
    if isinstance(value, Mapping):
        return "; ".join(f"{key.replace('_', ' ')}: {_shown(each)}" for key, each in value.items())
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
        for line in (f"### {one.title}", "", *markdown_table(one.columns, one.rows), "")
    ]


# ------------------------------------------------------- the few forms of Markdown, as HTML


def prose(text: str) -> Markup:
    """Paragraphs and lists, with code and bold words; links become their words.

    >>> str(prose("As **told** by `eta`, [here](a.md)."))
    '<p>As <strong>told</strong> by <code>eta</code>, here.</p>'
    """
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in block.splitlines() if line.strip()]
        if not lines:
            continue
        if lines[0].startswith("- "):
            items = re.split(r"\n\s*- ", "\n" + block.strip())[1:]
            listed = "".join(f"<li>{words(item)}</li>" for item in items)
            blocks.append(f'<ul class="sentences">{listed}</ul>')
        else:
            blocks.append(f"<p>{words(' '.join(lines))}</p>")
    return Markup("\n".join(blocks))


def words(text: str) -> Markup:
    """One line of `prose`."""
    plain = str(escape(" ".join(text.split())))
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    plain = re.sub(r"`([^`]+)`", r"<code>\1</code>", plain)
    plain = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", plain)
    return Markup(plain)
