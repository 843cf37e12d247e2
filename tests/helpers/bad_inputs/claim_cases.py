"""Tables of claims and lexicons: what other programs and hand-written YAML make of them."""

from __future__ import annotations

import json

from bad_inputs.case import cases
from bad_inputs.world import World

AREA = "claims of sentences"


def _table(world: World, **cells: str) -> list[str]:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.data.text.claims.table import sentence_hash

    prepared = world.copy("prepared")
    sentence = sentence_hash(PreparedSet.open(prepared).texts[0])
    row = {"sentence": sentence, "finding": "edema", "polarity": "absent"} | cells
    return ["claims", str(prepared), "--table", str(world.table("claims.csv", [row]))]


def _lexicon(world: World, text: str) -> list[str]:
    path = world.file("lexicon.yaml", text)
    return ["claims", str(world.copy("prepared")), "--lexicon", str(path)]


def _spanish(world: World) -> list[str]:
    prepared = world.copy("prepared")
    meta = json.loads((prepared / "meta.json").read_text())
    (prepared / "meta.json").write_text(json.dumps(meta | {"languages": {"es": 3}}))
    return ["claims", str(prepared)]


cases(AREA, _spanish, {"a set of Spanish reports": {}})
cases(
    AREA,
    _table,
    {
        "a finding that the lexicon lacks": {"finding": "Quackenbush"},
        "a sentence that the set lacks": {"sentence": "0123456789abcdef"},
        "a side 'both'": {"side": "both"},
    },
    before="a table with ",
)
cases(
    AREA,
    _lexicon,
    {
        "on an unknown base": "base: nowhere\nname: a\n",
        "whose finding is a kind of nothing": (
            "base: english\nname: a\nfindings: {b: {is_a: [c]}}\n"
        ),
    },
    before="a lexicon ",
)
