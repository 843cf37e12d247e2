"""Label maps: what the label columns of one archive say of another's classes.

A model's prompt set names classes; the set it is tested on may have label columns of other names,
and of other meanings. A map has a rule for every class that the columns decide, and the reason for
every class that they do not. Those of this folder are named as the archive whose columns they read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, model_validator

from medclip_debias.config import Settings, json_hash, validate
from medclip_debias.data.label_maps.rules import Floats, Rule, read_rule
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.settings_files import load_yaml

NO_RULE = "the label map has no rule for it"

Rules = Annotated[Rule, PlainValidator(read_rule), PlainSerializer(str, when_used="json")]


class LabelMap(Settings):
    """A label map as its YAML file has it.

    Attributes:
        name: in results and messages.
        about: whose columns it reads, and what they are.
        kinds: kinds of source that it was written for.
        classes: class of a prompt set to its rule.
        left_out: a reason, and the classes that it keeps from being judged.
        spellings: name of a column in this file to other names that it may have.
        rare: columns that a part of the archive may lack because nothing in it has the finding;
            such a column counts as 0 where another one of the rule is there. ``all`` of them.
        contradictory: ``refuse`` images whose columns say both present and absent, or leave them
            ``blank``; either way they are counted.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: str = Field(min_length=1)
    about: str = ""
    kinds: tuple[str, ...] = ()
    classes: dict[str, Rules] = Field(min_length=1)
    left_out: dict[str, tuple[str, ...]] = Field({})
    spellings: dict[str, tuple[str, ...]] = Field({})
    rare: tuple[str, ...] | Literal["all"] = ()
    contradictory: Literal["refuse", "blank"] = "refuse"

    @model_validator(mode="after")
    def _names_fit(self) -> LabelMap:
        twice = next((name for name in self.reasons if name in self.classes), None)
        if twice is not None:
            raise ValueError(f"the class '{twice}' has a rule and is left out; keep one")
        columns = {name for rule in self.classes.values() for name in rule.columns()}
        rare = () if self.rare == "all" else self.rare
        for part, names in (("spellings", tuple(self.spellings)), ("rare", rare)):
            unused = next((name for name in names if name not in columns), None)
            if unused is not None:
                hint = did_you_mean(unused, columns)
                raise ValueError(f"'{unused}' of {part} is in no rule{hint}")
        return self

    @property
    def reasons(self) -> dict[str, str]:
        """Class that is left out to the reason."""
        return {name: why for why, names in self.left_out.items() for name in names}

    @property
    def digest(self) -> str:
        """16 hex digits naming its content."""
        return json_hash(self.model_dump(mode="json"))

    def bind(self, columns: Sequence[str], classes: Sequence[str], where: str) -> Bound:
        """Find the columns of its rules among those of a table."""
        judged = [name for name in classes if name in self.classes]
        if not judged:
            raise UserError(
                f"the label map '{self.name}' has no rule for {', '.join(classes)}"
                f"{did_you_mean(classes[0], self.classes)}; it has rules for: "
                f"{', '.join(self.classes)}."
            )
        bound = Bound(self)
        for name in classes:
            if name not in self.classes:
                bound.not_judged[name] = self.reasons.get(name, NO_RULE)
        for name in judged:
            wanted = self.classes[name].columns()
            found = {column: self._find(column, name, columns, where) for column in wanted}
            if any(found.values()):
                bound.rules[name] = self.classes[name]
                bound.columns |= {column: at for column, at in found.items() if at is not None}
                lacking = [column for column, at in found.items() if at is None]
                bound.lacking += [column for column in lacking if column not in bound.lacking]
            else:
                bound.not_judged[name] = (
                    f"none of its rule's columns is there ({', '.join(wanted)})"
                )
        if not bound.rules:
            why = "; ".join(f"{name}: {bound.not_judged[name]}" for name in judged)
            raise UserError(
                f"{where}: has no column that the label map '{self.name}' reads ({why}); give the"
                " map of the archive that the labels are from."
            )
        return bound

    def _find(self, column: str, class_name: str, columns: Sequence[str], where: str) -> str | None:
        """The table's name of a column; ``None`` for a rare one that is not there."""
        names = (column, *self.spellings.get(column, ()))
        exact = next((name for name in names if name in columns), None)
        if exact is not None:
            return exact
        plain = {_plain(name) for name in names}
        alike = [name for name in columns if _plain(name) in plain]
        if len(alike) > 1:
            raise UserError(
                f"{where}: the columns '{alike[0]}' and '{alike[1]}' may both be '{column}' of the"
                f" label map '{self.name}'; write the name of the one that is meant into the map."
            )
        if not alike and self.rare != "all" and column not in self.rare:
            there = f"its label columns are: {', '.join(columns)}" if columns else "it has none"
            raise UserError(
                f"{where}: has no column '{column}', which the label map '{self.name}' names for"
                f" '{class_name}'{did_you_mean(column, columns)}; {there}."
            )
        return alike[0] if alike else None


@dataclass
class Bound:
    """A label map whose columns were found in a table.

    Attributes:
        label_map: the map.
        rules: of the classes that can be judged.
        not_judged: the other classes, each with the reason.
        columns: column in the map to column of the table.
        lacking: rare columns that the table lacks.
        counts: per class how many images are present, absent, uncertain, blank, and blank for a
            contradiction; after `values`.
    """

    label_map: LabelMap
    rules: dict[str, Rule] = field(default_factory=dict)
    not_judged: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)

    def values(
        self, read: Callable[[str], Floats], row_of: Callable[[int], str]
    ) -> dict[str, Floats]:
        """Return 1, 0, -1 or NaN for each class and image."""

        @cache
        def column(name: str) -> Floats:
            at = self.columns.get(name)
            if at is None:
                return np.zeros(len(read(next(iter(self.columns.values())))))
            return np.asarray(read(at), dtype=np.float64)

        found = {}
        for name, rule in self.rules.items():
            values, both = rule.values(column)
            if both.any() and self.label_map.contradictory == "refuse":
                first = int(np.flatnonzero(both)[0])
                raise UserError(
                    f"{row_of(first)}: '{name}' is both present and absent by the label map"
                    f" '{self.label_map.name}' ({rule}), as it is for {int(both.sum())} of"
                    f" {len(both)} images; correct the rule, or write 'contradictory: blank' into"
                    " the map to leave them out, counted."
                )
            found[name] = values
            self.counts[name] = {
                "present": int((values == 1).sum()),
                "absent": int((values == 0).sum()),
                "uncertain": int((values == -1).sum()),
                "blank": int(np.isnan(values).sum()),
                "contradictory": int(both.sum()),
            }
        return found

    def left_aside(self) -> str:
        """Return a sentence on the classes and images that it leaves without a label, or ``""``."""
        parts = [f"{name} ({why})" for name, why in self.not_judged.items()]
        parts += [
            f"{name} on {count['contradictory']} images (both present and absent, left blank)"
            for name, count in self.counts.items()
            if count["contradictory"]
        ]
        about = f"The label map '{self.label_map.name}' leaves out: "
        return f"{about}{', '.join(parts)}." if parts else ""

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.label_map.name,
            "hash": self.label_map.digest,
            "columns": self.columns,
            "lacking_columns": self.lacking,
            "contradictory": self.label_map.contradictory,
            "classes": {
                name: {"rule": str(rule)} | self.counts.get(name, {})
                for name, rule in self.rules.items()
            },
            "not_judged": self.not_judged,
        }


def _plain(name: str) -> str:
    """Capitals, underscores and repeated blanks aside.

    >>> _plain("Pleural_Thickening ")
    'pleural thickening'
    """
    return " ".join(name.replace("_", " ").split()).casefold()


def packaged_maps() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("*.yaml"))


def load_label_map(source: Path | str) -> LabelMap:
    """Read a label map: by the name of one that comes along, or by its file."""
    packaged = packaged_maps()
    if str(source) in packaged:
        return _packaged_map(str(source))
    path = Path(source)
    if not path.is_file() and path.suffix not in (".yaml", ".yml"):
        hint = did_you_mean(str(source), packaged)
        raise UserError(
            f"{source}: is neither a packaged label map{hint} ({', '.join(packaged)}) nor a"
            " YAML file."
        )
    return validate(LabelMap, {"name": path.stem} | load_yaml(path), str(path))


@cache
def _packaged_map(name: str) -> LabelMap:
    path = Path(__file__).with_name(f"{name}.yaml")
    return validate(LabelMap, load_yaml(path), f"{path.name} of the package")


def maps_for(kind: str | None) -> list[LabelMap]:
    """Return the maps that come along and were written for sets of this kind of source."""
    return [found for found in map(load_label_map, packaged_maps()) if kind in found.kinds]
