"""The verb `calibrate`: what turns a model's scores into probabilities, kept in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medclip_debias.cli.common import (
    EVALUATION,
    AsJson,
    Classes,
    Device,
    LabelMap,
    Labels,
    Prompts,
    app,
    note,
    show,
    warn,
    words,
)


@app.command(
    rich_help_panel=EVALUATION,
    example="calibrate runs/demo/model data/prepared --out runs/demo/calibration.json",
)
def calibrate(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    prepared: Annotated[Path, typer.Argument(help="Prepared set with labels.")],
    out: Annotated[Path, typer.Option("--out", help="Calibration file (JSON) to write.")],
    split: Annotated[str, typer.Option(help="Whose images; not those judged later.")] = "validate",
    prompts: Prompts = None,
    classes: Classes = None,
    labels: Labels = None,
    label_map: LabelMap = None,
    prevalence: Annotated[
        list[str] | None,
        typer.Option(help="Share where it will be used, as 'Edema=.05'; may be repeated."),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", help="method=, coverage=, conformal=, labels.blank=, ..."),
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Fit probabilities to labelled images (docs/decisions.md)."""
    from medclip_debias.evaluation.decisions.prepared import CalibrateOptions, shares
    from medclip_debias.evaluation.decisions.prepared import calibrate as run

    found = run(
        model,
        prepared,
        out,
        split=split,
        prompts=prompts,
        classes=words(classes),
        labels=labels,
        label_map=label_map,
        prevalence=shares(prevalence or []),
        options=CalibrateOptions.given(options or []),
        device=device,
    )
    for name, why in found.skipped.items():
        note(f"{name}: {why.reason} ({why.positive} with, {why.negative} without); left out.")
    for sentence in found.warnings:
        warn(sentence)
    shown = {name: found.described(name) for name in found.classes}
    show({"calibration": str(out), **shown, "skipped": len(found.skipped)}, as_json)
