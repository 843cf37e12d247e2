"""The two components of gradio that deal in files, without the files. Imports gradio."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Sequence
from typing import Any

import gradio as gr
from gradio.component_meta import ComponentMeta
from gradio.components.gallery import GalleryData, GalleryImage
from gradio.data_classes import ImageData


class _Unwritten(ComponentMeta):
    """Gradio writes a stub file beside the module of each new component; not of these."""

    def __new__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> Any:
        return ABCMeta.__new__(cls, name, bases, attributes)


class Upload(gr.File, metaclass=_Unwritten):
    """A place to drop a file; what it gives to a handler is the random name of an upload.

    Gradio's own would take any path from the client (`calls.Calls` lets none through to it).
    """

    is_template = True  # shown by the script of the class above

    @property
    def data_model(self) -> None:
        """None: what a client sends is never written to a file."""

    @data_model.setter
    def data_model(self, value: Any) -> None:
        del value  # the class above sets its own

    def preprocess(self, payload: Any) -> str | None:
        """Give the random name on."""
        return payload if isinstance(payload, str) else None

    def postprocess(self, value: Any) -> None:
        """Show nothing: the file is gone once it was read."""
        del value

    def api_info(self) -> dict[str, Any]:
        """What gradio writes about it in the page's configuration."""
        return {"type": "string"}


class Pictures(gr.Gallery, metaclass=_Unwritten):
    """Pictures that are served from memory (`sessions.Sessions`), by name and caption."""

    is_template = True

    def postprocess(self, value: Sequence[tuple[str, str]] | None) -> GalleryData:
        """Make addresses of names; there are no files, so gradio copies and serves none."""
        return GalleryData(
            root=[
                GalleryImage(
                    image=ImageData(
                        path=None,
                        url=f"pictures/{name}.png",
                        mime_type="image/png",
                        orig_name=f"{number}.png",
                    ),
                    caption=caption,
                )
                for number, (name, caption) in enumerate(value or [])
            ]
        )
