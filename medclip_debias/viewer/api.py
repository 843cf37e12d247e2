"""What the page may ask, checked, and the answers as JSON; no web in here."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from medclip_debias.config import Settings
from medclip_debias.errors import UserError
from medclip_debias.grounding.overlay import BOX_COLOUR, FOUND_COLOUR, OverlayStyle
from medclip_debias.viewer.answers import MOST_HITS, Answers, Found, ViewedImage
from medclip_debias.viewer.export import KINDS, MOST_SENTENCES, Kind, export
from medclip_debias.viewer.sessions import Sessions

TITLE = "medclip-debias"
SESSION = r"[A-Za-z0-9]{16,64}"

Answer = dict[str, Any]
A = TypeVar("A", bound="_Asked")


class Refused(Exception):
    """A request that the page would not have sent; its text repeats nothing of it."""


class _Asked(Settings):
    session: Annotated[str, StringConstraints(pattern=f"^{SESSION}$")]


class _Choice(_Asked):
    name: str


class _Row(_Asked):
    row: int = Field(ge=0, lt=1 << 31)


class _Look(_Asked):
    image: str
    sentence: str


class _Search(_Asked):
    sentence: str | None = None
    image: str | None = None
    count: int = Field(10, ge=1, le=MOST_HITS)


class _Export(_Asked):
    image: str
    model: int = Field(0, ge=0, le=1)
    sentences: tuple[str, ...] = Field(max_length=MOST_SENTENCES)
    threshold: float | None = Field(None, ge=-1, le=1)
    kind: Kind


class Api:
    """Answers for the page's script.

    Args:
        answers: what is asked.
        sessions: the radiograph of each open page.
    """

    def __init__(self, answers: Answers, sessions: Sessions) -> None:
        self._answers = answers
        self._sessions = sessions
        self.posts: dict[str, Callable[[bytes], Answer | tuple[str, bytes]]] = {
            "choose": self.choose,
            "hit": self.hit,
            "look": self.look,
            "search": self.search,
            "export": self.export,
        }

    def about(self) -> Answer:
        """What the head of the page says, and what the page must know to draw."""
        answers = self._answers
        style = OverlayStyle()
        return {
            "title": TITLE,
            "models": [
                {
                    "name": one.name,
                    "lines": one.described(),
                    "warning": one.warning,
                    "kind": one.model.map_kind,
                }
                for one in answers.models
            ],
            "indexed": None if answers.index is None else len(answers.index),
            "images": list(answers.images),
            "exports": KINDS,
            "most_sentences": MOST_SENTENCES,
            "alpha": style.alpha,
            "colours": _colours(style.colormap),
            "boxes": {"true": BOX_COLOUR, "found": FOUND_COLOUR},
        }

    # ------------------------------------------------------------------------------- images

    def upload(self, session: str, path: Path) -> Answer:
        """Open a file that was sent."""
        self._sessions.clear(session)
        return self._opened(session, self._answers.read(path))

    def choose(self, body: bytes) -> Answer:
        """Open a radiograph of the folder."""
        asked = _asked(_Choice, body)
        self._sessions.clear(asked.session)
        return self._opened(asked.session, self._answers.choose(asked.name))

    def hit(self, body: bytes) -> Answer:
        """Open a search result."""
        asked = _asked(_Row, body)
        self._sessions.clear(asked.session)
        return self._opened(asked.session, self._answers.hit(asked.row))

    def _opened(self, session: str, image: ViewedImage) -> Answer:
        assert image.pixels is not None
        models = self._answers.opened(image)
        described = {
            "name": image.name,
            "dicom": image.source is not None,
            "phrases": [{"text": text, "boxes": boxes} for text, boxes in image.phrases],
            **image.pixels.described(),
        }
        return {"image": self._sessions.keep(session, image), **described, "models": models}

    # ------------------------------------------------------------------------------ answers

    def look(self, body: bytes) -> Answer:
        """Where a sentence is seen on the radiograph of the page."""
        asked = _asked(_Look, body)
        return {"models": self._answers.look(self._given(asked), asked.sentence)}

    def search(self, body: bytes) -> Answer:
        """Images of the index, by a sentence or by the radiograph of the page."""
        asked = _asked(_Search, body)
        if asked.image is None:
            found = self._answers.find_sentence(asked.sentence or "", asked.count)
        else:
            found = self._answers.find_similar(self._given(asked), asked.count)
        return {"hits": [_hit(one) for one in found]}

    def export(self, body: bytes) -> tuple[str, bytes]:
        """A file with the results: its name and content."""
        asked = _asked(_Export, body)
        image = self._given(asked)
        number = min(asked.model, len(self._answers.models) - 1)
        return export(self._answers, image, number, asked.sentences, asked.threshold, asked.kind)

    def prepared(self, row: int) -> bytes | None:
        """An image of the index as PNG; None where there is none."""
        from PIL import Image

        pixels = None if self._answers.index is None else self._answers.prepared_image(row)
        if pixels is None:
            return None
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        return stream.getvalue()

    def _given(self, asked: _Look | _Search | _Export) -> ViewedImage:
        found = self._sessions.image(asked.session, asked.image or "")
        if found is None:
            raise UserError(
                "open the radiograph again: the server has freed it, as the connection to the page"
                " was lost, or after hours without use."
            )
        return found


def sentence_of(error: Exception) -> str:
    """What the page says of an error; of an unforeseen one its kind alone.

    A traceback may quote what was uploaded or written, so it goes nowhere unasked.
    """
    if isinstance(error, UserError):
        return str(error)
    if os.environ.get("MEDCLIP_DEBIAS_DEBUG"):
        import traceback

        traceback.print_exception(error)
    return f"internal error ({type(error).__name__}); please report it."


def _asked(kind: type[A], body: bytes) -> A:
    try:
        return kind.model_validate_json(body, strict=True)
    except ValidationError:
        raise Refused("This is not a request of the page.") from None


def _hit(found: Found) -> Answer:
    return asdict(found.hit) | {"there": found.image is not None}


def _colours(name: str) -> list[list[int]]:
    """The 256 colours of a map, as red, green and blue."""
    from matplotlib import colormaps

    found: list[list[int]] = colormaps[name](range(256), bytes=True)[:, :3].tolist()
    return found
