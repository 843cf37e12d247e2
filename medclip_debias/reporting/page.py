"""Fill the templates of HTML pages; what all of them share is in ``templates/base.html.j2``."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from medclip_debias import __version__
from medclip_debias.reporting.content import at, duration, number, setting_words, words

if TYPE_CHECKING:
    from jinja2 import Environment


class Contents:
    """Titles of a page's sections by their address within it, filled while it is rendered."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def add(self, title: str) -> str:
        """Enter a section; return what its heading is to be called.

        >>> contents = Contents()
        >>> contents.add("Where the model looks"), contents.add("Where the model looks?")
        ('where-the-model-looks', 'where-the-model-looks-2')
        """
        name = address = re.sub(r"\W+", "-", title.lower()).strip("-") or "section"
        number = 1
        while address in self.entries:
            number += 1
            address = f"{name}-{number}"
        self.entries[address] = title
        return address


def render(template: str, **values: Any) -> str:
    """The page of ``templates/template``; values are escaped, and a missing one is an error."""
    values |= {"contents": Contents(), "version": __version__}
    return _templates().get_template(template).render(values)


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("medclip_debias.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (at, duration, number, setting_words, words)
    templates.filters |= {each.__name__: each for each in filters}
    return templates
