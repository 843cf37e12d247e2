"""Verbs that write a prepared set or what goes with it: phantom, prepare, merge, claims."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medclip_debias.cli import common
from medclip_debias.cli.common import app, note, option, progress, show, words

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet


class ImageFormat(StrEnum):
    """File format of the phantom's images."""

    dicom = "dicom"
    jpg = "jpg"


@app.command(example="phantom data/phantom --studies 500")
def phantom(
    out: Annotated[Path, "Folder to write."],
    studies: Annotated[int, "Number of studies."] = 3000,
    seed: common.Seed = 0,
    image_format: Annotated[
        ImageFormat, option("Format of the images.", "--format")
    ] = ImageFormat.dicom,
    options: Annotated[
        list[str] | None, option("A setting, as key=value; may be repeated.", "--set")
    ] = None,
    workers: common.Workers = None,
    as_json: common.AsJson = False,
) -> None:
    """Generate a synthetic archive whose truth is known."""
    from medclip_debias.config import validate
    from medclip_debias.phantom import PhantomSettings, generate
    from medclip_debias.settings_files import apply_overrides

    content: dict[str, Any] = {"studies": studies, "seed": seed, "format": image_format.value}
    settings = validate(
        PhantomSettings, apply_overrides(content, options or []), "the command line"
    )
    with progress("Studies") as advance:
        counts = generate(out, settings, progress=advance, workers=workers)
    show({"phantom": str(out), **counts}, as_json)


def _list_sources(asked: bool) -> None:
    """Print what can be prepared, what to give and what it needs; then end."""
    if asked:
        from medclip_debias.data.sources.registry import formats

        for one in formats().values():
            typer.echo(f"{one.kind}: {one.give}. Needs {one.needs}.".replace("`", ""))
        raise typer.Exit


@app.command(
    example="prepare data/phantom data/prepared --size 128",
    panels={
        "Pixels": "for_model size clip equalize window fit resample levels",
        "Which images": "views blank_view multi_view without_sentence seed",
        "Reports and labels": "reports report_set language labels label_sentences phrases",
        "Splits": "split_seed split_file all_test",
        "The source, and how to work": "_sources kind tables text_only shard workers cluster update"
        " overwrite",
    },
)
def prepare(
    context: typer.Context,
    source: Annotated[Path, "Folder or file; --sources lists the kinds."],
    out: Annotated[Path, "Folder of the prepared set."],
    for_model: Annotated[
        Path | None, option("Model folder: prepare the images as this model expects them.", "--for")
    ] = None,
    size: Annotated[int, "Side of the stored square, pixels."] = 512,
    clip: Annotated[tuple[float, float], "Percentiles at which intensities are clipped."] = (
        0.5,
        99.5,
    ),
    equalize: Annotated[bool, "Histogram equalisation, as MIMIC-CXR-JPG."] = False,
    window: Annotated[str, "DICOM window to apply: the first one, or none."] = "first",
    fit: Annotated[
        str, "Square by padding, cutting the longer side, or squashing: pad, crop, squash."
    ] = "pad",
    resample: Annotated[str, "Filter: area, or a peer's bilinear, bicubic or lanczos."] = "area",
    levels: Annotated[str, "Grey levels of 8-bit files: stretched, or as_stored."] = "stretched",
    views: Annotated[
        str | None, "Views to take: frontal (default), lateral, all, or names as AP,PA,LL."
    ] = None,
    blank_view: Annotated[str, "Images whose view is blank: exclude or include."] = "exclude",
    multi_view: Annotated[str, "Studies of several views: all, one_at_random or pa_first."] = "all",
    without_sentence: Annotated[
        str, "Studies without a sentence: keep_for_evaluation, keep or drop."
    ] = "keep_for_evaluation",
    seed: Annotated[int, option("Seed of one_at_random.", min=0)] = 0,
    reports: Annotated[Path | None, "Folder or archive of reports that are kept elsewhere."] = None,
    report_set: Annotated[
        list[str] | None,
        option(
            "Setting of the reports, as sections=[impression]; may be repeated.",
            "--report-set",
        ),
    ] = None,
    language: Annotated[str, "Language of the reports: en, es, or auto for the source's."] = "auto",
    labels: Annotated[str, "Automatic labels: chexpert or negbio."] = "chexpert",
    split_seed: Annotated[
        int | None, "Split patients by this seed, not the source's split."
    ] = None,
    split_file: Annotated[
        Path | None, "Split file (split.csv of a prepared set) to split by."
    ] = None,
    all_test: Annotated[bool, "Put every image into test: nothing is trained on it."] = False,
    label_sentences: Annotated[
        bool, "Write sentences from the labels for studies without a report."
    ] = False,
    phrases: Annotated[Path | None, "File of boxes; detected automatically in most sets."] = None,
    kind: Annotated[str, "One of those that --sources lists, or auto."] = "auto",
    tables: Annotated[
        Path | None, "Folder of MIMIC-CXR's tables, when they are not beside the images."
    ] = None,
    text_only: Annotated[bool, "Prepare the reports alone, without any image."] = False,
    shard: Annotated[str | None, "Do part i of n, as 1/8; then 'merge' the parts."] = None,
    _sources: Annotated[
        bool,
        option(
            "List the kinds of sources, what to give and what each needs; then exit.",
            "--sources",
            callback=_list_sources,
            is_eager=True,
        ),
    ] = False,
    workers: common.Workers = None,
    cluster: common.Cluster = None,
    update: Annotated[bool, "Add what is new in the source to the set at OUT."] = False,
    overwrite: common.Overwrite = False,
    as_json: common.AsJson = False,
) -> None:
    """Read an archive into a prepared set, and count every step.

    A run that was killed resumes when the same command is given again.
    """
    values = locals()
    from medclip_debias.data.prepare import prepare as run
    from medclip_debias.data.prepare import prepare_part
    from medclip_debias.front.preparation import PrepareOptions, parsed_options
    from medclip_debias.settings_files import apply_overrides

    options = {
        name: values[name]
        for name in PrepareOptions.__annotations__
        # By its name: typer may bring a click of its own, with another class of the same.
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    if views is not None:
        options["views"] = words(views)
    options["report_set"] = apply_overrides({}, report_set or [])
    settings, how = parsed_options(options, for_model, "the command line")
    if for_model is not None and not as_json:
        note(f"Images are prepared as {for_model} expects them: {settings.command_line()}.")
    how |= {"workers": workers, "cluster": cluster, "overwrite": overwrite}
    how["say"] = None if as_json else note
    with progress("Reports, images") as advance:
        how["progress"] = advance
        if shard is not None:
            counts = prepare_part(source, out, settings, shard, update=update, **how)
        else:
            prepared = run(source, out, settings, update=update, **how)
            if for_model is not None and not all_test and not as_json:
                test = prepared.meta["counts"]["images_by_split"].get("test", 0)
                note(
                    f"{test} of {prepared.funnel[0]['kept']} images are in test and can be"
                    " evaluated as such; --all-test puts every image there."
                )
    if shard is not None:
        show({"part": str(out), **counts}, as_json)
    else:
        _show_set(out, prepared, as_json)


def _show_set(out: Path, prepared: PreparedSet, as_json: bool) -> None:
    """Write the set's page, and show its counts."""
    from medclip_debias.reporting.prepared_page import write_prepared_page

    page = {"page": str(write_prepared_page(prepared))}
    show({"prepared": str(out), **prepared.summary, **page}, as_json, funnel=prepared.funnel)


@app.command(example="merge data/part1 data/part2 data/prepared")
def merge(
    parts: Annotated[list[Path], "Folders that 'prepare --shard' wrote."],
    out: Annotated[Path, "Folder of the prepared set."],
    overwrite: common.Overwrite = False,
    as_json: common.AsJson = False,
) -> None:
    """Join the shards of a prepared set; same bytes as one run."""
    from medclip_debias.data.prepare import merge as run

    _show_set(out, run(parts, out, overwrite=overwrite), as_json)


@app.command(example="claims data/prepared --lexicon english")
def claims(
    prepared: common.PreparedFolder,
    lexicon: Annotated[
        str | None, "YAML file, or the name of a packaged one: english, phantom."
    ] = None,
    table: Annotated[Path | None, "Claims from another program (CSV or Parquet)."] = None,
    cluster: common.Cluster = None,
    as_json: common.AsJson = False,
) -> None:
    """Store which findings each sentence claims."""
    from medclip_debias.data.text.claims.table import FILE, claim_set

    with progress("Sentences") as advance:
        counts = claim_set(prepared, lexicon, table, advance, cluster)
    show({"claims": str(prepared / FILE), **counts}, as_json)
