"""How the time of every verb grows with what it is given: the table of docs/performance.md.

    OMP_NUM_THREADS=1 python scripts/bench/growth.py                    # 400, 800 and 1,600 studies
    python scripts/bench/growth.py --sizes 60 120 240 --rounds 1    # a look

Phantoms of three sizes, 80 to 112 px, one process and thread. Each verb runs on all three in each
round; the exponent is the slope of log seconds over log size (least squares, medians of the
rounds). Seconds are those of the processor, of this process and its children, so that other jobs
count little. A round before the first is not counted. What a verb costs however small its input is
makes an exponent lower, so read it together with the seconds. ``train`` and ``language-model`` grow
with steps, ``ground`` with files, the others with studies.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from common import HEAD, Row, in_turn, machine, measure, shown

from medclip_debias.cli import run

REPO = Path(__file__).parents[2]
GOAL = 1.1
_RUN = (
    f"{REPO}/configs/phantom/demo.yaml out={{new}} model.text.folder={{root}}/bert"
    " train.device=cpu train.batch_size=16 train.workers=0"
)
_FIRST, _OWN = "prepared={root}/prepared-{first}", "prepared={root}/prepared-{n}"
_BERT = "hidden=32 heads=2 layers=1 vocabulary=800 batch_size=32"
_MODEL = "{root}/run/model"
_SET = "{root}/prepared-{n}"
_JUDGE = "--bootstrap 200 --device cpu"
MAKE = (
    "phantom {root}/tree-{n} --studies {n} --seed 1 --workers 1 --set min_side=80"
    " --set max_side=112",
    "prepare {root}/tree-{n} {root}/prepared-{n} --size 72 --workers 1",
    "prepare {root}/tree-{n} {root}/part1-{n} --size 72 --workers 1 --shard 1/2",
    "prepare {root}/tree-{n} {root}/part2-{n} --size 72 --workers 1 --shard 2/2",
)
"""What is made of each size first; then a model of the smallest, then what needs it."""
MODEL = (
    f"language-model {{root}}/prepared-{{first}} {{root}}/bert {_BERT} steps=20",
    f"train {_RUN} {_FIRST} out={{root}}/run train.steps=4",
)
WITH_MODEL = (
    f"index {_MODEL} {_SET} --out {{root}}/index-{{n}}",
    *(
        f"evaluate {_MODEL} {_SET} --out {{root}}/results-{{n}}-{seed} --bootstrap 0"
        f" --seed {seed} --heatmaps 0"
        for seed in (0, 1)
    ),
)
VERBS = {
    "phantom": MAKE[0].replace("{root}/tree-{n}", "{new}"),
    "prepare": MAKE[1].replace("{root}/prepared-{n}", "{new}"),
    "merge": "merge {root}/part1-{n} {root}/part2-{n} {new}",
    "claims": f"claims {_SET}",
    "score": f"score {_SET} --language-model {{root}}/bert",
    "language-model": f"language-model {{root}}/prepared-{{first}} {{new}} {_BERT} steps={{half}}",
    "train": f"train {_RUN} {_FIRST} train.steps={{twentieth}}",
    "features": f"train features {_RUN} {_OWN} train.trainable.image=frozen"
    " train.features.cache=true train.augment.crop=false train.augment.brightness=0"
    " train.augment.contrast=0 train.features.folder={new}",
    "doctor": f"doctor {_RUN} {_OWN}",
    "evaluate": f"evaluate {_MODEL} {_SET} --out {{new}} {_JUDGE}",
    "offsets": f"evaluate offsets {_MODEL} {_SET}",
    "suppression": f"evaluate suppression {_MODEL} {_SET}",
    "calibrate": f"calibrate {_MODEL} {_SET} --out {{new}}/c.json --split validate",
    "compare": "compare {root}/results-{n}-0 {root}/results-{n}-1 --out {new}",
    "probe": f"evaluate probe {_MODEL} {_SET} --out {{new}} {_JUDGE}",
    "ground": f"ground {_MODEL} {{files}} --text Effusion. --out {{new}}",
    "index": f"index {_MODEL} {_SET} --out {{new}}",
    # Every sentence is a landmark up to 1,000 of them, so that small sets grow in two ways.
    "index --set landmarks=300": f"index {_MODEL} {_SET} --out {{new}} --set landmarks=300",
    "search": "search {root}/index-{n} --text Effusion.",
}
"""The words of each verb on the set of ``n`` studies."""
GROWS = {"language-model": "steps", "train": "steps", "ground": "files"}
"""What those grow with that do not grow with studies."""
# Their work does not grow with a set: they read one file, or start other verbs.
LEFT_OUT = (
    "config, losses, report, import-model, card, push, export, view, bench, experiment, study"
)


def verb(*words: object) -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run([str(word) for word in words])
    if code:
        raise RuntimeError(f"{words[0]}: {' '.join(said.getvalue().split())[-200:]}")


def processor(work: Callable[[], object]) -> float:
    """Seconds of processors that ``work`` takes, children included."""
    before = os.times()
    work()
    after = os.times()
    return sum(after[:4]) - sum(before[:4])


class Sets:
    """For each size: a phantom, its prepared set, and what verbs read of it."""

    def __init__(self, folder: Path, sizes: list[int]) -> None:
        self.folder, self.sizes, self.number = folder, sizes, iter(range(10**9))
        for size, words in product(sizes, MAKE):
            self.run(words, size)
        self.run(MODEL[0], sizes[0])
        for size, words in product(sizes, (VERBS["score"], VERBS["claims"])):
            self.run(words, size)
        self.run(MODEL[1], sizes[0])
        for size, words in product(sizes, WITH_MODEL):
            self.run(words, size)

    def run(self, words: str, size: int) -> None:
        """Run a verb on the set of a size; ``{new}`` is a place where nothing is."""
        new = self.folder / f"new-{next(self.number)}"
        places = {"root": self.folder, "new": new, "n": size, "first": self.sizes[0]}
        places |= {"half": size // 2, "twentieth": size // 20}
        files = sorted((self.folder / f"tree-{self.sizes[-1]}").rglob("*.dcm"))
        given = [[*files[: max(size // 20, 1)]] if w == "{files}" else [w] for w in words.split()]
        verb(*(str(word).format_map(places) for part in given for word in part))


def exponent(sizes: list[int], seconds: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def row(name: str, grows: str, sizes: list[int], found: list[list[float]]) -> Row:
    """The exponent of the medians, and the lowest and highest of single rounds."""
    seconds = np.maximum(found, 1e-3)
    middle = np.median(seconds, axis=1).tolist()
    each = [exponent(sizes, of_round) for of_round in seconds.T.tolist()]
    slope = exponent(sizes, middle)
    measured = f"{slope:.2f} ({min(each):.2f} to {max(each):.2f})"
    note = f"{', '.join(shown(seconds) for seconds in middle)} at three sizes of {grows}"
    return Row(f"`{name}`", f"<= {GOAL}", measured, slope <= GOAL, note)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs=3, default=[400, 800, 1600], help="studies")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="verbs")
    given = parser.parse_args(words)
    print(machine("torch"), file=sys.stderr)
    print(HEAD)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="medclip-debias-growth-") as folder:
        sets = Sets(Path(folder), given.sizes)
        for name, words_of_it in VERBS.items():
            if given.only and name not in given.only:
                continue

            def rows(name: str = name, words: str = words_of_it) -> list[Row]:
                ways = {
                    f"{n}": partial(processor, partial(sets.run, words, n)) for n in given.sizes
                }
                found = list(in_turn(ways, given.rounds).values())
                return [row(name, GROWS.get(name, "studies"), given.sizes, found)]

            failed += measure(rows, f"`{name}`", f"<= {GOAL}")
    print(f"Not measured, since their work does not grow with a set: {LEFT_OUT}.")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
