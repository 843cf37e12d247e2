"""The page: components, and handlers that turn what is clicked into `Answers` and back."""

from __future__ import annotations

import contextlib
import functools
import html
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.errors import UserError
from medclip_debias.grounding.files import GroundOptions
from medclip_debias.grounding.overlay import OverlayStyle
from medclip_debias.viewer.answers import Answers, ClassRow, Film, Found, Look

if TYPE_CHECKING:
    from gradio import Blocks

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
# Seconds that an opened film stays in memory, and how long the pictures of it stay on the disk; the
# disk is looked through every so often.
FILM_LIVES = PICTURES_LIVE = 4 * 3600
CLEAN_EVERY = 300

STYLE = """
.facts {font-size: .9rem; line-height: 1.5} .facts b {display: inline-block; min-width: 4rem}
.notice {padding: .4rem .7rem; border-left: 4px solid #3b82f6; margin: 0}
.notice.wrong {border-color: #dc2626; font-weight: 600}
/* Each picture has its own caption; one laid over a film would hide a corner of it. */
#pictures .caption-label {display: none}
footer {display: none !important}
"""

# Picture and caption, as gradio's gallery takes them.
Shown = tuple[Any, str]
Handler = Callable[..., tuple[Any, ...]]


def build(answers: Answers, uploads: Path) -> Blocks:
    """Make the page.

    Args:
        answers: what it asks.
        uploads: folder where the web library puts uploads; a file is removed from it as soon as
            it was read.
    """
    import gradio as gr

    handlers = Handlers(answers, uploads)
    with gr.Blocks(
        title=TITLE,
        analytics_enabled=False,
        delete_cache=(CLEAN_EVERY, PICTURES_LIVE),
        fill_width=True,
    ) as page:
        _block(_head(answers))
        film = gr.State(None, time_to_live=FILM_LIVES)
        with gr.Row():
            with gr.Column(scale=1, min_width=320):
                upload = gr.File(
                    label="Radiograph (DICOM, JPG, PNG)",
                    height=140,
                    elem_id="upload",
                )
                choice = gr.Dropdown(
                    choices=list(answers.films),
                    value=None,
                    label="or one of the folder",
                    visible=bool(answers.films),
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
                    [("each sentence's own", "own"), ("one for all", "image")],
                    value="own",
                    label="Range of the colours",
                )
            with gr.Column(scale=3):
                status = _block(_notice("Give a radiograph and write a sentence."))
                pictures = gr.Gallery(
                    label="Film and heatmaps",
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
                by_film = gr.Button("Search by the film above")
            told = _block()
            hits = gr.Gallery(
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
        searched = [told, hits, hit_rows]
        opened = [film, *shown, classes, *searched]
        uploaded = [upload, choice, *opened]
        one_at_a_time: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}
        upload.upload(
            handlers.opened,
            [upload, *drawing],
            uploaded,
            api_name="open",
            **one_at_a_time,
        )
        choice.input(
            handlers.chosen, [choice, *drawing], opened, api_name="choose", **one_at_a_time
        )
        look.click(handlers.looked, [film, *drawing], shown, api_name="look", **one_at_a_time)
        redraw = [threshold.release, alpha.release, boxed.input, scale.input]
        gr.on(redraw, handlers.redrawn, [film, *drawing], shown, api_name="redraw", **one_at_a_time)
        by_text.click(
            handlers.by_sentence, [query, count], searched, api_name="search", **one_at_a_time
        )
        query.submit(
            handlers.by_sentence, [query, count], searched, api_name=False, **one_at_a_time
        )
        by_film.click(
            handlers.by_film, [film, count], searched, api_name="search_film", **one_at_a_time
        )
    return page


def _told(empty: tuple[Any, ...]) -> Callable[[Handler], Handler]:
    """Turn an error into one sentence on the page, with nothing of the last answer beside it.

    Args:
        empty: what the outputs after the sentence become; those before it are in `Handlers`.
    """

    def wrap(handler: Handler) -> Handler:
        @functools.wraps(handler)
        def told(self: Handlers, *inputs: Any) -> tuple[Any, ...]:
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

        return told

    return wrap


_SENTENCE = object()
_NO_LOOK: tuple[Any, ...] = (_SENTENCE, [], [])
_NO_FILM: tuple[Any, ...] = (None, *_NO_LOOK, [], "", [], [])


class Handlers:
    """What happens on a click; each returns values for the page's components in their order."""

    def __init__(self, answers: Answers, uploads: Path) -> None:
        self._answers = answers
        self._uploads = uploads.resolve()

    @_told((None, None, *_NO_FILM))
    def opened(self, path: str | None, *drawing: Any) -> tuple[Any, ...]:
        """Read an upload, remove its file, and show it."""
        if path is None:
            raise UserError("give a DICOM, JPG or PNG file.")
        file = Path(path)
        try:
            film = self._answers.read(file)
        finally:
            if file.resolve().is_relative_to(self._uploads):
                file.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    file.parent.rmdir()  # it has this one file, unless another session is quick
        return (None, None, *self._film(film, drawing))

    def chosen(self, name: str | None, *drawing: Any) -> tuple[Any, ...]:
        """Read one of the folder's films and show it; a list that was only looked at is no wish."""
        return self._chosen(name, *drawing) if name else _unchanged(len(_NO_FILM))

    @_told(_NO_FILM)
    def _chosen(self, name: str, *drawing: Any) -> tuple[Any, ...]:
        return self._film(self._answers.choose(name), drawing)

    def _film(self, film: Film, drawing: Sequence[Any]) -> tuple[Any, ...]:
        height, width = film.shape
        rows = class_table(self._answers.classes(film))
        if str(drawing[0] or "").strip():
            shown = self.looked(film, *drawing)
        else:
            words = f"{film.name}: {width} x {height} pixels."
            shown = (_notice(words), [_film_picture(film)], [])
        return (film, *shown, rows, "", [], [])

    @_told(_NO_LOOK)
    def looked(self, film: Film | None, *drawing: Any) -> tuple[Any, ...]:
        """Show where the sentences are seen on the film."""
        found = _given(film)
        look = self._answers.look(found, str(drawing[0] or ""), ground_options(*drawing[1:]))
        height, width = found.shape
        words = " ".join([f"{found.name}: {width} x {height} pixels.", *look.notes])
        return _notice(words), [_film_picture(found), *_pictures(look)], sentence_table(look)

    def redrawn(self, film: Film | None, *drawing: Any) -> tuple[Any, ...]:
        """Draw again after a change of how; before there is anything to draw, change nothing."""
        if film is None or not str(drawing[0] or "").strip():
            return _unchanged(len(_NO_LOOK))
        return self.looked(film, *drawing)

    @_told((_SENTENCE, [], []))
    def by_sentence(self, text: str | None, count: float) -> tuple[Any, ...]:
        """Search the index by a sentence."""
        return self._hits(self._answers.find_sentence(text or "", int(count)), "the sentence")

    @_told((_SENTENCE, [], []))
    def by_film(self, film: Film | None, count: float) -> tuple[Any, ...]:
        """Search the index by the film."""
        found = _given(film)
        return self._hits(self._answers.find_film(found, int(count)), found.name)

    def _hits(self, found: Sequence[Found], asked: str) -> tuple[Any, ...]:
        from PIL import Image

        shown = [
            (Image.fromarray(one.image), f"{one.hit.rank}: {one.hit.score:.3f}")
            for one in found
            if one.image is not None
        ]
        rows = [[h.rank, f"{h.score:.4f}", h.image_id, h.study_id] for h in (f.hit for f in found)]
        total = len(self._answers.index or ())
        return _notice(f"{len(found)} of {total:,} images for {asked}, best first."), shown, rows


def ground_options(boxed: bool, threshold: float, alpha: float, scale: str) -> GroundOptions:
    """The page's controls as options of the drawing."""
    return GroundOptions(
        threshold=threshold if boxed else None,
        scale="image" if scale == "image" else "own",
        style=OverlayStyle(alpha=alpha),
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


def _given(film: Film | None) -> Film:
    if film is None:
        raise UserError("give a radiograph first.")
    return film


def _film_picture(film: Film) -> Shown:
    from PIL import Image

    return Image.fromarray(film.small()), "Film"


def _pictures(look: Look) -> list[Shown]:
    from PIL import Image

    return [
        (Image.open(io.BytesIO(picture)), f"{row['text']} ({row['score']:.2f})")
        for picture, row in zip(look.pictures, look.rows, strict=True)
    ]


def _head(answers: Answers) -> str:
    lines = "".join(
        f"<div><b>{html.escape(name)}</b> {html.escape(value)}</div>"
        for name, value in answers.described()
    )
    return f"<h2>{TITLE}</h2><div class='facts'>{lines}<div><b></b> {RESEARCH}</div></div>"


def _block(content: str = "") -> Any:
    """A place for HTML of ours. Gradio's own HTML component would want leave to run any script."""
    import gradio as gr

    return gr.Markdown(content, latex_delimiters=[], container=False)


def _notice(sentence: str, *, wrong: bool = False) -> str:
    if not sentence:
        return ""
    kind, role = ("notice wrong", "alert") if wrong else ("notice", "status")
    return f"<p class='{kind}' role='{role}'>{html.escape(sentence)}</p>"
