"""The whole way on Open-i, real radiographs and reports: what `make openi DATA=FOLDER` runs.

Every line that starts with `$` is a command that you can type yourself. Run again, it goes on where
it stopped; `--fresh` starts over. docs/openi.md says what each stage does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands import run_script
from medclip_debias.cli import run
from medclip_debias.cli.stages import Stage, run_stages, start_over
from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.label_table import study_labels
from medclip_debias.evaluation.table import read_results
from medclip_debias.markdown import markdown_table
from medclip_debias.reporting.sections import supervised_table
from medclip_debias.training.resolve import load_run

if TYPE_CHECKING:
    from supervised import Targets

CONFIG = Path("openi/base")
LANGUAGE_MODEL = ["hidden=64", "heads=2", "layers=2", "vocabulary=2000", "batch_size=64"]
LANGUAGE_MODEL += ["steps=2500", "lr=3e-3"]
SUPERVISED_STEPS = 1000
"""Of the network that learns the labels themselves, and of the one that learns the claims."""
LEAST = 5
"""Images with and without a class that its AUC needs: with fewer the interval is all there is."""


def judged_classes(
    prepared: Path, split: str = "test", least: int = LEAST, prompts: str = "openi"
) -> list[str]:
    """Return the classes of the prompt set that enough images of a split have and have not.

    What is left out is printed with its counts.
    """
    data = PreparedSet.open(prepared)
    classes = list(load_prompts(prompts).classes)
    studies = data.images.loc[data.images["split"] == split, "study_id"].tolist()
    _, labels = study_labels(data, studies, classes)
    kept, left_out = [], []
    for name in classes:
        if name not in labels:
            left_out.append(f"{name} (no column)")
            continue
        present, absent = (int((labels[name] == value).sum()) for value in (1, 0))
        if min(present, absent) >= least:
            kept.append(name)
        else:
            left_out.append(f"{name} ({present} present, {absent} absent)")
    if not kept:
        raise UserError(
            f"{prepared}: no class has {least} {split} images with and {least} without it; give a"
            " larger set or another --least."
        )
    print(
        f"# {len(kept)} classes are judged; too few {split} images: {', '.join(left_out) or 'none'}"
    )
    return kept


def stages(
    data: Path, out: Path, config: Path, steps: int | None, least: int, loss: str | None = None
) -> list[Stage]:
    prepared, lm, model = out / "prepared", out / "language_model", out / "model"
    overrides = [f"out={out}", f"prepared={prepared}", f"model.text.folder={lm}"]
    overrides += [f"train.steps={steps}"] if steps else []
    settings = load_run(config, overrides, loss)
    size = settings.preprocessing.prepare.size
    how = ["--kind", "openi", "--size", f"{size}"]
    chosen = ["--loss", loss] if loss else []
    probes, scored = out / "probe", prepared / "scores.json"

    def evaluate() -> list[str]:
        classes = ",".join(judged_classes(prepared, least=least))
        given = [f"{model}", f"{prepared}", "--out", f"{out}"]
        return ["evaluate", *given, "--prompts", "openi", "--classes", classes]

    def learn(name: str, folder: Path, targets: Targets) -> Stage:
        def work() -> None:
            from supervised import supervised

            supervised(settings, folder, steps=SUPERVISED_STEPS, targets=targets)

        words = ["python", "scripts/supervised.py", f"{config}", *overrides]
        words += ["--steps", f"{SUPERVISED_STEPS}", "--out", f"{folder}"]
        words += ["--targets", targets] if targets != "labels" else []
        return Stage(name, words, folder / "supervised.json", work)

    return [
        Stage("prepare", ["prepare", f"{data}", f"{prepared}", *how], prepared),
        Stage("language_model", ["language-model", f"{prepared}", f"{lm}", *LANGUAGE_MODEL], lm),
        Stage("claims", ["claims", f"{prepared}"], prepared / "claims.parquet"),
        Stage("score", ["score", f"{prepared}", "--language-model", f"{lm}"], scored),
        Stage("train", ["train", f"{config}", *chosen, *overrides]),
        Stage("evaluate", evaluate),
        Stage("probe", ["evaluate", "probe", f"{model}", f"{prepared}", "--out", f"{probes}"]),
        learn("supervised", out, "labels"),
        learn("classifier_of_claims", out / "classifier_of_claims", "claims"),
        Stage("report", ["report", f"{out}"]),
    ]


def auc_table(out: Path) -> str:
    """Return the AUCs of every judged class as a Markdown table, from high to low (PNC)."""
    table = supervised_table(out, read_results(out / "results.json"))
    *classes, mean = table.rows
    classes.sort(key=lambda row: -float(row[4]))
    return "\n".join(markdown_table(table.head, [*classes, mean], words=1))


def main(
    data: Annotated[Path, typer.Argument(help="folder of Open-i (docs/openi.md)")],
    out: Path = Path("runs/openi"),
    config: Path = CONFIG,
    loss: Annotated[str | None, typer.Option(help="preset; default the config's")] = None,
    steps: Annotated[int | None, typer.Option(help="of training; default the config's")] = None,
    least: Annotated[int, typer.Option(help="test images of a judged class")] = LEAST,
    table: Annotated[bool, typer.Option(help="print the AUCs of --out alone")] = False,
    fresh: Annotated[bool, typer.Option(help="remove what is there first")] = False,
) -> None:
    """Run every stage on Open-i; leave results.json, probe.json, supervised.json, report.html."""
    if fresh and not table:
        start_over(out)
    if not table:
        run_stages(stages(data, out, config, steps, least, loss), out, run)
    print(auc_table(out))


if __name__ == "__main__":
    sys.exit(run_script(main))
