"""Report triplets of a phantom for `evaluate --triplets`: one finding negated, one omitted.

    python scripts/phantom_triplets.py PHANTOM triplets.csv

As CXR-Align's, but that every statement is known: the original report is the study's true
sentences; one positive finding of the image that sentences of their own state is picked; in the
negated report "no ..." stands in place of the first of them, in the omitted one nothing does, and
further ones are left out of both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from commands import run_script
from medclip_debias.errors import UserError, explained
from medclip_debias.files import atomic_file
from medclip_debias.parquet import read_parquet
from medclip_debias.phantom.catalogue import CLASS_NAMES
from medclip_debias.phantom.language import Sentence, Writer
from medclip_debias.phantom.settings import PhantomSettings
from medclip_debias.phantom.truth import Statement, agrees, statement_from_json

ATTEMPTS = 50
COLUMNS = ("study_id", "finding", "original", "negated", "omitted")


@dataclass(frozen=True)
class MadeTriplets:
    """A table with `COLUMNS`, a row a study, and of how many studies none could be made.

    ``without_finding``: no sentence states one present finding and no other; ``nothing_left``: they
    say nothing else.
    """

    table: pd.DataFrame
    without_finding: int
    nothing_left: int


def make_triplets(folder: Path, seed: int = 0) -> MadeTriplets:
    """Triplets of every study of a phantom, of any layout, from its ``truth``."""
    with explained(f"{folder}: holds no truth of a phantom (truth/*.parquet)", Exception):
        place = folder / "truth"
        images = read_parquet(place / "images.parquet").drop_duplicates("study_id")
        shown = images.set_index("study_id")[list(CLASS_NAMES)].astype(bool)
        said = read_parquet(place / "sentences.parquet")
        studies = [(str(study), _sentences(own)) for study, own in said.groupby("study_id")]
        shown.index = shown.index.astype(str)
    rows: list[tuple[str, ...]] = []
    without = nothing = 0
    for number, (study, sentences) in enumerate(studies):
        if study not in shown.index:
            continue  # without a frontal image, so without an image to score
        present = [name for name in CLASS_NAMES if shown.loc[study, name]]
        true = [each for each in sentences if agrees(each.statement, present)]
        findings = _alone(true)
        if not findings:
            without += 1
            continue
        rng = np.random.default_rng([seed, number])
        finding = findings[int(rng.integers(len(findings)))]
        rest = [each for each in true if not _states(each.statement, finding)]
        if not rest:
            nothing += 1
            continue
        writer = Writer(rng, PhantomSettings())
        drawn = (writer.negative(finding) for _ in range(ATTEMPTS))
        denied = next((one for one in drawn if not agrees(one.statement, present)), None)
        if denied is None:
            raise UserError(f"{folder}: no sentence denies {finding}; write the phantom again.")
        first = [_states(each.statement, finding) for each in true].index(True)
        texts = (true, [*rest[:first], denied, *rest[first:]], rest)
        rows.append((study, finding, *(" ".join(each.text for each in part) for part in texts)))
    return MadeTriplets(pd.DataFrame(rows, columns=list(COLUMNS)), without, nothing)


def write_triplets(folder: Path, out: Path, seed: int = 0) -> MadeTriplets:
    """Write `make_triplets` as a CSV table for ``evaluate --triplets``; return what was made."""
    made = make_triplets(folder, seed)
    if made.table.empty:
        raise UserError(f"{folder}: no study allows a triplet; write a phantom of more studies.")
    with atomic_file(out) as temporary:
        made.table.to_csv(temporary, index=False)
    return made


def _sentences(own: pd.DataFrame) -> list[Sentence]:
    """Distinct sentences of one study, in their order, without those that no section holds."""
    kept = own[own["section"] != ""].drop_duplicates("text")
    return [
        Sentence(str(text), statement_from_json(written))
        for text, written in zip(kept["text"], kept["statement"], strict=True)
    ]


def _states(statement: Statement, finding: str) -> bool:
    return any(clause.present and clause.finding == finding for clause in statement.clauses)


def _alone(sentences: Sequence[Sentence]) -> list[str]:
    """Findings that sentences state, each of which states nothing else."""
    stated = {c.finding for each in sentences for c in each.statement.clauses if c.present}
    named = [{c.finding for c in each.statement.clauses} for each in sentences]
    return sorted(stated.difference(*(findings for findings in named if len(findings) > 1)))


def main(
    phantom: Annotated[Path, typer.Argument(help="folder of a phantom, in any layout")],
    out: Annotated[Path, typer.Argument(help="table to write (CSV)")],
    seed: int = 0,
) -> None:
    """Write report triplets of a phantom, and print how many there are."""
    made = write_triplets(phantom, out, seed)
    counts = {"without_finding": made.without_finding, "nothing_left": made.nothing_left}
    print(json.dumps({"triplets": len(made.table), **counts}))


if __name__ == "__main__":
    sys.exit(run_script(main))
