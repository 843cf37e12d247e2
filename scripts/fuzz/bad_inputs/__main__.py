"""Play every bad input that a user may give, and write what the program answers as a table.

    python scripts/fuzz/bad_inputs --out docs/reliability.md

Everything runs in this one process, through the same entry as the console command, on inputs
generated here, from the phantom and other images. Exits with 1 when an answer is not what it should
be: a traceback, an ``internal error``, a sentence that is none, something left behind, a patient's
name or id in what is said, or bad input taken without a message.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import annotation_cases  # noqa: F401
import archive_cases  # noqa: F401
import bench_cases  # noqa: F401
import calibration_cases  # noqa: F401
import claim_cases  # noqa: F401
import export_cases  # noqa: F401
import folder_cases
import hub_cases  # noqa: F401
import openi_cases  # noqa: F401
import peer_cases  # noqa: F401
import pixel_cases  # noqa: F401
import published_cases  # noqa: F401
import results_cases  # noqa: F401
import settings_cases  # noqa: F401
import study_cases  # noqa: F401
import table_cases  # noqa: F401
import triplet_cases  # noqa: F401
import viewer_cases  # noqa: F401
from case import CASES, Outcome, play
from page import MARK, page
from world import Base, World


def main() -> int:
    """Run the cases, print what is wrong, write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", help="areas, or cases, whose words hold this")
    parser.add_argument("--out", type=Path, help="the page whose table is written anew")
    parser.add_argument("--verbose", action="store_true", help="print every answer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="medclip-debias-bad-") as name:
        outcomes = _play_all(Path(name), options.only, options.verbose)
    if not outcomes:
        parser.error(f"no area and no case holds '{options.only}'")
    faults = [outcome for outcome in outcomes if outcome.fault]
    for outcome in faults:
        said = f": {outcome.said}" if outcome.said else ""
        print(f"FAULT {outcome.case.area} / {outcome.case.what}: {outcome.fault}{said}")
    counts = Counter(outcome.verdict for outcome in outcomes)
    print(f"{len(outcomes)} bad inputs: {dict(counts)}; {len(faults)} faults")
    if options.out:
        before = options.out.read_text(encoding="utf-8")
        head = before.split(MARK)[0]
        options.out.write_text(head + page(outcomes), encoding="utf-8")
    return int(bool(faults))


def _play_all(folder: Path, only: str, verbose: bool) -> list[Outcome]:
    base = Base(folder / "base")
    base.folder.mkdir()
    # Their cases are their files, which must be generated to be known.
    if only in folder_cases.INDEX:
        folder_cases.add_index_cases(_names(base.index))
    if only in folder_cases.PARTS:
        folder_cases.add_part_cases(_names_of_a_part(base))
    outcomes = []
    chosen = [case for case in CASES if only in f"{case.area} {case.what}"]
    for number, case in enumerate(chosen):
        began = time.perf_counter()
        outcome = play(case, World(base, folder / f"case{number}"))
        outcomes.append(outcome)
        if verbose:
            seconds = time.perf_counter() - began
            mark = f" ** {outcome.fault}" if outcome.fault else ""
            print(f"{case.area} / {case.what}: {outcome.verdict} ({seconds:.1f} s){mark}")
            print(f"    {outcome.said}", flush=True)
    return outcomes


def _names(folder: Path) -> list[str]:
    return [p.name for p in sorted(folder.iterdir()) if p.is_file() and p.name[0] != "."]


def _names_of_a_part(base: Base) -> list[str]:
    # An empty file has no bit to flip.
    files = (path for path in sorted(base.part.rglob("*")) if path.is_file())
    return [path.name for path in files if path.suffix != ".lock" and path.stat().st_size > 8]


if __name__ == "__main__":
    sys.exit(main())
