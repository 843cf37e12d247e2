"""The image files that were meant by files, folders and lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path

from medclip_debias.data.images.contents import (
    files_of_directory,
    is_dicom_directory,
    why_no_radiograph,
)
from medclip_debias.data.sources.image_files import walk_files
from medclip_debias.errors import UserError
from medclip_debias.grounding.sentences import read_lines

_SHOWN = 8

Say = Callable[[str], None]


def find_images(places: Sequence[Path], say: Say | None = None) -> list[Path]:
    """Image files: those given, those in given folders, those listed in given files.

    A folder stands for every radiograph below it, in the order of their names, also behind links
    to other folders; each folder is entered once. The content of a file decides, not its name:
    exports of a PACS have names without suffix, and reports, presentation states and images of
    other modalities beside the radiographs (`why_no_radiograph`). A DICOMDIR stands for the images
    that it lists, a ``.txt`` file for the paths in it, one a line, relative to its folder.
    """
    files: list[Path] = []
    for place in map(Path, places):
        if place.is_dir():
            closed: list[Path] = []
            below = list(walk_files(place, closed.append))
            more: dict[str, Sized] = {"folders that cannot be listed": closed}
            none = "holds no DICOM, JPG or PNG file{there}."
            files += sorted(_radiographs(place, below, more, none, say))
        elif place.suffix.lower() == ".txt":
            names = read_lines(place, "image", "paths")
            files += [place.parent / name for name in names]
        elif is_dicom_directory(place):
            try:
                listed, outside = files_of_directory(place)
            except Exception as error:  # damaged records surface as any of a dozen exception types
                raise UserError(
                    f"{place}: the DICOMDIR is damaged ({type(error).__name__}); give its folder."
                ) from None
            more = {"listed outside its folder": range(outside)}
            none = "lists no radiograph{there}; give its folder."
            files += _radiographs(place, listed, more, none, say)
        else:
            files.append(place)
    if not files:
        raise UserError("No image was given; name image files, a folder, or a list (.txt).")
    return list(dict.fromkeys(files))


def _radiographs(
    place: Path, files: Sequence[Path], more: Mapping[str, Sized], none: str, say: Say | None
) -> list[Path]:
    """The files that may be radiographs; ``more`` of others is counted with those.

    ``none`` is what is said of a place without any, what else there is being ``{there}``.
    """
    reasons = {file: why_no_radiograph(file) for file in files}
    aside = Counter(reason for reason in reasons.values() if reason)
    aside.update({reason: len(those) for reason, those in more.items() if len(those)})
    commonest = aside.most_common(_SHOWN)
    kinds = ", ".join(f"{count} {kind}" for kind, count in commonest)
    if len(aside) > _SHOWN:
        kinds += f", {aside.total() - sum(count for _, count in commonest)} others"
    images = [file for file, reason in reasons.items() if not reason]
    if not images:
        there = f" (there are: {kinds})" if kinds else ""
        raise UserError(f"{place}: {none.format(there=there)}")
    if kinds and say is not None:
        say(f"{place}: skipped {kinds} (not radiographs).")
    return images
