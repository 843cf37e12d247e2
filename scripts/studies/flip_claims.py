"""A copy of a prepared set with a share of its claims turned into their opposite.

For the question how wrong a parser may be: of the distinct sentences' claims a share, chosen by a
hash of sentence, finding and seed, changes from present to absent or back. What is wrong is wrong
wherever the sentence stands, as a parser's mistakes are. Images and tables are hard links.

Run as ``python scripts/studies/flip_claims.py PREPARED OUT --share 0.15``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import typer

from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims.claim import Claim
from medclip_debias.data.text.claims.table import (
    COLUMNS,
    FILE,
    import_claims,
    read_claims,
    sentence_hash,
)
from medclip_debias.errors import UserError

_OTHER = {"present": "absent", "absent": "present"}


def chosen(sentence: str, finding: str, share: float, seed: int) -> bool:
    """Whether the claims of a sentence about a finding are turned: a ``share`` of all are.

    Example:
        >>> sum(chosen(str(n), "effusion", 0.15, 0) for n in range(10_000)) / 10_000
        0.1497
    """
    digest = hashlib.sha256(f"{seed}:{sentence}:{finding}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def flip(prepared: Path, out: Path, share: float, seed: int) -> dict[str, int]:
    """Write the copy; returns how many claims there are, and how many were turned."""
    if out.exists():
        raise UserError(f"{out}: is there already; give another folder, or remove it.")
    table = read_claims(PreparedSet.open(prepared))
    shutil.copytree(prepared, out, copy_function=os.link)
    (out / FILE).unlink()  # the link, not the claims of the set
    copy = PreparedSet.open(out)
    rows, turned = [], 0
    for text, claims in zip(copy.texts, table.claims, strict=True):
        name = sentence_hash(text)
        for claim in claims:
            turn = chosen(name, claim.finding, share, seed)
            kept: Claim = replace(claim, polarity=_OTHER[claim.polarity]) if turn else claim
            turned += turn
            rows.append((name, *(getattr(kept, column) for column in COLUMNS[1:])))
    changed = out / "flipped.csv"
    pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(changed, index=False)
    import_claims(copy, changed, table.lexicon, f"{table.meta['parser']}, {share:.0%} flipped")
    changed.unlink()
    return {"claims": len(rows), "flipped": turned}


def main(prepared: Path, out: Path, share: float = 0.15, seed: int = 0) -> None:
    """Copy a prepared set with a share of its claims turned into their opposite."""
    if not 0 <= share <= 1:
        raise typer.BadParameter("--share must be from 0 to 1")
    print(flip(prepared, out, share, seed))


if __name__ == "__main__":
    typer.run(main)
