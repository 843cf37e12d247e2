"""One door for every model folder: this project's, and the peers'."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from medclip_debias.config import Preprocessing, validate
from medclip_debias.errors import UserError
from medclip_debias.models.limits import read_model_json
from medclip_debias.models.peers.settings import PeerPreprocessing
from medclip_debias.settings_files import load_yaml

if TYPE_CHECKING:
    import torch

    from medclip_debias.models.interface import ImageTextModel


def expected_images(folder: Path) -> Preprocessing:
    """Read the preprocessing that a model folder (or a peer's) was saved with."""
    peer, own = folder / "peer.yaml", folder / "config.json"
    if peer.is_file():
        content = load_yaml(peer)
        part = content.get("preprocessing", {})
        return validate(PeerPreprocessing, part, str(peer), "preprocessing.")
    if not own.is_file():
        inside = folder / "model"
        hint = f"; {inside} is one" if (inside / "config.json").is_file() else ""
        raise UserError(
            f"{folder}: is not a model folder: it has no config.json or peer.yaml{hint}."
        )
    content = read_model_json(own)
    if "preprocessing" not in content:
        raise UserError(
            f"{own}: does not say how images are prepared, so it is not a model of this project;"
            " give the folder 'model' of a run."
        )
    return validate(Preprocessing, content["preprocessing"], str(own), "preprocessing.")


def load_model(
    folder: Path, device: str | torch.device = "cpu", *, check: bool = True
) -> ImageTextModel:
    """Read a model folder, ready for evaluation: a peer if it holds ``peer.yaml``.

    ``check`` encodes its golden samples and warns if they moved (`medclip_debias.models.golden`);
    ``device`` is as for `medclip_debias.models.device.best_device`.
    """
    from medclip_debias.models.device import best_device

    place = best_device(device)
    if (Path(folder) / "peer.yaml").is_file():
        from medclip_debias.models.peers.peer import Peer

        return Peer.load(Path(folder), place, check=check)
    from medclip_debias.models.dual_encoder import DualEncoder

    return DualEncoder.load(Path(folder), place, check=check)
