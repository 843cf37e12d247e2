"""Tables of claims and lexicons: what other programs and hand-written YAML make of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from bad_inputs.case import case
from bad_inputs.world import World

AREA = "claims of sentences"
SILENT = "0123456789abcdef"


def _sentence(prepared: Path) -> str:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.data.text.claims.table import sentence_hash

    return sentence_hash(PreparedSet.open(prepared).texts[0])


def _table(**cells: str) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        prepared = world.copy("prepared")
        row = {"sentence": _sentence(prepared), "finding": "edema", "polarity": "absent"} | cells
        path = world.here / "claims.csv"
        path.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n", encoding="utf-8")
        return ["claims", str(prepared), "--table", str(path)]

    return build


for what, cells in {
    "a finding that the lexicon lacks": {"finding": "Quackenbush"},
    "a sentence that the set lacks": {"sentence": SILENT},
    "a polarity of 2": {"polarity": "2"},
    "a blank polarity": {"polarity": ""},
    "a side 'both'": {"side": "both"},
    "a certainty between 0 and 1": {"certainty": "0.7"},
}.items():
    case(AREA, f"a table with {what}", "refused")(_table(**cells))


def _lexicon(text: str) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        path = world.here / "lexicon.yaml"
        path.write_text(text, encoding="utf-8")
        return ["claims", str(world.copy("prepared")), "--lexicon", str(path)]

    return build


WORDS = " ".join("(" + "|".join(f"w{n}x{k}" for k in range(9)) + ")" for n in range(9))
for what, text in {
    "that is empty": "",
    "of a misspelt key": "base: english\nname: a\nfindigns: {}\n",
    "on an unknown base": "base: nowhere\nname: a\n",
    "whose finding is a kind of nothing": "base: english\nname: a\nfindings: {b: {is_a: [c]}}\n",
    "of a million phrases in one term": json.dumps(
        {"name": "a", "findings": {"b": {"terms": [WORDS]}}}
    ),
}.items():
    case(AREA, f"a lexicon {what}", "refused")(_lexicon(text))


@case(AREA, "a set without sentences of that name", "refused")
def _nowhere(world: World) -> list[str]:
    return ["claims", str(world.here / "nowhere")]
