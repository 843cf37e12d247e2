"""Words of the phantom's reports, read from ``words.yaml``; every list is in Zipf order."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from medclip_debias.yaml_text import parse_yaml


@dataclass(frozen=True, slots=True)
class Noun:
    """A way to name a finding.

    ``article`` is ``a``, ``an`` or empty (mass nouns and plurals); ``label`` the CheXpert column
    it ticks; ``category`` the MS-CXR category, where it differs from that of the type.
    """

    text: str
    article: str = ""
    plural: bool = False
    label: str | None = None
    category: str | None = None


def _noun(label: str | None, text: str, article: str, category: str | None = None) -> Noun:
    plural = article == "plural"
    return Noun(text, "" if plural else article, plural, category or label, category)


WORDS: dict[str, Any] = parse_yaml((files(__package__) / "words.yaml").read_text(encoding="utf-8"))
"""The lists of ``words.yaml`` by their names there."""
NOUNS: dict[str, list[Noun]] = {
    finding: [_noun(entry["label"], *name) for name in entry["names"]]
    for finding, entry in WORDS["nouns"].items()
}
"""Nouns of each type of finding."""
