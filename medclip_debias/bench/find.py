"""Which archive below a folder a card is about: every place is looked at once.

The folder itself, the names that cards say an archive usually has, and whatever else lies right
below. A place is taken for a card when the format of its archive recognises it; which of several
is taken depends on names and on how sure the format is, never on the order of a directory.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from medclip_debias.bench.card import Card
from medclip_debias.data.sources.registry import Sure, formats
from medclip_debias.data.synthetic import is_phantom
from medclip_debias.errors import UserError


class Archives:
    """The archives below ``root``."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise UserError(f"{root}: there is no such folder; give the one that holds archives.")
        below = sorted(path for path in root.iterdir() if not path.name.startswith("."))
        self.root, self.places = root, [root, *below]
        self._how_sure = cache(_how_sure)

    def of(self, card: Card) -> Path:
        """The archive of a card."""
        kind = card.data.archive
        if kind not in formats():
            raise UserError(f"this version knows no archive '{kind}'; take a newer one.")
        hinted = [path for name in card.data.folders if (path := self.root / name).exists()]
        other = [path for path in self.places if path not in hinted]
        found: list[tuple[bool, int, Path]] = []
        odd: list[UserError] = []
        for path in (*hinted, *other):
            try:
                sure = self._how_sure(path, kind)
            except UserError as error:  # two releases in one folder
                odd.append(error)
                continue
            if sure > Sure.FILES or (sure == Sure.FILES and self._nothing_surer(path, kind)):
                found.append((path in hinted, int(sure), path))
        fitting = [each for each in found if is_phantom(each[2]) == card.data.synthetic]
        if fitting:  # the first of the best: a hinted name before a sure format before the order
            return max(fitting, key=lambda each: each[:2])[2]
        if odd:
            raise odd[0]
        title = "phantom" if card.data.synthetic else formats()[kind].title
        obtain = card.data.obtain.rstrip(".")
        if found:
            place = found[0][2]
            what = "a phantom, and the card is of real radiographs"
            if card.data.synthetic:
                what = "real, and the card is of generated radiographs"
            raise UserError(f"{place}: is {what}; what the card needs is: {obtain}.")
        raise UserError(f"{self.root}: there is no {title} here; get it: {obtain}.")

    def _nothing_surer(self, path: Path, kind: str) -> bool:
        return all(
            self._how_sure(path, other) <= Sure.FILES for other in formats() if other != kind
        )


def _how_sure(path: Path, kind: str) -> Sure:
    """How sure the format ``kind`` is of a place."""
    try:
        sure = formats()[kind].reader.recognise(path)
    except OSError:  # a folder of somebody else
        return Sure.NO
    # Any file at all: a manifest would be tried on it.
    return Sure.NO if path.is_file() and sure == Sure.FILES else sure
