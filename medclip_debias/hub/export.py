"""A model as ONNX or `torch.export` files, tested against itself before anything is kept.

Image tower, text tower and scores take and give plain tensors, so that a program without this
package can run them; what stands between them and a file (preparing an image, cutting a sentence
into tokens) is in ``export.json``. A bundle of MONAI runs the same weights by this package's code.
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from medclip_debias import __version__
from medclip_debias.errors import UserError, explained, need_packages, one_of
from medclip_debias.files import atomic_folder, check_out, file_hash, write_json
from medclip_debias.hub.push import public_config
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.golden import SENTENCES, golden_images
from medclip_debias.models.load import load_model
from medclip_debias.models.synthetic import synthetic_warning
from medclip_debias.settings_files import load_yaml

FORMAT = 1
BUNDLE = "monai-bundle"
FILE, SAMPLES = "export.json", "samples.npz"
LIMITS = {"regions": 1e-4, "pooled": 1e-4, "sentences": 1e-4, "scores": 1e-4, "maps": 1e-3}
"""Largest difference of a number in [-1, 1] that passes, from the model in torch."""

NOT_OPEN_CLIP = (
    "--format open_clip: an image tower of open_clip projects the mean of an image's regions, and"
    " this project's models bring each region to unit length first, so no file of open_clip's gives"
    " their scores; use onnx or torch-export."
)

Arrays: TypeAlias = dict[str, NDArray[Any]]
Axes: TypeAlias = dict[str, tuple[str | int, ...]]
"""Names of tensors, each with the names of its axes; a number is fixed."""


class Part(nn.Module):
    """One exported network: a function of the model, and the axes of what it takes and gives."""

    def __init__(
        self,
        name: str,
        network: DualEncoder,
        function: Callable[..., Any],
        inputs: Axes,
        outputs: Axes,
    ) -> None:
        super().__init__()
        self.name, self.network, self.function = name, network, function
        self.inputs, self.outputs = inputs, outputs

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def export(model: Path, out: Path, form: str = "onnx") -> dict[str, Any]:
    """Write a model's parts as files for other programs, and check them.

    The folder holds ``image``, ``text`` and ``score`` (``.onnx`` or ``.pt2``), ``tokenizer.json``,
    ``samples.npz`` (inputs, and what the model gives for them) and ``export.json`` (what goes in
    and comes out, preparation, differences measured).

    Args:
        model: a folder that ``train`` wrote.
        out: folder to write; an earlier export there is replaced.
        form: ``onnx``, ``torch-export``, or ``monai-bundle`` (`export_bundle`).

    Returns:
        The content of ``export.json``.
    """
    if form == BUNDLE:
        return export_bundle(model, out)
    if form == "open_clip":
        raise UserError(NOT_OPEN_CLIP)
    one_of(form, [*FORMS, BUNDLE], "--format")
    if (Path(model) / "peer.yaml").is_file():
        raise UserError(
            f"{model}: is a peer; only models of this project are exported, a peer's authors"
            " publish theirs."
        )
    suffix, write, run, libraries = FORMS[form]
    need_packages(f"Exports as {form}", "export", *libraries)
    check_out(Path(out), FILE, "export of this form")
    network = DualEncoder.load(Path(model))
    parts, several = _parts(network), _samples(network)[0]
    with atomic_folder(Path(out)) as folder:
        for part in parts:
            sentence = f"{model}: its part '{part.name}' cannot be exported as {form}"
            with explained(sentence, Exception), torch.no_grad(), _silent():
                program = _program(part, several, network.max_tokens)
                write(program, part, folder / f"{part.name}{suffix}")
        with explained(f"{model}: what was exported as {form} does not run", Exception):
            parity = _differences(network, parts, partial(run, folder, suffix))
        far = [name for name, one in parity.items() if not one["difference"] <= one["limit"]]
        if far:
            shown = ", ".join(f"{name} by {parity[name]['difference']:.2g}" for name in far)
            raise UserError(
                f"{model}: exported as {form} it gives other results than in torch ({shown});"
                " nothing was written."
            )
        network.tokenizer.save(folder)
        samples: dict[str, Any] = {**several}
        np.savez(folder / SAMPLES, **samples)
        content = _description(network, parts, form, folder) | {"parity": parity}
        write_json(folder / FILE, content)
    return content


def export_bundle(model: Path, out: Path) -> dict[str, Any]:
    """Write ``configs/metadata.json``, ``configs/inference.json`` and the model in ``models/``.

    Run it with ``python -m monai.bundle run --config_file OUT/configs/inference.json --bundle_root
    OUT --images "['radiograph.dcm']"`` where this package is installed: it prints the table of
    `medclip_debias.Model.zero_shot`, and writes it to ``OUT/output/zero_shot.csv``.

    Args:
        model: model folder, also of another group's model.
        out: folder to write; an earlier export there is replaced.

    Returns:
        ``warning``, that the model knows synthetic images alone, or None; ``parity``, empty: the
        bundle runs the same weights by the same code.
    """
    check_out(Path(out), "configs/metadata.json", "bundle")
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
        if not (folder / "models" / "peer.yaml").is_file():  # a peer's names no path
            write_json(folder / "models" / "config.json", public_config(folder / "models"))
        (folder / "configs").mkdir()
        write_json(folder / "configs" / "metadata.json", metadata)
        write_json(folder / "configs" / "inference.json", files["inference"])
    return {"warning": synthetic_warning(network.provenance), "parity": {}}


# ------------------------------------------------------------------------------------ parts


def _parts(network: DualEncoder) -> list[Part]:
    """Image tower, text tower, and head, whose maps are cosines ``[B, T, rows, columns]``."""
    side, dim, shape = network.preprocessing.prepare.size, network.dim, network.grid.shape

    def image(pixels: Tensor) -> tuple[Tensor, Tensor]:
        features = network.encode_images(pixels)
        return features.regions, features.pooled

    def score(regions: Tensor, sentences: Tensor) -> tuple[Tensor, Tensor]:
        maps = torch.einsum("bnd,td->btn", regions, sentences)
        return network.similarity.at_once(regions, sentences), maps.unflatten(-1, shape)

    regions: Axes = {"regions": ("images", shape[0] * shape[1], dim)}
    sentences: Axes = {"sentences": ("sentences", dim)}
    pixels: Axes = {"images": ("images", side, side)}
    tokens: Axes = {name: ("sentences", "tokens") for name in ("ids", "mask")}
    scores: Axes = {"scores": ("images", "sentences"), "maps": ("images", "sentences", *shape)}
    return [
        Part("image", network, image, pixels, regions | {"pooled": ("images", dim)}),
        Part("text", network, network.encode_tokens, tokens, sentences),
        Part("score", network, score, regions | sentences, scores),
    ]


@torch.no_grad()
def _samples(network: DualEncoder) -> list[Arrays]:
    """Inputs and what the model gives for them by name, of several images and of one."""
    side = network.preprocessing.prepare.size
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (2, side, side), generator=generator, dtype=torch.uint8)
    pixels, tokens = torch.cat([golden_images(side), noise]), network.token_ids(SENTENCES)
    samples = []
    for images, rows in ((pixels, tokens), (pixels[:1], tokens[1:2])):
        ids, mask = network.tokenizer.pad(rows)
        features, sentences = network.encode_images(images), network.encode_tokens(ids, mask)
        maps = network.region_scores(features, sentences).unflatten(-1, network.grid.shape)
        tensors = {
            "images": images,
            "ids": ids,
            "mask": mask,
            "regions": features.regions,
            "pooled": features.pooled,
            "sentences": sentences,
            "scores": network.score(features, sentences),
            "maps": maps,
        }
        samples.append({name: value.numpy() for name, value in tensors.items()})
    return samples


def _differences(
    network: DualEncoder, parts: list[Part], run: Callable[[Part, Arrays], Arrays]
) -> dict[str, Any]:
    """Largest difference of each output from the model's, over the whole way, with its limit."""
    worst = dict.fromkeys(LIMITS, 0.0)
    for sample in _samples(network):
        arrays = {name: sample[name] for name in ("images", "ids", "mask")}
        for part in parts:  # the last reads what the first two give
            arrays |= run(part, arrays)
        for name in LIMITS:
            if arrays[name].shape != sample[name].shape:
                raise ValueError(f"{name} has the shape {arrays[name].shape}")
            gap = float(np.abs(arrays[name].astype(np.float64) - sample[name]).max())
            worst[name] = max(worst[name], gap if gap == gap else float("inf"))
    return {name: {"difference": worst[name], "limit": LIMITS[name]} for name in LIMITS}


# --------------------------------------------------------------------------------- formats


def _program(part: Part, sample: Arrays, longest: int) -> torch.export.ExportedProgram:
    """The part as a graph, in which every named axis may be of any length."""
    names = {name for axes in part.inputs.values() for name in axes if isinstance(name, str)}
    most = {"tokens": longest}
    dims = {name: torch.export.Dim(name, max=most.get(name)) for name in names}
    shapes = tuple(
        {place: dims[name] for place, name in enumerate(axes) if isinstance(name, str)}
        for axes in part.inputs.values()
    )
    example = tuple(torch.from_numpy(sample[name]) for name in part.inputs)
    return torch.export.export(part.eval(), example, dynamic_shapes=(shapes,), strict=False)


def _write_program(program: torch.export.ExportedProgram, _: Part, path: Path) -> None:
    torch.export.save(program, path)


def _run_program(folder: Path, suffix: str, part: Part, arrays: Arrays) -> Arrays:
    module = torch.export.load(folder / f"{part.name}{suffix}").module()
    with torch.no_grad():
        out = module(*(torch.from_numpy(arrays[name]) for name in part.inputs))
    several = (out,) if isinstance(out, Tensor) else out
    return {name: value.numpy() for name, value in zip(part.outputs, several, strict=True)}


def _write_onnx(program: torch.export.ExportedProgram, part: Part, path: Path) -> None:
    torch.onnx.export(
        program,
        (),
        path,
        dynamo=True,
        input_names=list(part.inputs),
        output_names=list(part.outputs),
        external_data=False,
        verbose=False,
    )


def _run_onnx(folder: Path, suffix: str, part: Part, arrays: Arrays) -> Arrays:
    import onnxruntime

    path = folder / f"{part.name}{suffix}"
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    out = session.run(list(part.outputs), {name: arrays[name] for name in part.inputs})
    return dict(zip(part.outputs, out, strict=True))


Writer: TypeAlias = Callable[[torch.export.ExportedProgram, Part, Path], None]
Runner: TypeAlias = Callable[[Path, str, Part, Arrays], Arrays]
FORMS: dict[str, tuple[str, Writer, Runner, tuple[str, ...]]] = {
    "onnx": (".onnx", _write_onnx, _run_onnx, ("onnx", "onnxscript", "onnxruntime")),
    "torch-export": (".pt2", _write_program, _run_program, ()),
}


def _description(
    network: DualEncoder, parts: list[Part], form: str, folder: Path
) -> dict[str, Any]:
    """All that a program needs beside the files; no path, no word of a report."""
    grid, suffix, libraries = network.grid, FORMS[form][0], ["torch", *FORMS[form][3]]
    return {
        "format": FORMAT,
        "warning": synthetic_warning(network.provenance),
        "form": form,
        "model_hash": network.content_hash,
        "files": {
            part.name: {
                "file": f"{part.name}{suffix}",
                "sha256": file_hash(folder / f"{part.name}{suffix}"),
                "inputs": {name: list(axes) for name, axes in part.inputs.items()},
                "outputs": {name: list(axes) for name, axes in part.outputs.items()},
            }
            for part in parts
        },
        "types": {"images": "uint8", "ids": "int64", "mask": "int64", "others": "float32"},
        "prepare": network.preprocessing.prepare.model_dump(mode="json"),
        "inside": "the image network crops the central square and normalises it by itself",
        "tokens": {
            "file": "tokenizer.json",
            "longest": network.max_tokens,
            "padding": network.tokenizer.pad_id,
        },
        "grid": {
            "rows": grid.rows,
            "columns": grid.columns,
            "stride": grid.stride,
            "first_centre": grid.first,
            "input_size": network.preprocessing.input_size,
        },
        "scale": network.learned_scale,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "samples": {"file": SAMPLES, "sentences": list(SENTENCES)},
        "versions": {"medclip_debias": __version__} | {name: version(name) for name in libraries},
    }


@contextlib.contextmanager
def _silent() -> Any:
    """Keep the exporters' progress and advice off the user's screen."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        level = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(level)
