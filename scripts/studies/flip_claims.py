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
import sys
from pathlib import Path

import pandas as pd
import typer

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from commands import run_script
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims.table import FILE, import_claims, read_claims
from medclip_debias.errors import UserError


def chosen(sentence: str, finding: str, share: float, seed: int) -> bool:
    """Whether the claims of a sentence about a finding are turned: a ``share`` of all are.

    Example:
        >>> sum(chosen(str(n), "effusion", 0.15, 0) for n in range(10_000)) / 10_000
        0.1497
    """
    digest = hashlib.sha256(f"{seed}:{sentence}:{finding}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def copy_with_claims(prepared: Path, out: Path, claims: pd.DataFrame) -> None:
    """Write a copy of a prepared set that knows these claims alone; its files are links.

    A sentence without a claim is unknown evidence.
    """
    lexicon = read_claims(PreparedSet.open(prepared)).lexicon
    aside = shutil.ignore_patterns("claims*", "*.lock")
    shutil.copytree(prepared, out, copy_function=os.link, ignore=aside)
    table = out.with_name(f"{out.name}_claims.csv")
    claims.to_csv(table, index=False)
    import_claims(PreparedSet.open(out), table, lexicon)


def main(prepared: Path, out: Path, share: float = 0.15, seed: int = 0) -> None:
    """Copy a prepared set with a share of its claims turned into their opposite; print how many."""
    if not 0 <= share <= 1:
        raise typer.BadParameter("--share must be from 0 to 1")
    if out.exists():
        raise UserError(f"{out}: is there already; give another folder, or remove it.")
    read_claims(PreparedSet.open(prepared))  # or it says what is not there
    claims = pd.read_parquet(prepared / FILE)
    names = zip(claims["sentence"], claims["finding"], strict=True)
    turned = pd.Series([chosen(*name, share, seed) for name in names], claims.index)
    opposite = claims["polarity"].map({"present": "absent", "absent": "present"})
    claims["polarity"] = claims["polarity"].mask(turned, opposite)
    copy_with_claims(prepared, out, claims)
    print({"claims": len(claims), "flipped": int(turned.sum())})


if __name__ == "__main__":
    sys.exit(run_script(main))
