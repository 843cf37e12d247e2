"""Under which terms weights were published: what their folder says, or what is known of the kind.

The folder's own word goes first, since authors change terms (RAD-DINO's weights were released under
MSRLA and later under MIT).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from medclip_debias.errors import UserError
from medclip_debias.files import read_bytes

KNOWN: dict[str, str] = {
    "siglip": (
        "not said in the folder. MedSigLIP: Health AI Developer Foundations terms "
        "(developers.google.com/health-ai-developer-foundations/terms), which also bind what is "
        "made of it; SigLIP and SigLIP 2: Apache 2.0; others: the authors' page"
    ),
    "clip": "not said in the folder; the authors' page says it",
    "rad_dino": (
        "not said in the folder. RAD-DINO: MSRLA at first, MIT later, and not meant for clinical "
        "practice; the page you had it from says which"
    ),
    "carzero": "Apache-2.0 (its repository; the weights carry no statement of their own)",
    "radzero": "CC BY-NC 4.0: no commercial use",
    "conns": (
        "its repository states none; ask the authors before any use but research, and see the "
        "terms of RAD-DINO-MAIRA-2 (MSRLA: research alone) inside of it"
    ),
    "cxr_clip": "CC BY-NC-SA 4.0 (its repository): no commercial use, changes under the same",
    "kad": "MIT (its repository; the weights carry no statement of their own)",
    "medklip": "its repository states none; ask the authors before any use but research",
    "afloc": "Apache-2.0 (its repository; the weights carry no statement of their own)",
    "mgca": "its repository states none; ask the authors before any use but research",
}
"""By kind."""

UNKNOWN = "not said in the files; the authors' page says it"
_LARGEST = 4 << 20


def licence_line(kind: str, places: Mapping[str, Path | None]) -> str:
    """One line on the terms of published weights.

    Args:
        kind: of the model.
        places: files or folders that were imported, by what they are; the first whose folder has
            a model card (``README.md``) with a licence, or a ``LICENSE`` file, is believed.
    """
    for place in places.values():
        folder = place if place is None or place.is_dir() else place.parent
        said = None if folder is None else _card(folder / "README.md")
        if said:
            return f"{said} (README.md beside the weights)"
    for place in places.values():
        folder = place if place is None or place.is_dir() else place.parent
        for name in ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE"):
            if folder is not None and (folder / name).is_file():
                return f"see {name} beside the weights"
    return KNOWN.get(kind, UNKNOWN)


def _card(path: Path) -> str | None:
    """``license`` of a model card's front matter: name and link, or the short word."""
    try:
        card = read_bytes(path, "", limit=_LARGEST)
    except UserError:
        return None
    head, fence, rest = card.decode("utf-8", errors="replace").partition("---\n")
    front, end, _ = rest.partition("\n---")
    if head.strip() or not fence or not end:
        return None
    try:
        content: Any = yaml.safe_load(front)
    except yaml.YAMLError:
        return None
    if not isinstance(content, Mapping):
        return None
    named = content.get("license_name") or content.get("license")
    if isinstance(named, list):
        named = ", ".join(str(one) for one in named)
    if not isinstance(named, str) or not named.strip():
        return None
    link = content.get("license_link")
    words = f"{named}, {link}" if isinstance(link, str) and link else named
    return " ".join(words.split())[:300]
