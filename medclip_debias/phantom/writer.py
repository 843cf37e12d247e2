"""Write a phantom in the layout of an archive, all or nothing."""

from __future__ import annotations

import os
from pathlib import Path

from medclip_debias.errors import UserError
from medclip_debias.files import atomic_folder
from medclip_debias.phantom.layout import LAYOUTS, Progress
from medclip_debias.phantom.settings import PhantomSettings


def generate(
    out: Path,
    settings: PhantomSettings,
    progress: Progress | None = None,
    workers: int | None = None,
) -> dict[str, int]:
    """Generate a phantom in the folder ``out``; the same settings give the same bytes.

    Args:
        out: folder to make; it may exist only when it is empty.
        settings: of the phantom.
        progress: called with (studies done, all studies).
        workers: processes; the number of CPUs by default. It changes nothing but the time.

    Returns:
        Counts: patients, studies, images, sentences; in MIMIC-CXR's layout phrases and boxes.

    Raises:
        UserError: there is no such layout, or ``out`` exists and is not empty, or it cannot be
            written.
    """
    out = Path(out)
    layout = LAYOUTS.find(settings.layout, "the settings of the phantom", "layout")(settings)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists already and is not an empty folder; choose another one.")
    try:
        with atomic_folder(out) as unfinished:
            return layout.generate(
                unfinished, layout.settings, progress, workers or os.cpu_count() or 1
            )
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}).") from error
