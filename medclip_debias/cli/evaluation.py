"""Verbs that measure: evaluate and its own, report, calibrate, compare; import-model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medclip_debias.cli import common
from medclip_debias.cli.common import app, given, group, note, option, progress, show
from medclip_debias.cli.help import USUAL, VerbGroup
from medclip_debias.errors import one_of

evaluation = group(
    "evaluate", "Measure zero-shot classification, grounding and retrieval.", VerbGroup
)


def say_if_training(*folders: Path) -> None:
    """Say that a run trains in one of ``folders``: its model is replaced at its end.

    It is not refused: nothing that these verbs write is the run's, nor the other way round.
    """
    from medclip_debias.training.lock import holder_of

    for folder in dict.fromkeys(folder.absolute() for folder in folders):
        holder = holder_of(folder)
        if holder is not None:
            note(
                f"{folder}: a run is training here ({holder}); this command reads its current"
                " files, so repeat it when the run has finished."
            )


@evaluation.command(
    USUAL,
    example="evaluate runs/demo/model data/prepared --out runs/demo",
    panels={
        "Which data": "split allow_train labels label_map class_images phrases triplets",
        "What is asked": "prompts classes method preset options bootstrap seed",
    },
)
def evaluate(
    model: common.ModelFolder,
    prepared: common.PreparedFolder,
    out: Annotated[Path, option("Folder for results.json and heatmaps.")],
    split: Annotated[str, "test or validate; also of phrases that have their own split."] = "test",
    allow_train: Annotated[bool, "Allow --split train, with a warning."] = False,
    prompts: common.Prompts = None,
    classes: common.Classes = None,
    labels: common.Labels = None,
    label_map: common.LabelMap = None,
    class_images: Annotated[
        Path | None, "Images of one class each, as CheXpert 5x200's list."
    ] = None,
    phrases: Annotated[Path | None, "COCO file or MS-CXR CSV instead of the set's phrases."] = None,
    triplets: Annotated[
        Path | None, "Reports with a finding negated and omitted, as cxr-align.json."
    ] = None,
    preset: Annotated[
        str | None,
        "Also compute metrics as other papers' code does: NAME,NAME or all (docs/benchmark.md).",
    ] = None,
    method: Annotated[str | None, "Maps by similarity (default), gradcam or occlusion."] = None,
    options: Annotated[Path | None, "YAML file of further options (docs/evaluation.md)."] = None,
    bootstrap: common.Bootstrap = 1000,
    heatmaps: Annotated[
        int, option("Pictures to write beside best, median, worst; 0 for none.", min=0)
    ] = 16,
    seed: common.Seed = 0,
    device: common.Device = "auto",
    as_json: common.AsJson = False,
) -> None:
    """Measure zero-shot classification, phrase grounding and retrieval, with intervals."""
    from medclip_debias.config import validate
    from medclip_debias.evaluation.evaluate import evaluate as run
    from medclip_debias.evaluation.evaluate import headline
    from medclip_debias.evaluation.options import EvaluationOptions, read_options

    chosen = read_options(options) if options else EvaluationOptions()
    content = chosen.model_dump(exclude_unset=True) | given(preset=preset, method=method)
    chosen = validate(EvaluationOptions, content, "the command line")
    say_if_training(out, model.parent)
    with progress("Images") as advance:
        results = run(
            model,
            prepared,
            out,
            split=split,
            allow_train=allow_train,
            seed=seed,
            bootstrap=bootstrap,
            heatmaps=heatmaps,
            prompts=prompts,
            classes=common.words(classes),
            labels=labels,
            label_map=label_map,
            class_images=class_images,
            phrases=phrases,
            triplets=triplets,
            options=chosen,
            device=device,
            progress=advance,
        )
    from medclip_debias.models.synthetic import WARNING

    common.warn(WARNING if WARNING in results["notes"] else None)
    for sentence in results.details("zero_shot").get("warnings", ()):
        common.warn(sentence)
    show({"results": str(out / "results.json"), **headline(results)}, as_json, full=results)


@evaluation.command(example="evaluate offsets runs/demo/model data/prepared")
def offsets(
    model: Annotated[Path, "Model folder; offsets.json is written there."],
    prepared: Annotated[Path, "Prepared set; its labels are not read."],
    split: Annotated[str, "Split whose images are used: train or validate."] = "validate",
    prompts: Annotated[str, "Prompt set: a name or a YAML file."] = "chex5",
    device: common.Device = "auto",
    as_json: common.AsJson = False,
) -> None:
    """Compute one constant per prompt from unlabelled images; store it with the model."""
    from medclip_debias.data.prompts import load_prompts
    from medclip_debias.evaluation.offsets import FILE, save_offsets
    from medclip_debias.grounding.preparation import model_and_set

    one_of(split, ("train", "validate"), "split of such images")
    texts = load_prompts(prompts).texts
    loaded, data = model_and_set(model, prepared, device)
    stored = save_offsets(model, loaded, data, texts, split)
    show({"offsets": str(model / FILE), "images": stored["images"], "prompts": len(texts)}, as_json)


@evaluation.command(example="evaluate suppression runs/demo/model data/prepared --share 0.95")
def suppression(
    model: Annotated[Path, "Model folder; suppression.json is written there."],
    prepared: Annotated[Path, "Prepared set; its validate images are used."],
    aim: Annotated[
        str,
        "What the threshold ensures: a share of the true sentences kept, or of the absent ones"
        " withheld (specificity).",
    ] = "kept",
    share: Annotated[float, "The share that --aim ensures."] = 0.98,
    evidence: Annotated[str, "best, offset, negated, peak or score."] = "best",
    device: common.Device = "auto",
    as_json: common.AsJson = False,
) -> None:
    """Choose the evidence below which a sentence gets no box; store it with the model."""
    from medclip_debias.config import validate
    from medclip_debias.evaluation.sentence_choice import choose_rule
    from medclip_debias.grounding.preparation import model_and_set
    from medclip_debias.grounding.settings import SuppressionSettings
    from medclip_debias.grounding.suppression import FILE, save_rule

    content = {"aim": aim, "share": share, "evidence": evidence}
    settings = validate(SuppressionSettings, content, "the command line")
    loaded, data = model_and_set(model, prepared, device)
    rule = choose_rule(loaded, data, settings)
    save_rule(model, rule)
    tried = rule.chosen["tried"][rule.evidence]
    shown = {"kept": tried["kept"], "specificity": tried["specificity"], "auc": tried["auc"]}
    head = {"suppression": str(model / FILE), "evidence": rule.evidence}
    show({**head, "threshold": rule.threshold, **shown}, as_json)


@app.command(example="report runs/demo")
def report(
    run: Annotated[Path, "Run folder, or a prepared set."],
    prepared: Annotated[
        Path | None,
        "Set that the run learned from: the report then quotes its sentences. A synthetic"
        " set need not be named.",
    ] = None,
    as_json: common.AsJson = False,
) -> None:
    """Write the HTML report of a run or of a prepared set."""
    from medclip_debias.reporting.report import write_report

    say_if_training(run)
    show({"report": str(write_report(run, prepared))}, as_json)


@evaluation.command(example="evaluate probe runs/demo/model data/prepared --out runs/demo")
def probe(
    model: common.ModelFolder,
    prepared: Annotated[Path, "Prepared set with labels."],
    out: Annotated[Path, option("Folder for probe.json.")],
    split: Annotated[str, "test or validate."] = "test",
    truth: Annotated[Path | None, "A phantom's folder: adds the false negatives."] = None,
    options: Annotated[list[str] | None, option("An option, as repeats=10.", "--set")] = None,
    bootstrap: common.Bootstrap = 1000,
    seed: common.Seed = 0,
    device: common.Device = "auto",
    as_json: common.AsJson = False,
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


@app.command(
    example="calibrate runs/demo/model data/prepared --out runs/demo/calibration.json",
)
def calibrate(
    model: common.ModelFolder,
    prepared: Annotated[Path, "Prepared set with labels."],
    out: Annotated[Path, option("Calibration file (JSON) to write.")],
    split: Annotated[
        str, "Split whose images are used; not one that is judged later."
    ] = "validate",
    prompts: common.Prompts = None,
    classes: common.Classes = None,
    labels: common.Labels = None,
    label_map: common.LabelMap = None,
    prevalence: Annotated[
        list[str] | None,
        "Prevalence where the model will be used, as 'Edema=.05'; may be repeated.",
    ] = None,
    options: Annotated[
        list[str] | None,
        option("A choice, as coverage=0.95; may be repeated.", "--set"),
    ] = None,
    device: common.Device = "auto",
    as_json: common.AsJson = False,
) -> None:
    """Fit probabilities to labelled images (docs/decisions.md)."""
    from medclip_debias.evaluation.decisions.calibration import CalibrateOptions, shares
    from medclip_debias.evaluation.decisions.calibration import calibrate as run

    calibration = run(
        model,
        prepared,
        out,
        split=split,
        prompts=prompts,
        classes=common.words(classes),
        labels=labels,
        label_map=label_map,
        prevalence=shares(prevalence or []),
        options=CalibrateOptions.given(options or []),
        device=device,
    )
    for name, why in calibration.skipped.items():
        note(f"{name}: {why.reason} ({why.positive} with, {why.negative} without); left out.")
    for what, count in calibration.source.items():
        if isinstance(count, int) and count and what != "rows":
            note(f"left aside: {what.replace('_', ' ')}: {count}.")
    for sentence in calibration.warnings:
        common.warn(sentence)
    shown = {name: calibration.described(name) for name in calibration.classes}
    show({"calibration": str(out), **shown, "skipped": len(calibration.skipped)}, as_json)


@app.command(
    example="compare runs/uncorrected runs/debiased --out runs/comparison",
)
def compare(
    runs: Annotated[list[str], "Folders of 'evaluate', globs, or label=FOLDER,FOLDER."],
    out: Annotated[Path | None, "Folder for comparison.json, .html, .md, .tex ..."] = None,
    baseline: Annotated[str | None, "Label or folder to compare with; default the first."] = None,
    group: Annotated[
        list[str] | None, "Seeds of one method: label=FOLDER,FOLDER; may be repeated."
    ] = None,
    metrics: Annotated[
        str | None, "Metrics to compare, as 'zero_shot.mean_auc,grounding.cnr'."
    ] = None,
    bootstrap: Annotated[int, option("Resamples of the patients.", min=100)] = 2000,
    seed: common.Seed = 0,
    force: Annotated[bool, "Compare runs that were evaluated differently, with a warning."] = False,
    as_json: common.AsJson = False,
) -> None:
    """Test the differences between runs, and list their settings."""
    from medclip_debias.evaluation.compare import compare as run
    from medclip_debias.evaluation.provenance import plain
    from medclip_debias.files import check_out
    from medclip_debias.reporting.comparison import write_comparison
    from medclip_debias.reporting.tables import (
        comparison_table,
        markdown,
        seeds_sentence,
        settings_table,
    )

    if out is not None:
        check_out(out)
    content = run(
        runs,
        named=group or (),
        baseline=baseline,
        metrics=common.words(metrics),
        force=force,
        resamples=bootstrap,
        seed=seed,
    )
    written = write_comparison(content, out) if out else []
    if as_json:
        show(plain(content), as_json)
        return
    typer.echo(seeds_sentence(content) + "\n")
    if settings := settings_table(content):
        typer.echo(markdown(settings))
    typer.echo(markdown(comparison_table(content)))
    for path in written:
        typer.echo(str(path))


@app.command(
    "import-model",
    example="import-model biovil weights.pt --text models/cxr-bert --out models/biovil",
)
def import_model(
    kind: Annotated[
        str,
        "biovil, biovil_t, chexzero, open_clip, gloria, medclip, siglip, clip, rad_dino, "
        "carzero, radzero, conns, cxr_clip, mgca, kad, medklip or afloc.",
    ],
    weights: Annotated[Path, "The published checkpoint; for siglip, clip, rad_dino a folder."],
    out: Annotated[Path, option("Model folder to write.")],
    text: Annotated[Path | None, "BERT folder; for CLIP, its tokenizer's merges file."] = None,
    config: Annotated[
        Path | None,
        "open_clip_config.json (open_clip), preprocessor_config.json (radzero, conns), "
        "questions as JSON (kad, medklip).",
    ] = None,
    score: Annotated[
        str, "Of gloria: whole, local (words and regions) or both, as published."
    ] = "whole",
    levels: Annotated[
        str | None, "Grey levels of 8-bit files: stretched or as_stored; default published."
    ] = None,
    fit: Annotated[str | None, "Square by pad, crop or squash; default as published."] = None,
    self_test: Annotated[
        bool, "Store scores that are checked whenever the model is loaded."
    ] = False,
    as_json: common.AsJson = False,
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
