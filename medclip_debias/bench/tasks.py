"""Which cards a command asks for."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from medclip_debias.bench.card import Card, find_card, packaged_cards
from medclip_debias.config import validate
from medclip_debias.errors import UserError
from medclip_debias.settings_files import load_yaml

ALL = "all"


def cards_of(tasks: str) -> tuple[list[Card], frozenset[str]]:
    """Cards, and the full names of those that were asked for by name.

    Args:
        tasks: ``all``, or words with commas: a card's name, with or without ``@version``; a
            pattern, as ``chestxray14/*``; a YAML file with a card of one's own.

    Raises:
        UserError: a word names no card, or two cards have one name.
    """
    found: dict[str, Card] = {}
    named: set[str] = set()
    for word in dict.fromkeys(part.strip() for part in tasks.split(",") if part.strip()):
        if word == ALL:
            cards = list(packaged_cards().values())
        elif word.endswith((".yaml", ".yml")):
            cards = [validate(Card, load_yaml(Path(word)), word)]
        elif set(word) & set("*?["):
            cards = [card for name, card in packaged_cards().items() if fnmatchcase(name, word)]
            if not cards:
                raise UserError(f"No task card fits '{word}'; 'bench list' shows them.")
        else:
            cards = [find_card(word)]
        for card in cards:
            if found.setdefault(card.full_name, card) != card:
                raise UserError(
                    f"{word}: there is another card '{card.full_name}'; give it a name of its own."
                )
        if len(cards) == 1 and word != ALL and not set(word) & set("*?["):
            named.add(cards[0].full_name)
    if not found:
        raise UserError("--tasks names no card; write 'all', or names as 'bench list' shows them.")
    return list(found.values()), frozenset(named)
