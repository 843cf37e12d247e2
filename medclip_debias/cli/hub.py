"""The verbs that hand a model on: hub card, hub push, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from medclip_debias.cli import common
from medclip_debias.cli.common import app, group, note, option, show, warn

hub = group("hub", "Write a model's card; upload to the Hugging Face Hub.")
ModelFolder = Annotated[Path, "Model folder, as RUN/model."]


@hub.command(example="hub card runs/demo/model --licence apache-2.0")
def card(
    model: ModelFolder,
    results: Annotated[Path | None, "results.json of this model, or its folder."] = None,
    licence: Annotated[
        str | None, "Licence of the weights, as the hub writes it (apache-2.0)."
    ] = None,
    name: Annotated[str | None, "Name of the model; default the run's."] = None,
    dataset: Annotated[str | None, "GROUP/NAME on the hub, for .eval_results."] = None,
    as_json: common.AsJson = False,
) -> None:
    """Write a model card into the folder: data, funnel, metrics with intervals, use, limits."""
    from medclip_debias.hub.card import write_card
    from medclip_debias.hub.push import CARD

    written = write_card(model, results=results, licence=licence, name=name, dataset=dataset)
    for sentence in written.says:
        note(sentence)
    show({"card": str(model / CARD), "eval_results": written.eval_results is not None}, as_json)


@hub.command(example="hub push runs/demo/model group/name")
def push(
    model: ModelFolder,
    repo: Annotated[str, "GROUP/NAME on the hub."],
    online: Annotated[bool, "Upload; without it the files are only listed."] = False,
    public: Annotated[bool, "Make a new repository public; private by default."] = False,
    as_json: common.AsJson = False,
) -> None:
    """List what an upload to the Hugging Face Hub would hold; upload it with --online."""
    from medclip_debias.hub.push import check_repo, outgoing
    from medclip_debias.hub.push import push as upload

    check_repo(repo)
    files, kept = outgoing(model)
    if kept:
        note(f"stay here: {', '.join(kept)}")
    shown = {
        "repository": repo,
        "files": [f"{name} ({size:,} bytes)" for name, size in sorted(files.items())],
        "stays": len(kept),
        "uploaded": upload(model, repo, private=not public) if online else "nothing; add --online",
    }
    show(shown, as_json)


@app.command(example="export runs/demo/model exported --format onnx")
def export(
    model: ModelFolder,
    out: Annotated[Path, "Folder to write."],
    form: Annotated[str, option("onnx, torch-export or monai-bundle.", "--format")] = "onnx",
    as_json: common.AsJson = False,
) -> None:
    """Write a model for other programs: ONNX, torch.export, MONAI.

    ONNX and torch.export files are compared with the model before they are kept.
    """
    from medclip_debias.hub.export import export as run

    content = run(model, out, form)
    warn(content["warning"])
    differences = {name: one["difference"] for name, one in content["parity"].items()}
    show({"out": str(out), "largest difference": differences}, as_json)
