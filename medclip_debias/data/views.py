"""View positions by what they show: frontal, lateral, another projection, or nothing stated.

Archives name the same view in many ways (``LATERAL``, ``LL``, ``L``, ``XTABLE LATERAL``). These
lists hold the names of MIMIC-CXR, CheXpert, PadChest, BRAX, Open-i and DICOM (PS3.3, C.8.11.1,
View Position); case, ``_`` and ``-`` do not matter.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from medclip_debias.config import ALL_VIEWS, FRONTAL_VIEWS, LATERAL_VIEW, plain_view

Views = Literal["frontal", "all"]
"""Which images are judged: the frontal ones, or all of the set."""
ViewClass = Literal["frontal", "lateral", "other", "blank"]
CLASSES: tuple[ViewClass, ...] = ("frontal", "lateral", "other", "blank")

_FRONTAL = frozenset(map(plain_view, FRONTAL_VIEWS))
_LATERAL = frozenset({"LATERAL", "LAT", "L", "LL", "RL", "LLAT", "RLAT"})
_OTHER = frozenset(
    {
        *("LLD", "RLD", "DECUBITUS", "LLDECUB", "RLDECUB"),
        *("LAO", "RAO", "LPO", "RPO", "LLO", "RLO", "OBLIQUE"),
        *("AXIAL", "LORDOTIC", "TANGENTIAL", "SWIMMERS", "COSTAL"),
    }
)
"""Words that name another projection, also beside a word of the other two lists."""


def view_class(view: str) -> ViewClass:
    """Return what an image of this view position shows.

    >>> [view_class(view) for view in ("pa_erect", "XTABLE LATERAL", "AP LLD", "RAO", "")]
    ['frontal', 'lateral', 'other', 'other', 'blank']
    """
    name = plain_view(view)
    if not name:
        return "blank"
    if name in _FRONTAL:
        return "frontal"
    words = set(name.split())
    return "lateral" if words & _LATERAL and not words & _OTHER else "other"


def is_chosen(view: str, views: Collection[str]) -> bool:
    """Tell whether ``views`` (as `SelectionSettings` has them) take a view that is stated.

    >>> is_chosen("LL", ["PA", "lateral"]), is_chosen("LL", ["PA"]), is_chosen("LL", ["all"])
    (True, False, True)
    """
    names = {plain_view(name) for name in views}
    if ALL_VIEWS in names or plain_view(view) in names:
        return True
    return LATERAL_VIEW in names and view_class(view) == "lateral"


def is_frontal(view: str, views: Collection[str] = ()) -> bool:
    """Tell whether an image of the set counts as frontal.

    Those are the frontal views, images whose view is blank (somebody chose to take them), and
    views under a name that no list knows, if ``views`` names it: an archive's own word.

    >>> is_frontal("PA"), is_frontal("LL"), is_frontal("thorax pa"), is_frontal("RAO", ["RAO"])
    (True, False, False, False)
    >>> is_frontal("thorax pa", ["Thorax PA"])
    True
    """
    kind = view_class(view)
    if kind != "other":
        return kind != "lateral"
    name = plain_view(view)
    return not set(name.split()) & _OTHER and name in {plain_view(given) for given in views}
