"""The Markdown page of a study: what was done, what it shows, the tables, how to repeat it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from medclip_debias.markdown import markdown_table
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
        shlex.join(["medclip-debias", "study", study.name, *changed(study)])
        + f" --out runs/studies/{study.name}",
        "```",
        f"{results['cells']} cells, {results['seconds']:.0f} s of measuring in all (what another "
        "study had measured before is not counted). Settings: "
        + ", ".join(f"`{key}` {value}" for key, value in results["settings"].items())
        + ".",
        "",
        f"Every cell: [{study.name}.json]({study.name}.json) (`results.json` of the run); settings "
        f"for `--config`: [{study.name}.yaml]({study.name}.yaml).",
        "",
    ]
    return "\n".join(lines)


def changed(study: Study) -> list[str]:
    """The words ``key.path=value`` that turn the default settings into the study's.

    Values are JSON, which a command line reads as YAML.
    """
    usual = type(study).settings_class().model_dump(mode="json")
    return _changed(study.settings.model_dump(mode="json"), usual, "")


def _changed(given: Mapping[str, Any], usual: Mapping[str, Any], prefix: str) -> list[str]:
    words = []
    for key, value in given.items():
        known = usual.get(key)
        if value == known:
            continue
        if isinstance(value, dict) and isinstance(known, dict):
            words += _changed(value, known, f"{prefix}{key}.")
        else:
            words.append(f"{prefix}{key}={json.dumps(value)}")
    return words


def tables(given: Sequence[Table]) -> list[str]:
    """The lines of several tables, each under its title."""
    return [
        line
        for one in given
        for line in (f"### {one.title}", "", *markdown_table(one.columns, one.rows), "")
    ]
