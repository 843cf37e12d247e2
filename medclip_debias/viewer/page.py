"""The page: components, and handlers that turn what is clicked into `Answers` and back."""

from __future__ import annotations

import functools
import html
import io
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from medclip_debias.errors import UserError
from medclip_debias.grounding.files import GroundOptions
from medclip_debias.grounding.overlay import OverlayStyle
from medclip_debias.viewer.answers import Answers, ClassRow, Found, Look, ViewedImage
from medclip_debias.viewer.sessions import Sessions
from medclip_debias.viewer.uploads import Uploads

if TYPE_CHECKING:
    import numpy as np
    from gradio import Blocks
    from numpy.typing import NDArray

TITLE = "medclip-debias"
RESEARCH = "For research only, not for diagnosis."
SENTENCE_COLUMNS = [
    "Sentence",
    "Score",
    "Regions from",
    "to",
    "Highest at x, y",
    "Boxes (x y width height)",
]
CLASS_COLUMNS = ["Finding", "Probability", "Score present", "Score absent", "Prompts"]
HIT_COLUMNS = ["Rank", "Score", "Image", "Study"]
# Clicks that may wait for the model.
MOST_WAITING = 32

STYLE = """
.facts {font-size: .9rem; line-height: 1.5} .facts b {display: inline-block; min-width: 4rem}
.notice {padding: .4rem .7rem; border-left: 4px solid #3b82f6; margin: 0}
.notice.wrong {border-color: #dc2626; font-weight: 600}
/* Each picture has its own caption; one laid over a radiograph would hide a corner of it. */
#pictures .caption-label {display: none}
footer {display: none !important}
"""

# Picture and caption, as the page shows them; the former a PNG file, then the name it is served by.
Picture = tuple[bytes, str]
Shown = tuple[str, str]
Handler = Callable[..., tuple[Any, ...]]


def build(answers: Answers, sessions: Sessions, uploads: Uploads) -> Blocks:
    """Make the page.

    Args:
        answers: what it asks.
        sessions: where the radiograph and the pictures of each open page are.
        uploads: where files are that were sent; one is removed as soon as it was read.
    """
    import gradio as gr

    from medclip_debias.viewer.widgets import Pictures, Upload

    handlers = Handlers(answers, sessions, uploads)
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as page:
        _block(_head(answers))
        with gr.Row():
            with gr.Column(scale=1, min_width=320):
                upload = Upload(
                    label="Radiograph (DICOM, JPG, PNG)",
                    height=140,
                    elem_id="upload",
                )
                choice = gr.Dropdown(
                    choices=list(answers.images),
                    value=None,
                    label="or one of the folder",
                    visible=bool(answers.images),
                    elem_id="choice",
                )
                text = gr.Textbox(
                    label="Sentences, one a line",
                    placeholder="Left pleural effusion.\nNo pneumothorax.",
                    lines=4,
                    elem_id="sentences",
                )
                look = gr.Button("Show where", variant="primary")
                boxed = gr.Checkbox(label="Boxes where the score reaches", value=False)
                threshold = gr.Slider(-1, 1, value=0.3, step=0.01, label="Threshold (cosine)")
                alpha = gr.Slider(0, 1, value=0.55, step=0.05, label="Opacity of the heatmap")
                scale = gr.Radio(
                    [
                        ("one for all, above what absent findings score", "one"),
                        ("one for all, from the lowest", "image"),
                        ("each sentence's own", "each"),
                    ],
                    value="one",
                    label="Range of the colours",
                )
            with gr.Column(scale=3):
                status = _block(_notice("Give a radiograph and write a sentence."))
                pictures = Pictures(
                    label="Radiograph and heatmaps",
                    elem_id="pictures",
                    columns=2,
                    height="auto",
                    object_fit="contain",
                    format="png",
                    interactive=False,
                    buttons=["fullscreen", "download"],
                )
                sentences = gr.Dataframe(
                    headers=SENTENCE_COLUMNS, label="Sentences", interactive=False, wrap=True
                )
                classes = gr.Dataframe(
                    headers=CLASS_COLUMNS,
                    label="Zero-shot: the model's own prompts (not calibrated on your data)",
                    interactive=False,
                )
        with gr.Column(visible=answers.index is not None):
            _block("<h3>Search the index</h3>")
            with gr.Row():
                query = gr.Textbox(label="A sentence", scale=3, elem_id="query")
                count = gr.Slider(1, 50, value=10, step=1, label="Results")
                by_text = gr.Button("Search by sentence")
                by_image = gr.Button("Search by the radiograph above")
            result = _block()
            hits = Pictures(
                label="Images found (as prepared)",
                columns=5,
                height="auto",
                object_fit="contain",
                format="png",
                interactive=False,
                buttons=["fullscreen"],
            )
            hit_rows = gr.Dataframe(headers=HIT_COLUMNS, label="Results", interactive=False)

        drawing = [text, boxed, threshold, alpha, scale]
        shown = [status, pictures, sentences]
        searched = [result, hits, hit_rows]
        opened = [*shown, classes, *searched]
        one_at_a_time: dict[str, Any] = {
            "concurrency_id": "model",
            "concurrency_limit": 1,
            "api_visibility": "private",
        }

        def on(event: Any, handler: Handler, inputs: list[Any], outputs: list[Any]) -> None:
            event(
                _for_session(handler), inputs, outputs, api_name=handler.__name__, **one_at_a_time
            )

        on(upload.upload, handlers.opened, [upload, *drawing], [upload, choice, *opened])
        on(choice.input, handlers.chosen, [choice, *drawing], opened)
        on(look.click, handlers.looked, drawing, shown)
        redraw = [threshold.release, alpha.release, boxed.input, scale.input]
        on(functools.partial(gr.on, redraw), handlers.redrawn, drawing, shown)
        searches = functools.partial(gr.on, [by_text.click, query.submit])
        on(searches, handlers.by_sentence, [query, count], searched)
        on(by_image.click, handlers.by_image, [count], searched)
        # It makes the page hold a connection, whose end frees what is its own (`guard.Guard`).
        page.unload(_nothing)
        page.queue(max_size=MOST_WAITING)
    return page


def functions(page: Blocks) -> dict[int, list[Any]]:
    """Input components of each function that the page may call, by gradio's number of it."""
    called = {index: fn for index, fn in page.fns.items() if fn.fn is not _nothing}
    return {index: list(fn.inputs) for index, fn in called.items()}


def _nothing() -> None:
    pass


def _for_session(handler: Handler) -> Handler:
    """Give a handler the name of the session that asks, before its inputs."""
    import gradio as gr

    @functools.wraps(handler)
    def asked(request: Any, *inputs: Any) -> tuple[Any, ...]:
        return handler(str(request.session_hash), *inputs)

    # Gradio looks at the annotations to see what is wanted, and at a wrapped function for them.
    del asked.__wrapped__
    asked.__annotations__ = {"request": gr.Request}
    return asked


def _reported(empty: tuple[Any, ...]) -> Callable[[Handler], Handler]:
    """Turn an error into one sentence on the page, with nothing of the last answer beside it.

    Args:
        empty: what the outputs after the sentence become; those before it are in `Handlers`.
    """

    def wrap(handler: Handler) -> Handler:
        @functools.wraps(handler)
        def reporting(self: Handlers, *inputs: Any) -> tuple[Any, ...]:
            try:
                return handler(self, *inputs)
            except UserError as error:
                sentence = str(error)
            except Exception as error:
                # A traceback may quote what was uploaded or written, so it goes nowhere unasked.
                if os.environ.get("MEDCLIP_DEBIAS_DEBUG"):
                    raise
                sentence = f"internal error ({type(error).__name__}); please report it."
            before, after = empty[: empty.index(_SENTENCE)], empty[empty.index(_SENTENCE) + 1 :]
            return (*before, _notice(sentence, wrong=True), *after)

        return reporting

    return wrap


_SENTENCE = object()
_NO_LOOK: tuple[Any, ...] = (_SENTENCE, [], [])
_NO_IMAGE: tuple[Any, ...] = (*_NO_LOOK, [], "", [], [])


class Handlers:
    """What happens on a click; each returns values for the page's components in their order."""

    def __init__(self, answers: Answers, sessions: Sessions, uploads: Uploads) -> None:
        self._answers = answers
        self._sessions = sessions
        self._uploads = uploads

    @_reported((None, None, *_NO_IMAGE))
    def opened(self, session: str, upload: str | None, *drawing: Any) -> tuple[Any, ...]:
        """Read an upload, remove its file, and show it."""
        self._clear(session)
        if upload is None:
            raise UserError("give a DICOM, JPG or PNG file.")
        try:
            image = self._answers.read(self._uploads.path(upload, session))
        finally:
            self._uploads.remove(upload)
        return (None, None, *self._opened(session, image, drawing))

    def chosen(self, session: str, name: str | None, *drawing: Any) -> tuple[Any, ...]:
        """Read a radiograph of the folder and show it; without a name, change nothing."""
        return self._chosen(session, name, *drawing) if name else _unchanged(len(_NO_IMAGE))

    @_reported(_NO_IMAGE)
    def _chosen(self, session: str, name: str, *drawing: Any) -> tuple[Any, ...]:
        self._clear(session)
        return self._opened(session, self._answers.choose(name), drawing)

    def _opened(self, session: str, image: ViewedImage, drawing: Sequence[Any]) -> tuple[Any, ...]:
        rows = class_table(self._answers.classes(image))
        self._sessions.keep(session, image)
        if str(drawing[0] or "").strip():
            shown = self.looked(session, *drawing)
        else:
            pictures = self._show(session, "pictures", [_image_picture(image)])
            shown = (_notice(_size(image)), pictures, [])
        return (*shown, rows, "", [], [])

    @_reported(_NO_LOOK)
    def looked(self, session: str, *drawing: Any) -> tuple[Any, ...]:
        """Show where the sentences are seen on the radiograph."""
        found = self._given(session)
        look = self._answers.look(found, str(drawing[0] or ""), ground_options(*drawing[1:]))
        words = " ".join([_size(found), *look.notes])
        pictures = self._show(session, "pictures", [_image_picture(found), *_pictures(look)])
        return _notice(words), pictures, sentence_table(look)

    def redrawn(self, session: str, *drawing: Any) -> tuple[Any, ...]:
        """Draw again after a change of how; before there is anything to draw, change nothing."""
        if self._sessions.image(session) is None or not str(drawing[0] or "").strip():
            return _unchanged(len(_NO_LOOK))
        return self.looked(session, *drawing)

    @_reported((_SENTENCE, [], []))
    def by_sentence(self, session: str, text: str | None, count: float) -> tuple[Any, ...]:
        """Search the index by a sentence."""
        found = self._answers.find_sentence(text or "", int(count))
        return self._hits(session, found, "the sentence")

    @_reported((_SENTENCE, [], []))
    def by_image(self, session: str, count: float) -> tuple[Any, ...]:
        """Search the index by the radiograph."""
        given = self._given(session)
        return self._hits(session, self._answers.find_similar(given, int(count)), given.name)

    def _hits(self, session: str, found: Sequence[Found], asked: str) -> tuple[Any, ...]:
        pictures = [
            (_png(one.image), f"{one.hit.rank}: {one.hit.score:.3f}")
            for one in found
            if one.image is not None
        ]
        rows = [[h.rank, f"{h.score:.4f}", h.image_id, h.study_id] for h in (f.hit for f in found)]
        total = len(self._answers.index or ())
        words = f"{len(found)} of {total:,} images for {asked}, best first."
        return _notice(words), self._show(session, "hits", pictures), rows

    def _given(self, session: str) -> ViewedImage:
        image = self._sessions.image(session)
        if image is None:
            raise UserError(
                "give a radiograph first. One that was here before is freed when the connection"
                " to the page was lost, or after hours without use."
            )
        return image

    def _show(self, session: str, place: str, pictures: Sequence[Picture]) -> list[Shown]:
        names = self._sessions.show(session, place, [picture for picture, _ in pictures])
        return [(name, caption) for name, (_, caption) in zip(names, pictures, strict=True)]

    def _clear(self, session: str) -> None:
        """Free what is shown of the radiograph before, also where the new one cannot be read."""
        self._sessions.keep(session, None)
        for place in ("pictures", "hits"):
            self._sessions.show(session, place, [])


def ground_options(boxed: bool, threshold: float, alpha: float, scale: str) -> GroundOptions:
    """The page's controls as options of the drawing."""
    return GroundOptions(
        threshold=threshold if boxed else None,
        scale=scale if scale in ("image", "each") else "one",
        style=OverlayStyle(alpha=alpha, beside=False),  # the page shows it before them
    )


def sentence_table(look: Look) -> list[list[Any]]:
    """Rows of `SENTENCE_COLUMNS`."""
    return [
        [
            row["text"],
            f"{row['score']:.3f}",
            f"{row['lowest']:.3f}",
            f"{row['highest']:.3f}",
            ", ".join(f"{value:.0f}" for value in row["peak"]),
            "; ".join(
                f"{' '.join(f'{value:.0f}' for value in box['box'])} (mean {box['mean']:.2f})"
                for box in row["boxes"]
            ),
        ]
        for row in look.rows
    ]


def class_table(rows: Sequence[ClassRow]) -> list[list[Any]]:
    """Rows of `CLASS_COLUMNS`."""
    return [
        [
            row.name,
            "no scale" if row.probability is None else f"{row.probability:.3f}",
            f"{row.present:.3f}",
            f"{row.absent:.3f}",
            row.prompt_set,
        ]
        for row in rows
    ]


def _unchanged(count: int) -> tuple[Any, ...]:
    import gradio as gr

    return tuple(gr.skip() for _ in range(count))


def _size(image: ViewedImage) -> str:
    height, width = image.shape
    return f"{image.name}: {width} x {height} pixels."


def _image_picture(image: ViewedImage) -> Picture:
    return _png(image.small()), "Radiograph"


def _pictures(look: Look) -> list[Picture]:
    return [
        (picture, f"{row['text']} ({row['score']:.2f})")
        for picture, row in zip(look.pictures, look.rows, strict=True)
    ]


def _png(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def _head(answers: Answers) -> str:
    lines = "".join(
        f"<div><b>{html.escape(name)}</b> {html.escape(value)}</div>"
        for name, value in answers.described()
    )
    warning = _notice(answers.warning or "", wrong=True)
    return f"<h2>{TITLE}</h2>{warning}<div class='facts'>{lines}<div><b></b> {RESEARCH}</div></div>"


def _block(content: str = "") -> Any:
    """A place for HTML of ours. Gradio's own HTML component would want leave to run any script."""
    import gradio as gr

    return gr.Markdown(content, latex_delimiters=[], container=False)


def _notice(sentence: str, *, wrong: bool = False) -> str:
    if not sentence:
        return ""
    kind, role = ("notice wrong", "alert") if wrong else ("notice", "status")
    return f"<p class='{kind}' role='{role}'>{html.escape(sentence)}</p>"
