"""One door for every model folder: this project's, and the peers'."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from medclip_debias.models.interface import ImageTextModel

if TYPE_CHECKING:
    import torch


def load_model(
    folder: Path, device: str | torch.device = "cpu", *, check: bool = True
) -> ImageTextModel:
    """Read a model folder, ready for evaluation: a peer if it holds ``peer.yaml``.

    Args:
        folder: where it is.
        device: where the model shall be.
        check: encode its golden samples, and warn if they moved (`medclip_debias.models.golden`).

    Raises:
        UserError: no such folder, or one that holds no whole model of this format.
    """
    if (Path(folder) / "peer.yaml").is_file():
        from medclip_debias.models.peers.peer import Peer, score_by_words

        peer = Peer.load(Path(folder), device, check=check)
        if peer.settings.score != "whole":
            score_by_words(peer, peer.settings.score)
        return peer
    from medclip_debias.models.dual_encoder import DualEncoder

    return DualEncoder.load(Path(folder), device, check=check)
