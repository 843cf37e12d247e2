"""What the authors of a peer say of its use; it is shown at the import and kept in the folder."""

from __future__ import annotations

from collections.abc import Mapping

from medclip_debias.models.peers.settings import Kind

UNKNOWN = "not stated here; see where the weights are from"
LICENCES: Mapping[Kind, str] = {
    "carzero": "Apache-2.0 (its repository; the weights carry no statement of their own)",
    "radzero": "CC BY-NC 4.0: no commercial use",
    "conns": "its repository states none; ask the authors before any use but research, and see "
    "the terms of RAD-DINO-MAIRA-2 (MSRLA: research alone) inside of it",
    "cxr_clip": "CC BY-NC-SA 4.0 (its repository): no commercial use, changes under the same",
    "mgca": "its repository states none; ask the authors before any use but research",
}


def licence_of(kind: Kind) -> str:
    """The licence line of a kind."""
    return LICENCES.get(kind, UNKNOWN)
