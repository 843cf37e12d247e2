"""First steps: demo, the whole way on the phantom, one verb after the other; docs, the pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medclip_debias.cli import common
from medclip_debias.cli.common import PROGRAM, app, argument, option, show
from medclip_debias.cli.stages import Stage, run_stages, start_over

CONFIG = "phantom/demo"
STUDIES, QUICK_STUDIES = 6000, 160
LANGUAGE_MODEL = ["hidden=64", "heads=2", "layers=2", "vocabulary=1500", "batch_size=64"]
LANGUAGE_MODEL += ["steps=2500", "lr=3e-3"]
BESIDE, BESIDE_STEPS = "beside", 300
ARMS = {
    "positives by claims": [],
    "debiased": ["--loss", "debiased_language_model"],
    "InfoNCE": ["--loss", "no_correction"],
}
"""Short trainings that the report compares: the demo's own objective, the paper's, and neither."""
COMPARED = "zero_shot.mean_auc,zero_shot.mean_auc_positive,zero_shot.mean_auc_negative"
COMPARED += ",zero_shot.accuracy,grounding.cnr,grounding.pointing_game"
COMPARED += ",retrieval.recall,retrieval.median_rank"
QUICK = {
    "phantom": ["--set", "min_side=96", "--set", "max_side=144"],
    "language_model": ["steps=2", "hidden=16", "heads=2", "layers=1", "vocabulary=300"],
    "train": [
        *("train.steps=4", "train.batch_size=16", "train.warmup_steps=1", "train.log_every=2"),
        *("train.checkpoint_every=4", "train.workers=0"),
    ],
    "evaluate": ["--bootstrap", "20", "--heatmaps", "0"],
}
"""What goes behind the words of a stage, so that it runs in seconds and learns nothing."""


def stages(out: Path, studies: int, steps: int | None = None, quick: bool = False) -> list[Stage]:
    """The stages of the demo, each with what shows that it was done."""
    tree, prepared, lm = out / "phantom", out / "prepared", out / "language_model"
    overrides = [f"out={out}", f"prepared={prepared}", f"model.text.folder={lm}"]
    more = {name: words if quick else [] for name, words in QUICK.items()}
    length = [f"train.steps={steps}"] if steps else []
    judged = ["evaluate", out / "model", prepared, "--out", out, *more["evaluate"]]
    learned = ["language-model", prepared, lm, *LANGUAGE_MODEL, *more["language_model"]]
    return [
        Stage(
            "phantom", ["phantom", tree, "--studies", studies, "--seed", 0, *more["phantom"]], tree
        ),
        Stage("prepare", ["prepare", tree, prepared, "--size", 72], prepared),
        Stage("language_model", learned, lm),
        Stage("score", ["score", prepared, "--language-model", lm], prepared / "scores.json"),
        Stage("claims", ["claims", prepared, "--lexicon", "phantom"], prepared / "claims.parquet"),
        Stage("train", ["train", CONFIG, *overrides, *more["train"], *length]),
        Stage("evaluate", judged),
        *_beside(out, prepared, overrides, quick),
        Stage("report", ["report", out]),
    ]


def _beside(out: Path, prepared: Path, overrides: list[str], quick: bool) -> list[Stage]:
    """Train, evaluate and compare the `ARMS`, of one seed and equal length."""
    length = [f"train.steps={BESIDE_STEPS}", *(QUICK["train"] if quick else ())]
    folders = {name: out / BESIDE / name.replace(" ", "_").lower() for name in ARMS}
    trained, evaluated = [], []
    for number, (name, loss) in enumerate(ARMS.items(), start=1):
        folder = folders[name]
        where = [*overrides, f"out={folder}", "train.checkpoint_every=100000"]
        trained.append(Stage(f"train_beside_{number}", ["train", CONFIG, *loss, *where, *length]))
        words = ["evaluate", folder / "model", prepared, "--out", folder]
        words += ["--bootstrap", 0, "--heatmaps", 0]
        evaluated.append(Stage(f"evaluate_beside_{number}", words, folder / "results.json"))
    named = [f"{name}={folder}" for name, folder in folders.items()]
    words = ["compare", *named, "--baseline", "InfoNCE", "--metrics", COMPARED]
    words += ["--bootstrap", 100] if quick else []
    return [*trained, *evaluated, Stage("compare", [*words, "--out", out / BESIDE])]


@app.command(example="demo --quick")
def demo(
    out: Annotated[Path, "Folder of the run."] = Path("runs/demo"),
    studies: Annotated[
        int | None, option(f"Studies of the phantom; default {STUDIES}.", min=1)
    ] = None,
    steps: Annotated[int | None, option("Training steps; default the config's.", min=1)] = None,
    quick: Annotated[bool, "Takes a minute: every stage runs, nothing is learned."] = False,
    fresh: Annotated[bool, "Remove what is there first."] = False,
    as_json: common.AsJson = False,
) -> None:
    """Run every step on synthetic data, from images to a report.

    Every line behind `$` is a command that you can type yourself. Ten to twelve minutes.
    """
    if fresh:
        start_over(out, "*phantom*")
    number = studies or (QUICK_STUDIES if quick else STUDIES)
    todo = stages(out, number, steps, quick)
    if not as_json:
        run_stages(todo, out, _verb)
        return
    import sys
    from contextlib import redirect_stdout

    with redirect_stdout(sys.stderr):  # what the stages print is progress here
        run_stages(todo, out, _verb)
    made = {name: str(out / name) for name in ("model", "results.json", "report.html")}
    show(made, as_json)


@app.command(example="docs start")
def docs(
    page: Annotated[str | None, argument("Page to print, such as start.")] = None,
    as_json: common.AsJson = False,
) -> None:
    """Print where the documentation is, or a page of it."""
    from medclip_debias.errors import UserError, did_you_mean
    from medclip_debias.pages import pages

    folder, found = pages()
    if page is None:
        if as_json:
            show({"folder": str(folder), "pages": found}, as_json)
        else:
            typer.echo("\n  ".join([str(folder), *found]))
        return
    name = page.removesuffix(".md").removeprefix("docs/")
    if name not in found:
        hint = did_you_mean(name, found)
        raise UserError(f"{page}: there is no such page{hint}; `medclip-debias docs` lists them.")
    text = (folder / f"{name}.md").read_text(encoding="utf-8")
    if as_json:
        show({"page": name, "text": text}, as_json)
    else:
        typer.echo(text, nl=False)


def _verb(words: list[str]) -> int:
    """Run one verb; its exit code. A `UserError` goes on to who called the demo."""
    try:
        app(words, prog_name=PROGRAM)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0
