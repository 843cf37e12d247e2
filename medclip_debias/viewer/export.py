"""Results of the page as files: JSON, and DICOM objects through `dicom_out`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from medclip_debias.errors import UserError
from medclip_debias.grounding.dicom_out.deliver import DeliverTo, Delivery
from medclip_debias.grounding.dicom_out.objects import check_installed
from medclip_debias.viewer.answers import Answers, ViewedImage, checked_sentence

Kind = Literal["json", "seg", "sr"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_SENTENCES = 20


def export(
    answers: Answers,
    image: ViewedImage,
    number: int,
    sentences: Sequence[str],
    threshold: float | None,
    kind: Kind,
) -> tuple[str, bytes]:
    """Write what one model says of a radiograph as a file.

    Args:
        answers: what was asked.
        image: the radiograph.
        number: of the model, from 0.
        sentences: those on the page.
        threshold: score from which boxes are cut out of the maps; None for no boxes.
        kind: of file. ``json`` also holds the findings, with their probabilities.

    Returns:
        Name and content.

    Raises:
        UserError: nothing can be written, for a reason that it says.
    """
    texts = [checked_sentence(text) for text in sentences]
    _check(image, texts, threshold, kind)
    model, encoded = answers.models[number], image.encoded[number]
    groundings = model.ground(encoded, image.shape, texts)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        warning = " ".join(filter(None, (model.warning, model.maps_warning)))
        delivery = Delivery(DeliverTo(folder, (kind,)), model.model, warning)
        # There is no file at this path: what is known of the image is its `source`.
        none = folder / "image"
        files = delivery.write(
            none, folder, image.shape, model.rows(groundings, threshold), image.source
        )
        if not files:
            raise UserError(f"{'; '.join(delivery.left_out) or 'nothing was written'}.")
        (file,) = map(Path, files)
        content = file.read_bytes()
    if kind == "json":
        listed = json.loads(content) | {"findings": model.findings(encoded)}
        content = json.dumps(listed, indent=1, ensure_ascii=False).encode()
    return file.name, content


def _check(image: ViewedImage, texts: Sequence[str], threshold: float | None, kind: Kind) -> None:
    if not 0 < len(texts) <= MOST_SENTENCES:
        raise UserError(f"an export takes 1 to {MOST_SENTENCES} sentences, not {len(texts)}.")
    if kind == "json":
        return
    check_installed()
    if image.source is None:
        raise UserError(
            "this image is no DICOM file with the identifiers that DICOM results need; JSON can"
            " be exported."
        )
    if kind == "seg" and threshold is None:
        raise UserError("SEG holds boxes, and these are off; switch them on first.")
