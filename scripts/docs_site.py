"""What the documentation site adds to MkDocs: pages from outside docs/, and notebooks as pages.

MkDocs calls the functions named ``on_...`` (mkdocs.yml, ``hooks``). CONTRIBUTING.md and
CHANGELOG.md become pages with their links turned; each notebook of docs/notebooks becomes a page
with its code. Written from the code are sources, metrics, peers' images, the sample of the
benchmark (`generated`), all tables of a study from its cells, and the packaged files of a pattern
in place of ``<!-- yaml FILES -->``. A page that nobody names is listed under "More". Anchors are
those that a repository's own view of Markdown gives a heading, so that one link serves both.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

REPO = Path(__file__).parents[1]
DOCS = REPO / "docs"
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_FILES = re.compile(r"<!-- yaml (\S+) -->")
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_LOADS = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//|"
    r"<link[^>]*rel=\"?(?:stylesheet|preconnect|icon)\"?[^>]*href=\"?(?:https?:)?//|"
    r'class="mermaid"'  # the theme would fetch its script
)


def anchor(heading: str, separator: str = "-") -> str:
    """The anchor of a heading, as ``#adding-one``."""
    words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    kept = re.sub(r"[^\w\- ]", "", words.strip().lower())
    return kept.replace(" ", separator)


@cache
def generated() -> dict[str, str]:
    """The files of the site that are written from the code, by their path in docs/."""
    from medclip_debias.bench.table import FORMATS, read_board
    from medclip_debias.data.sources.registry import formats

    sample = FORMATS["md"](read_board(DOCS / "benchmark", baseline="openi-debiased"))
    return {
        "benchmark_sample.md": f"# Sample of the benchmark's results\n\n{sample}",
        "metrics.md": metrics(),
        "peer_images.md": peer_images(),
        "sources.md": "# What each archive needs\n\n"
        "| `--kind` | path | needs |\n| --- | --- | --- |\n"
        + "".join(f"| `{one.kind}` | {one.give} | {one.needs} |\n" for one in formats().values()),
    }


def files_of(found: re.Match[str]) -> str:
    """The packaged files that a page shows, each under its name."""
    return "\n".join(
        f"## {path.stem}\n\n```yaml\n{path.read_text(encoding='utf-8').strip()}\n```\n"
        for path in sorted(REPO.glob(found[1]))
    )


def metrics() -> str:
    """Every metric of the catalogue."""
    from medclip_debias.evaluation.catalogue import METRICS, PROTOCOL_TITLES, VALIDATION

    lines = [
        "# Metrics",
        "",
        "Every metric of tables, plots and comparisons, generated from "
        "`medclip_debias/evaluation/catalogue.yaml`. How each is computed:",
        "[evaluation](evaluation.md). Chance is what a model without any skill gets; 'measured': "
        "it depends on the data, and the results have it in the group `chance`.",
    ]
    for protocol in PROTOCOL_TITLES:
        lines += ["", f"## {PROTOCOL_TITLES[protocol]}", ""]
        lines += ["| metric | key | unit | better | chance | definition |", "| --- " * 6 + "|"]
        for m in (metric for metric in (*METRICS, *VALIDATION) if metric.protocol == protocol):
            key = m.name if protocol == "validation" else m.key
            better = "lower" if m.lower_is_better else "higher"
            chance = f"{m.chance:.4g}" if isinstance(m.chance, float) else m.chance or ""
            cells = (m.title, f"`{key}`", m.unit, better, chance, m.definition)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def peer_images() -> str:
    """How each kind of peer prepares an image, from its table."""
    from medclip_debias.models.peers import families

    def block(settings: Any) -> str:
        return f"```yaml\n{yaml.safe_dump(settings, default_flow_style=None, sort_keys=False)}```\n"

    parts = ["# How peers prepare an image\n"]
    for path in sorted((Path(families.__file__).with_name("families")).glob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = " ".join(
            line.removeprefix("#").strip()
            for line in itertools.takewhile(lambda line: line.startswith("#"), lines)
        )
        family = families.family(path.stem)
        parts += [f"## {path.stem}\n\n{comment}\n", block(family.preprocessing)]
        if family.preprocessing_of_resnet:
            parts += ["With a ResNet:\n", block(family.preprocessing_of_resnet)]
    return "\n".join(parts)


def notebook_page(path: Path) -> str:
    """A notebook as Markdown: its words, and its code in fences; outputs are left aside."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"]).strip()
        code = cell["cell_type"] == "code"
        parts.append(f"```python\n{source}\n```" if code else source)
    told = f"*The notebook itself: [{path.name}]({path.name}).*"
    return "\n\n".join([parts[0], told, *parts[1:]]) + "\n"


def with_every_table(text: str, page: Path) -> str:
    """A study's page with all of its tables; in the repository it shows those that matter most."""
    import pandas as pd

    from studies import grids
    from studies.command import MARKED, page_lines, study_of
    from studies.study import STUDIES

    marked, table = MARKED.search(text), page.with_suffix(".parquet")
    if marked is None or not marked[1]:
        return text
    if page.stem in STUDIES.all():
        study, cells = study_of(table)
        lines = page_lines(study, cells["rows"])
    else:
        lines = grids.page_lines(page.stem, pd.read_parquet(table))
    return "\n".join([text[: marked.start()], *lines, text[marked.end() :]])


def turned(text: str, page: str) -> str:
    """A page's text with the links that lead elsewhere on the site than in the repository."""

    def turn(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        path, mark, rest = target.partition("#")
        if page in OUTSIDE and path.startswith("docs/"):
            path = path.removeprefix("docs/")
        elif page in OUTSIDE and path in OUTSIDE:
            path = OUTSIDE[path]
        elif path.removeprefix("../") in OUTSIDE and path.startswith("../"):
            path = OUTSIDE[path.removeprefix("../")]
        elif path.endswith(".ipynb") and "/" in path:
            path = path.removesuffix(".ipynb") + ".md"
        return before + path + mark + rest + after

    return _LINK.sub(turn, text)


def named_pages(entry: Any) -> Iterator[str]:
    """The pages of a navigation, as mkdocs.yml has it."""
    if isinstance(entry, str):
        yield entry
    else:
        for below in entry.values() if isinstance(entry, dict) else entry:
            yield from named_pages(below)


def on_config(config: Any) -> Any:
    """Give headings the anchors of `anchor`."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside, of notebooks and of the code; list those that nobody named."""
    import sys

    from mkdocs.structure.files import File

    sys.path.insert(0, str(REPO / "scripts"))
    for page, content in generated().items():
        files.append(File.generated(config, page, content=content))
    for name, page in OUTSIDE.items():
        text = turned((REPO / name).read_text(encoding="utf-8"), name)
        files.append(File.generated(config, page, content=text))
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        page = f"notebooks/{path.stem}.md"
        files.append(File.generated(config, page, content=notebook_page(path)))
    named = set(named_pages(config.nav))
    more = sorted(f.src_uri for f in files.documentation_pages() if f.src_uri not in named)
    if more:
        config.nav.append({"More": more})
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn the links of a page of docs/; write all tables of a study, and packaged files."""
    if page.file.src_uri.startswith("studies/"):
        markdown = with_every_table(markdown, DOCS / page.file.src_uri)
    return turned(_FILES.sub(files_of, markdown), page.file.src_uri)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would load something from elsewhere."""
    from mkdocs.exceptions import PluginError

    if found := _LOADS.search(output):
        raise PluginError(f"{page.file.src_uri} loads from elsewhere: {found.group()}")
    return output
