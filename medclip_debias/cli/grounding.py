"""Verbs that show and find: ground, index, search, view."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from medclip_debias.cli import common
from medclip_debias.cli.common import app, argument, given, note, option, progress, show, warn
from medclip_debias.errors import UserError, counted


@app.command(
    example="ground runs/demo/model image.dcm --text 'Left pleural effusion.' --out maps",
    panels={
        "Maps and boxes": "method smoothing sharpen local threshold share suppress min_area boxes",
        "Pictures": "colormap alpha contour scale limits max_side legend beside maps",
        "From and to clinical systems": "dicomweb study query dicom_out kinds",
    },
)
def ground(
    model: common.ModelFolder,
    out: Annotated[Path, option("Folder for PNG overlays and NPY maps.")],
    images: Annotated[
        list[Path] | None, argument("DICOM, JPG or PNG files, folders, DICOMDIRs, or lists (.txt).")
    ] = None,
    text: Annotated[list[str] | None, "A sentence; may be repeated."] = None,
    sentences: Annotated[Path | None, "File of sentences, one per line."] = None,
    method: Annotated[
        str, "How maps are computed: similarity, gradcam or occlusion."
    ] = "similarity",
    smoothing: Annotated[
        float, "Sigma of a Gaussian over the regions, in cells; 0 for none."
    ] = 0.0,
    threshold: Annotated[
        float | None, "Score (a cosine) from which boxes are found and drawn."
    ] = None,
    share: Annotated[float | None, "Share of each map's range from which boxes are found."] = None,
    suppress: Annotated[
        bool, "No box for a sentence that is not in the image, after 'evaluate suppression'."
    ] = False,
    sharpen: Annotated[str, "Sharper maps: none, contrast, redundant, prune or findings."] = "none",
    min_area: Annotated[float, "Pixels that a found region must have."] = 1.0,
    boxes: Annotated[Path | None, "MS-CXR or COCO file of reference boxes to draw."] = None,
    colormap: Annotated[str, "Colours, by matplotlib's name."] = "inferno",
    alpha: Annotated[float, "Opacity of the highest score, 0 to 1."] = 0.55,
    contour: Annotated[list[float] | None, "Draw a line at this score; may be repeated."] = None,
    scale: Annotated[
        str,
        "Colours: one (a scale that begins at the score of absent findings), image (the range"
        " of all maps), or each (every map's own range).",
    ] = "one",
    limits: Annotated[
        tuple[float, float] | None, "Scores at the two ends of the colours, to compare images."
    ] = None,
    max_side: Annotated[int, "Longer side of the pictures, pixels; 0 for the original's."] = 1024,
    legend: Annotated[bool, "Colour bar, key and caption."] = True,
    beside: Annotated[bool, "The radiograph without its map on the left."] = True,
    maps: Annotated[bool, "Write the maps as NPY files too."] = True,
    local: Annotated[bool, "GLoRIA's attention of words instead of cosines."] = False,
    dicomweb: Annotated[
        str | None, "Fetch radiographs from this DICOMweb server, as https://HOST/dicom-web."
    ] = None,
    study: Annotated[list[str] | None, "Study instance UID to fetch; may be repeated."] = None,
    query: Annotated[
        list[str] | None,
        "Condition on the studies to fetch, as StudyDate=20260101; may be repeated.",
    ] = None,
    dicom_out: Annotated[Path | None, "Folder for results that go to a PACS."] = None,
    kinds: Annotated[
        str | None, option("Results for --dicom-out: sr, seg, json; default sr,json.", "--as")
    ] = None,
    device: common.Device = "auto",
    as_json: common.AsJson = False,
) -> None:
    """Show where in an image sentences are seen."""
    from medclip_debias.config import validate
    from medclip_debias.data.dicomweb.receive import fetch
    from medclip_debias.grounding.dicom_out.deliver import deliver_to
    from medclip_debias.grounding.files import GroundOptions, ground_files
    from medclip_debias.grounding.find import find_images
    from medclip_debias.grounding.sentences import checked_sentences, cut_notes, read_sentences
    from medclip_debias.grounding.suppression import read_rule
    from medclip_debias.grounding.validation import NOT_MEASURED, maps_warning
    from medclip_debias.models.load import load_model

    style = {"colormap": colormap, "alpha": alpha, "contours": contour or []}
    style |= {"legend": legend, "beside": beside, "max_side": max_side}
    content: dict[str, Any] = {"smoothing": smoothing, "threshold": threshold, "scale": scale}
    content |= {"share": share, "sharpen": sharpen, "method": method}
    content |= {"min_area": min_area, "limits": limits, "maps": maps, "style": style}
    options = validate(GroundOptions, content, "the command line")
    texts = checked_sentences([*(text or ()), *(read_sentences(sentences) if sentences else ())])
    deliver = deliver_to(dicom_out, common.words(kinds), suppress or options.finds_boxes)
    files = fetch(dicomweb, out / "received", study or (), query or (), note)
    if images or not files:
        files += find_images(images or (), note)
    encoder = load_model(model, device)
    rule = read_rule(model, encoder) if suppress else None
    unmeasured = maps_warning(model, encoder.content_hash, method, sharpen)
    if local:
        from medclip_debias.models.peers.peer import score_by_words

        score_by_words(encoder)
        unmeasured = NOT_MEASURED
    for line in cut_notes(encoder, texts):
        note(line)
    with progress("Images") as advance:
        drawn: dict[str, Any] = {"boxes": boxes, "progress": advance}
        drawn |= {"rule": rule, "deliver": deliver, "maps_warning": unmeasured}
        result = ground_files(encoder, files, texts, out, options, **drawn)
    warn(result["warning"])
    if result["maps"]:
        note(result["maps"])
    for entry in result["rejected"]:
        note(f"skipped: {entry['reason']}")
    for line in result["boxes_left_aside"]:
        note(line)
    for reason, count in (result["delivered"] or {}).get("left_out", {}).items():
        note(f"{reason} ({counted(count, 'image')}).")
    if as_json:
        show(result, as_json)
    elif len(result["images"]) == 1:
        show({row["text"]: row["picture"] for row in result["images"][0]["sentences"]}, as_json)
    else:
        counts = {"images": len(result["images"]), "rejected": len(result["rejected"])}
        show({"groundings": str(out / "groundings.json"), **counts}, as_json)


@app.command(example="index runs/demo/model data/prepared --out runs/demo/index")
def index(
    model: common.ModelFolder,
    prepared: common.PreparedFolder,
    out: Annotated[Path, option("Folder of the index.")],
    settings: Annotated[
        list[str] | None, option("A setting, as landmarks=500 kind=ivf; may be repeated.", "--set")
    ] = None,
    sentences: Annotated[
        Path | None, "File of further sentences to learn from, beside the set's."
    ] = None,
    seed: common.Seed = 0,
    device: common.Device = "auto",
    overwrite: common.Overwrite = False,
    as_json: common.AsJson = False,
) -> None:
    """Index a prepared set for search.

    A run that was killed resumes when the same command is given again.
    """
    from medclip_debias.config import validate
    from medclip_debias.grounding.search.build import build_index, headline
    from medclip_debias.grounding.search.learn import IndexSettings
    from medclip_debias.settings_files import apply_overrides

    content = apply_overrides({"seed": seed}, settings or [])
    chosen = validate(IndexSettings, content, "the command line")
    with progress("Steps") as advance:
        meta = build_index(
            model,
            prepared,
            out,
            chosen,
            sentences=sentences,
            device=device,
            overwrite=overwrite,
            progress=advance,
        )
    show({"index": str(out), **(meta if as_json else headline(meta))}, as_json)


@app.command(example="search runs/demo/index --text 'Left pleural effusion.' -k 5")
def search(
    index: Annotated[Path, "Folder that 'index' wrote."],
    text: Annotated[str | None, "A sentence to look for."] = None,
    image: Annotated[Path | None, "A DICOM, JPG or PNG file to look for."] = None,
    k: Annotated[int, option("Results.", "-k", min=1)] = 10,
    candidates: Annotated[
        int | None, option("Images ranked exactly; default as measured by 'index'.", min=1)
    ] = None,
    ranking: Annotated[str, "Second stage of --image: regions, or global for none."] = "regions",
    model: Annotated[Path | None, "Model folder, if it was moved since."] = None,
    device: common.Device = "auto",
    as_json: common.AsJson = False,
) -> None:
    """Find images by a sentence or by an image."""
    from medclip_debias.grounding.search.query import search as run

    query = given(text=text, image=image, candidates=candidates, model=model)
    results = run(index, k=k, ranking=ranking, device=device, say=note, **query)
    warn(results["warning"])
    if as_json:
        show(results, as_json)
        return
    for hit in results["hits"]:
        typer.echo(f"{hit['rank']:>4}  {hit['score']:.4f}  {hit['image_id']}  {hit['study_id']}")


@app.command(example="view runs/demo/model --images data/phantom/files")
def view(
    model: common.ModelFolder,
    index: Annotated[Path | None, "Folder that 'index' wrote with this model."] = None,
    images: Annotated[Path | None, "Folder of radiographs to choose from."] = None,
    beside: Annotated[Path | None, "Folder of a second model, to show beside the first."] = None,
    boxes: Annotated[Path | None, "MS-CXR or COCO file with true boxes of --images."] = None,
    method: Annotated[
        list[str] | None,
        "Maps by similarity (default), gradcam or occlusion; a second one for --beside.",
    ] = None,
    calibration: Annotated[
        list[Path] | None, "File of 'calibrate' for one of the models; may be repeated."
    ] = None,
    host: Annotated[str | None, option("Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[
        int | None, option("Port; 0 for a free one.", min=0, max=65535, show_default="7860")
    ] = None,
    socket: Annotated[
        Path | None, "Listen on a unix socket at this path instead, which only you can open."
    ] = None,
    allow_host: Annotated[
        list[str] | None, "A name under which browsers may open the page, besides localhost."
    ] = None,
    token_file: Annotated[
        Path | None,
        "File with a token of your own; else $MEDCLIP_DEBIAS_VIEWER_TOKEN, else a new"
        " random one, which is printed.",
    ] = None,
    no_token: Annotated[bool, "Let in everyone who can reach the page."] = False,
    device: common.Device = "auto",
    as_json: common.AsJson = False,
) -> None:
    """Show on a web page where a model sees sentences.

    With an index its images can be searched, too. Ctrl-C ends it.
    """
    import secrets

    from medclip_debias.viewer.serve import LOOPBACK, PORT, check_installed, read_token, serve

    check_installed()
    if socket is not None and (host is not None or port is not None):
        raise UserError("give either --socket or --host and --port, not both.")
    if no_token and token_file is not None:
        raise UserError("give either --token-file or --no-token, not both.")
    own_token = None if no_token else read_token(token_file)
    token = None if no_token else own_token or secrets.token_urlsafe(32)
    from medclip_debias.viewer.answers import Answers

    answers = Answers.open(
        model,
        index,
        images,
        device,
        note,
        beside=beside,
        boxes=boxes,
        calibrations=calibration or (),
        methods=method or (),
    )
    for warning in dict.fromkeys(one.warning for one in answers.models):
        warn(warning)

    def say(line: str) -> None:
        if not as_json:
            typer.echo(line)
        elif line.startswith(("http:", "unix socket")):
            show({"address": line}, as_json)
        else:
            note(line)

    serve(
        answers,
        socket or (host or LOOPBACK, PORT if port is None else port),
        token,
        show_token=own_token is None,
        allowed=allow_host or [],
        say=say,
    )
