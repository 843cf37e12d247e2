"""Fill the templates of HTML pages."""

from __future__ import annotations

from typing import Any


def render(template: str, **values: Any) -> str:
    """The page of ``templates/template``; values are escaped, and a missing one is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("medclip_debias.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)
