"""The verb that brings other groups' models in: import-model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from medclip_debias.cli.common import EVALUATION, AsJson, app, argument, option, show


@app.command(
    "import-model",
    rich_help_panel=EVALUATION,
    example="import-model biovil weights.pt --text models/cxr-bert --out models/biovil",
)
def import_model(
    kind: Annotated[
        str,
        argument(
            "biovil, biovil_t, chexzero, open_clip, gloria, medclip, siglip, clip, rad_dino, "
            "carzero, radzero, conns, cxr_clip, mgca, kad, medklip or afloc."
        ),
    ],
    weights: Annotated[
        Path, argument("The published checkpoint; for siglip, clip, rad_dino a folder.")
    ],
    out: Annotated[Path, option("Model folder to write.")],
    text: Annotated[
        Path | None, option("BERT folder; for CLIP, its tokenizer's merges file.")
    ] = None,
    config: Annotated[
        Path | None,
        option(
            "open_clip_config.json (open_clip), preprocessor_config.json (radzero, conns), "
            "questions as JSON (kad, medklip)."
        ),
    ] = None,
    score: Annotated[
        str,
        option("Of gloria: whole, local (words and regions) or both, as published."),
    ] = "whole",
    levels: Annotated[
        str | None,
        option("Grey levels of 8-bit files: stretched or as_stored; default published."),
    ] = None,
    fit: Annotated[
        str | None,
        option("Square by pad, crop or squash; default as published."),
    ] = None,
    self_test: Annotated[
        bool,
        option("Store scores that every loading compares with."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Turn another group's weights into a model folder."""
    from medclip_debias.models.peers.importing import import_model as run

    peer = run(
        kind,
        weights,
        out,
        text=text,
        config=config,
        golden=self_test,
        score=score,
        levels=levels,
        fit=fit,
    )
    grid = peer.grid
    shown = {
        "model": str(out),
        "parameters": sum(p.numel() for p in peer.parameters()),
        "grid": f"{grid.rows} x {grid.columns}",
        "licence": peer.provenance["licence"],
        "not used": "; ".join(
            f"{count} tensors: {why}" for why, count in peer.provenance["unused_tensors"].items()
        )
        or "see docs/peers.md",
        "prepare with": peer.preprocessing.prepare.command_line(),
    }
    show(shown, as_json)
