"""The verb `evaluate probe`: what a model's image features hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medclip_debias.cli.common import (
    AsJson,
    Bootstrap,
    Device,
    Seed,
    progress,
    show,
)
from medclip_debias.cli.evaluation import evaluation


@evaluation.command(example="evaluate probe runs/demo/model data/prepared --out runs/demo")
def probe(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    prepared: Annotated[Path, typer.Argument(help="Prepared set with labels.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for probe.json.")],
    split: Annotated[str, typer.Option(help="test or validate.")] = "test",
    truth: Annotated[
        Path | None, typer.Option(help="A phantom's folder: adds the false negatives.")
    ] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="An option, as repeats=10.")
    ] = None,
    bootstrap: Bootstrap = 1000,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure image features: linear probe, neighbours, alignment, uniformity."""
    from medclip_debias.config import validate
    from medclip_debias.evaluation.probe import ProbeOptions
    from medclip_debias.evaluation.probe import probe as run
    from medclip_debias.settings_files import apply_overrides

    chosen = validate(ProbeOptions, apply_overrides({}, options or []), "--set")
    with progress("Images") as advance:
        results = run(
            model,
            prepared,
            out,
            split=split,
            truth=truth,
            seed=seed,
            bootstrap=bootstrap,
            device=device,
            options=chosen,
            progress=advance,
        )
    names = ("mean", "alignment", "uniformity", "false_negatives")
    shown = {name: results[name] for name in names if name in results}
    show({"results": str(out / "probe.json"), **shown}, as_json, full=results)
