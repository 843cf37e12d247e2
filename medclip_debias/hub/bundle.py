"""A model as a bundle of MONAI: ``python -m monai.bundle run`` classifies radiographs with it."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias import __version__
from medclip_debias.files import atomic_folder, write_json
from medclip_debias.models.load import load_model
from medclip_debias.models.synthetic import synthetic_warning

if TYPE_CHECKING:
    from medclip_debias.models.interface import ImageTextModel

FORM = "monai-bundle"

INFERENCE: dict[str, Any] = {
    "imports": ["$from pathlib import Path"],
    "bundle_root": ".",
    "images": [],
    "prompts": None,
    "device": "cpu",
    "batch_size": 8,
    "output": "$Path(@bundle_root) / 'output' / 'zero_shot.csv'",
    "network_def": {
        "_target_": "medclip_debias.monai.ZeroShotNetwork",
        "folder": "$Path(@bundle_root) / 'models'",
        "prompts": "@prompts",
        "device": "@device",
    },
    "preprocessing": {
        "_target_": "medclip_debias.monai.LoadRadiographd",
        "keys": "image",
        "model": "$@network_def.model",
    },
    "dataset": {
        "_target_": "Dataset",
        "data": "$[{'image': file} for file in @images]",
        "transform": "@preprocessing",
    },
    "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": "@batch_size"},
    "table": "$@network_def.table(@dataloader)",
    "run": [
        "$@output.parent.mkdir(parents=True, exist_ok=True)",
        "$@table.to_csv(@output)",
        "$print(@table.to_string())",
    ],
}


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
    with atomic_folder(Path(out)) as folder:
        shutil.copytree(model, folder / "models")
        (folder / "configs").mkdir()
        write_json(folder / "configs" / "metadata.json", _metadata(network))
        write_json(folder / "configs" / "inference.json", INFERENCE)
    return {"warning": synthetic_warning(network.provenance), "parity": {}}


def _metadata(network: ImageTextModel) -> dict[str, Any]:
    side = network.preprocessing.input_size
    image = {
        "type": "image",
        "format": "magnitude",
        "modality": "CR",
        "num_channels": 1,
        "spatial_shape": [side, side],
        "dtype": "uint8",
        "value_range": [0, 255],
        "is_patch_data": False,
        "channel_def": {"0": "radiograph"},
    }
    probability = {
        "type": "probabilities",
        "format": "classes",
        "num_channels": 1,
        "spatial_shape": [],
        "dtype": "float64",
        "value_range": [0, 1],
        "is_patch_data": False,
        "channel_def": {"0": "a column a class"},
    }
    return {
        "version": __version__,
        "changelog": {__version__: "exported"},
        "monai_version": version("monai"),
        "pytorch_version": version("torch"),
        "numpy_version": version("numpy"),
        "required_packages_version": {"medclip-debias": __version__},
        "name": "Zero-shot classification of chest radiographs",
        "task": "Zero-shot classification of chest radiographs by sentences",
        "description": "An image-text model. For research only, not for diagnosis.",
        "authors": "see the card of the model, models/README.md",
        "copyright": "see the card of the model, models/README.md",
        "content_hash": network.content_hash,
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": probability}},
    }
