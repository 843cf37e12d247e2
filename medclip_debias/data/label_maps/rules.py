"""Rules of a label map: what the columns of an archive say of one class.

A rule is a column, a list of columns (any of them), or ``{any: [...]}``, ``{all: [...]}``,
``{not: [...]}`` of columns and further such rules; or ``present:`` with ``uncertain:``, ``blank:``
or ``absent:`` beside it, each a rule of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
How = Literal["any", "all", "not"]
Read = Callable[[str], Floats]
"""Gives the values of a column, ``[images]`` of 1, 0, -1 and NaN, by its name in the map."""

_HOW: tuple[How, ...] = ("any", "all", "not")
_SIDES = ("present", "uncertain", "blank", "absent")


@dataclass(frozen=True)
class Combined:
    """Several expressions as one: ``any`` of them, ``all`` of them, or ``not`` any of them."""

    how: How
    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        inner = ", ".join(f"({p})" if isinstance(p, Combined) else p for p in self.parts)
        return inner if self.how == "any" and len(self.parts) == 1 else f"{self.how} of {inner}"


Expression = str | Combined
"""A label column of the archive, or several of them."""


def columns_of(expression: Expression) -> Iterator[str]:
    if isinstance(expression, str):
        yield expression
    else:
        for part in expression.parts:
            yield from columns_of(part)


def values_of(expression: Expression, read: Read) -> Floats:
    """Return 1, 0, -1 or NaN for each image.

    An uncertain part leaves the whole uncertain where the others do not decide it, and a blank one
    leaves it blank where no uncertain one does (Kleene's three values, with two kinds of unknown).
    """
    if isinstance(expression, str):
        return read(expression)
    parts = np.stack([values_of(part, read) for part in expression.parts])
    decides = 0.0 if expression.how == "all" else 1.0
    found = np.full(parts.shape[1], 1.0 - decides)
    found[np.isnan(parts).any(axis=0)] = np.nan
    found[(parts == -1).any(axis=0)] = -1.0
    found[(parts == decides).any(axis=0)] = decides
    return np.where(found >= 0, 1.0 - found, found) if expression.how == "not" else found


@dataclass(frozen=True)
class Rule:
    """What makes a class present, uncertain, blank or absent.

    Attributes:
        present: where it is 1 the class is present.
        uncertain: where it is 1, and the class not present, the class is uncertain.
        blank: where it is 1, and the class neither of these, nothing is known of it.
        absent: where it is 1, and the class none of these, it is absent; elsewhere it is
            uncertain or blank. ``None``: absent where ``present`` is 0.
        why: why the rule is sound.
    """

    present: Expression
    uncertain: Expression | None = None
    blank: Expression | None = None
    absent: Expression | None = None
    why: str = ""

    def columns(self) -> list[str]:
        sides = (getattr(self, side) for side in _SIDES)
        return list(dict.fromkeys(name for side in sides if side for name in columns_of(side)))

    def values(self, read: Read) -> tuple[Floats, NDArray[np.bool_]]:
        """Return 1, 0, -1 or NaN for each image, and where the columns contradict each other.

        They do where ``present`` and ``absent`` both hold; the value there is NaN.
        """
        present = values_of(self.present, read)
        found = present.copy()
        both = np.zeros(len(found), dtype=bool)
        if self.absent is not None:
            absent = values_of(self.absent, read)
            unsure = (present == -1) | (absent == -1)
            found = np.where(unsure, -1.0, np.nan)
            found[absent == 1] = 0.0
            both = (present == 1) & (absent == 1)
        for side, value in ((self.blank, np.nan), (self.uncertain, -1.0)):
            if side is not None:
                found[values_of(side, read) == 1] = value
        found[present == 1] = 1.0
        found[both] = np.nan
        return found, both

    def __str__(self) -> str:
        sides = ((side, getattr(self, side)) for side in _SIDES[1:])
        words = (f"{side}: {value}" for side, value in sides if value is not None)
        return "; ".join((str(self.present), *words))


def read_rule(content: Any) -> Rule:
    """Read a rule as YAML has it.

    >>> str(read_rule({"present": ["Mass", "Nodule"], "blank": "Fibrosis"}))
    'any of Mass, Nodule; blank: Fibrosis'
    """
    if isinstance(content, Rule):
        return content
    why = ""
    if isinstance(content, Mapping):
        content = dict(content)
        why = content.pop("why", "")
        if not isinstance(why, str):
            raise ValueError("'why' must be a text")
        unknown = [str(key) for key in content if key not in (*_SIDES, *_HOW)]
        if unknown:
            raise ValueError(f"'{unknown[0]}' is not one of {', '.join((*_HOW, *_SIDES))}, why")
        if set(content) & set(_SIDES):
            if "present" not in content or set(content) & set(_HOW):
                raise ValueError(
                    "beside absent, uncertain or blank there must be 'present', and any, all or not"
                    " belong below them"
                )
            sides = {side: _expression(value) for side, value in content.items()}
            return Rule(**sides, why=why)
    return Rule(_expression(content), why=why)


def _expression(content: Any) -> Expression:
    if isinstance(content, str) and content.strip():
        return content.strip()
    if isinstance(content, list | tuple) and content:
        return Combined("any", tuple(_expression(part) for part in content))
    if isinstance(content, Mapping):
        if len(content) != 1 or next(iter(content)) not in _HOW:
            raise ValueError("must have one of any, all and not, and only one")
        how, parts = next(iter(content.items()))
        listed = parts if isinstance(parts, list | tuple) else [parts]
        if listed:
            return Combined(how, tuple(_expression(part) for part in listed))
    raise ValueError(
        "must name label columns as texts, as in {any: [Effusion]} (a name that YAML takes for a"
        " number or for yes or no needs quotes)"
    )
