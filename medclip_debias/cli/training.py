"""Verbs that learn: language-model, score, train, losses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medclip_debias.cli import common
from medclip_debias.cli.common import app, argument, group, log_lines, note, option, progress, show
from medclip_debias.cli.help import USUAL, VerbGroup
from medclip_debias.errors import UserError

training = group("train", "Train a model, or resume a run that was stopped.", VerbGroup)


@app.command(
    "language-model",
    example="language-model data/prepared models/lm steps=500",
)
def language_model(
    prepared: Annotated[Path, "Prepared set; its train split is read."],
    out: Annotated[Path, "BERT folder to write."],
    settings: Annotated[list[str] | None, argument("Settings, as steps=500 hidden=64.")] = None,
    others: Annotated[
        list[Path] | None,
        option("Another set to read together with it; may be repeated.", "--with"),
    ] = None,
    as_json: common.AsJson = False,
) -> None:
    """Train a small BERT and its tokenizer on a set's sentences."""
    from medclip_debias.config import SetSettings, validate
    from medclip_debias.data.joint import open_prepared
    from medclip_debias.data.loader import training_corpus, training_patients
    from medclip_debias.data.verify import check_sample
    from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
    from medclip_debias.settings_files import apply_overrides

    content = apply_overrides({}, settings or [])
    chosen = validate(LanguageModelSettings, content, "the command line")
    sets = [SetSettings(path=path) for path in (prepared, *(others or ()))]
    data = open_prepared(sets if others else prepared)
    check_sample(data)
    provenance = {"data_hash": data.content_hash, "split": "train"}
    with progress("Steps") as advance:
        figures = train_masked_lm(
            training_corpus(data),
            out,
            chosen,
            patients_of=None if data.meta["synthetic"] else training_patients(data),
            provenance=provenance,
            progress=advance,
        )
    show({"language_model": str(out), **figures}, as_json)


@app.command(example="score data/prepared --language-model models/lm")
def score(
    prepared: Annotated[Path, "Prepared set to score."],
    language_model: Annotated[Path, option("BERT or CXR-BERT folder.")],
    cluster: common.Cluster = None,
    as_json: common.AsJson = False,
) -> None:
    """Store each sentence's log probability under a BERT."""
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.language.scoring import score_prepared

    data = PreparedSet.open(prepared)
    with progress("Masked tokens") as advance:
        figures = score_prepared(data, language_model, progress=advance, cluster=cluster)
    show({"scores": str(prepared / "scores.parquet"), **figures}, as_json)


@training.command(USUAL, example="train phantom/demo --loss debiased_0.05 train.steps=500")
def train(
    config: common.RunFile,
    settings: common.Overrides = None,
    loss: common.Loss = None,
    longer: Annotated[
        bool, option("Train a run for more steps: RUN train.steps=2000.", "--continue")
    ] = False,
    fresh: Annotated[bool, "Start over; drop checkpoints."] = False,
    allow_changed_data: Annotated[bool, "Resume although the data has changed."] = False,
    as_json: common.AsJson = False,
) -> None:
    """Train a model; run the same command again to resume (exit code 75: stopped by a signal).

    OUT/train.log holds every line, and `tensorboard --logdir OUT` shows curves and heatmaps.
    """
    from medclip_debias.training.signals import stop_signals

    if longer and fresh:
        raise UserError("give either --continue or --fresh, not both.")
    # Before the imports, which take longer than a container is given to stop.
    with stop_signals(at_once=True):
        from medclip_debias.evaluation.validation import validator_of
        from medclip_debias.training.distributed import Place, one_error_a_machine
        from medclip_debias.training.resolve import load_run
        from medclip_debias.training.train import train as run

        place = Place.from_environment()
        first = place.rank == 0
        with one_error_a_machine(place):
            chosen = load_run(config, settings or [], loss)
            limit = chosen.train.validate_images
            validator = validator_of(chosen.prepared, limit) if first else None
        with progress("Steps", lines=False) as advance:
            result = run(
                chosen,
                where=str(config),
                fresh=fresh,
                progress=advance,
                validator=validator,
                allow_changed_data=allow_changed_data,
                warn=common.must_know,
                say=note,
                line=log_lines(),
                longer=longer,
            )
    if not first:
        return
    if result.finished_before:
        gave_up = result.steps < chosen.train.steps
        needs = "a larger train.patience" if gave_up else f"train.steps above {result.steps}"
        more = f"; to continue it, give {needs}" if longer else ""
        note(f"{chosen.out}: this run has finished; its model was not changed{more}.")
    figures = {
        "steps": result.steps,
        "resumed_at": result.resumed_at,
        "loss": result.loss,
        "images_per_second": result.images_per_second,
        "kept": result.kept,
        "kept_step": result.kept_step,
    }
    if result.best is not None:
        figures |= {f"best_{chosen.train.best_metric}": result.best, "best_step": result.best_step}
    show({"model": str(result.model), **figures}, as_json)


@training.command(
    example="train features phantom/demo train.trainable.image=frozen train.features.cache=true"
)
def features(
    config: common.RunFile,
    settings: Annotated[
        list[str] | None, argument("Overrides, as train.features.dtype=fp16.")
    ] = None,
    loss: common.Loss = None,
    as_json: common.AsJson = False,
) -> None:
    """Compute the features of a run's frozen encoders ahead of `train`."""
    from medclip_debias.training.resolve import load_run
    from medclip_debias.training.step import store_features

    chosen = load_run(config, settings or [], loss)
    with progress("Rows") as advance:
        figures = store_features(chosen, str(config), note, advance)
    show(figures, as_json)


@app.command(example="losses --json")
def losses(as_json: common.AsJson = False) -> None:
    """List objectives, policies and the presets of `--loss`."""
    from medclip_debias.losses import describe
    from medclip_debias.losses.presets import TABLE_1, describe_presets

    listing, presets = describe(), describe_presets()
    if as_json:
        show({"losses": listing, "presets": presets}, as_json)
        return
    for entry in listing:
        typer.echo(f"{entry['kind']} ({entry['role']})\n  {entry['formula']}\n  {entry['paper']}")
        for name, default in entry["settings"].items():
            typer.echo(f"    {name} = {default}")
    typer.echo(f"\nPresets, for --loss NAME; rows are those of {TABLE_1}")
    for entry in presets:
        row = entry["table_1"]
        place = "not in the table" if row is None else f"row {row['row']}, {row['name']}"
        typer.echo(f"{entry['name']} ({place})\n  {entry['about']}\n  {entry['paper']}")
        if entry["advice"]:
            typer.echo(f"  {entry['advice']}")
