"""An archive's own labels as columns, and the CheXpert columns that some of them amount to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path

from medclip_debias.data.labels import Labels, label_name
from medclip_debias.settings_files import load_yaml

PADCHEST_SILENT = frozenset(("unchanged", "exclude", "suboptimal study"))
"""Labels of PadChest that do not say what is there: alone they leave every other one open."""


@cache
def label_groups(archive: str) -> Mapping[str, frozenset[str]]:
    """Return the labels that mean each CheXpert column, as ``label_groups.yaml`` has them."""
    groups = load_yaml(Path(__file__).with_name("label_groups.yaml"))[archive]
    return {column: frozenset(labels) for column, labels in groups.items()}


class LabelColumns:
    """The label columns of an archive: CheXpert's by their groups, then its own.

    A label that CheXpert has under the same name makes no column of its own.
    """

    def __init__(
        self,
        names: Iterable[str],
        groups: Mapping[str, frozenset[str]],
        silent: Collection[str] = (),
    ) -> None:
        self.own = sorted(name for name in set(names) if label_name(name) is None)
        self.groups = groups
        self.silent = frozenset(silent)

    def says_what_is_there(self, found: Collection[str]) -> bool:
        """Tell whether a study's labels allow to call the others absent."""
        return bool(set(found) - self.silent)

    def values(self, found: Collection[str]) -> Labels:
        """Return 1 for what was found, 0 for the rest, ``None`` where nothing says it is absent."""
        absent = 0.0 if self.says_what_is_there(found) else None
        given = set(found)
        labels: Labels = {
            name: 1.0 if members & given else absent for name, members in self.groups.items()
        }
        return labels | {name: 1.0 if name in given else absent for name in self.own}
