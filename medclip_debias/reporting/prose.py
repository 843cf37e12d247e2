"""The few forms of Markdown that pages of experiments use, as HTML."""

from __future__ import annotations

import re

from markupsafe import Markup, escape


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
