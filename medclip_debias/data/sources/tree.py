"""Walking folders that people put together with links."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path


def walk_files(root: Path, closed: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """Yield every file under ``root`` in a stable order, following links to folders once.

    Image folders are often links to another disk, so links are followed; a folder that was
    visited already (a link that leads back up) is not entered again.
    """
    seen: set[tuple[int, int]] = set()

    def refused(error: OSError) -> None:
        if closed is not None:
            closed(Path(error.filename))

    for folder, names, files in os.walk(root, onerror=refused, followlinks=True):
        try:
            status = Path(folder).stat()
        except OSError:  # removed meanwhile, or a link to itself
            names.clear()
            continue
        if (status.st_dev, status.st_ino) in seen:
            names.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        names.sort()
        for name in sorted(files):
            yield Path(folder, name)


def is_file(path: Path) -> bool:
    """Tell whether ``path`` is a file; a name that no disk can hold is none, as is a link loop."""
    try:
        return path.is_file()
    except OSError:
        return False
