"""Was a model trained on generated images? Then what it says of a patient's means nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

WARNING = (
    "This model was trained on synthetic images: what it says about a real radiograph means"
    " nothing."
)


def trained_on_synthetic(provenance: Mapping[str, Any]) -> bool | Literal["unknown"]:
    """What a provenance says of the images, in ``synthetic`` or as ``data.synthetic``.

    >>> trained_on_synthetic({"synthetic": True}), trained_on_synthetic({"steps": 5})
    (True, 'unknown')
    """
    data = provenance.get("data")
    of_data = data.get("synthetic") if isinstance(data, Mapping) else None
    stated = provenance.get("synthetic", of_data)
    return stated if isinstance(stated, bool) else "unknown"


def synthetic_warning(
    provenance: Mapping[str, Any], synthetic_data: bool | None = None
) -> str | None:
    """The sentence that must stand beside whatever a model says of some data, or None for none."""
    return WARNING if trained_on_synthetic(provenance) is True and not synthetic_data else None
