"""A model as a bundle of MONAI: ``python -m monai.bundle run`` classifies radiographs with it."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from medclip_debias import __version__
from medclip_debias.files import atomic_folder, write_json
from medclip_debias.models.load import load_model
from medclip_debias.models.synthetic import synthetic_warning
from medclip_debias.settings_files import load_yaml

FORM = "monai-bundle"


def export_bundle(model: Path, out: Path) -> dict[str, Any]:
    """Write ``configs/metadata.json``, ``configs/inference.json`` and the model in ``models/``.

    Run it with ``python -m monai.bundle run --config_file OUT/configs/inference.json --bundle_root
    OUT --images "['radiograph.dcm']"`` where this package is installed: it prints the table of
    `medclip_debias.Model.zero_shot`, and writes it to ``OUT/output/zero_shot.csv``.

    Args:
        model: model folder, also of another group's model.
        out: folder to write; what is there is replaced.

    Returns:
        ``warning``, that the model knows synthetic images alone, or None; ``parity``, empty: the
        bundle runs the same weights by the same code.
    """
    network = load_model(Path(model))
    files = load_yaml(Path(__file__).with_name("bundle.yaml"))
    metadata, packages = files["metadata"], ("monai", "torch", "numpy")
    side = network.preprocessing.input_size
    metadata["network_data_format"]["inputs"]["image"]["spatial_shape"] = [side, side]
    metadata |= {"version": __version__, "changelog": {__version__: "exported"}}
    metadata |= {f"{name.replace('torch', 'pytorch')}_version": version(name) for name in packages}
    metadata["required_packages_version"] = {"medclip-debias": __version__}
    metadata["content_hash"] = network.content_hash
    with atomic_folder(Path(out)) as folder:
        shutil.copytree(model, folder / "models")
        (folder / "configs").mkdir()
        write_json(folder / "configs" / "metadata.json", metadata)
        write_json(folder / "configs" / "inference.json", files["inference"])
    return {"warning": synthetic_warning(network.provenance), "parity": {}}
