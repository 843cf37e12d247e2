"""The whole way on the phantom, one verb after the other: what `make demo` runs.

Every line that starts with `$` is a command that you can type yourself (see stages.py). Run again,
it resumes where it stopped; `--fresh` starts over.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from stages import Stage, run_stages

CONFIG = "configs/phantom/demo.yaml"
LANGUAGE_MODEL = ["hidden=64", "heads=2", "layers=2", "vocabulary=1500", "batch_size=64"]
LANGUAGE_MODEL += ["steps=2500", "lr=3e-3"]


def stages(out: Path, studies: int, steps: int | None) -> list[Stage]:
    """Name, command line and (where the stage can be left out) what shows that it was done."""
    tree, prepared, lm = out / "phantom", out / "prepared", out / "language_model"
    overrides = [f"out={out}", f"prepared={prepared}", f"model.text.folder={lm}"]
    overrides += [f"train.steps={steps}"] if steps else []
    return [
        Stage("phantom", ["phantom", f"{tree}", "--studies", f"{studies}", "--seed", "0"], tree),
        Stage("prepare", ["prepare", f"{tree}", f"{prepared}", "--size", "72"], prepared),
        Stage("language_model", ["language-model", f"{prepared}", f"{lm}", *LANGUAGE_MODEL], lm),
        Stage(
            "score",
            ["score", f"{prepared}", "--language-model", f"{lm}"],
            prepared / "scores.json",
        ),
        Stage("train", ["train", CONFIG, *overrides]),
        Stage("evaluate", ["evaluate", f"{out / 'model'}", f"{prepared}", "--out", f"{out}"]),
        Stage("report", ["report", f"{out}"]),
    ]


def main() -> None:
    """Run every stage, and leave results.json and report.html."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    parser.add_argument("--studies", type=int, default=6000)
    parser.add_argument("--steps", type=int, help="training steps; default the config's")
    parser.add_argument("--fresh", action="store_true", help="remove what is there first")
    options = parser.parse_args()
    if options.fresh:
        shutil.rmtree(options.out, ignore_errors=True)
    run_stages(stages(options.out, options.studies, options.steps), options.out)


if __name__ == "__main__":
    main()
