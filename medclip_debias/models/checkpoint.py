"""Model folders, here or on the hub, and weight files: read without running code, strictly."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from medclip_debias.errors import UserError

CONVERT = (
    "in an environment you trust, with the authors' code, run: import torch; "
    "c = torch.load(FILE, weights_only=False); "
    "k = ('image_encoder', 'text_encoder', 'model'); "
    "torch.save({n: c[n] for n in k} if k[0] in c else c.get('state_dict', c.get('model', c)), "
    "'weights.pt'); then give weights.pt"
)
PARTS = ("image_encoder", "text_encoder", "model")
"""Of a file that holds several state dicts (KAD)."""


WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def weight_file(folder: Path) -> Path:
    """The weight file of a folder as transformers and timm write it."""
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder}: holds none of {', '.join(WEIGHT_FILES)}.")


def model_folder(name: str | Path, *, local_files_only: bool = True, **options: Any) -> Path:
    """The folder called ``name``, or that of a model on the hub.

    ``options`` are those of ``huggingface_hub.snapshot_download``; nothing is downloaded unasked.
    """
    folder = Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    signature(snapshot_download).bind(str(name), **options)
    if folder.is_dir():
        return folder
    try:
        return Path(snapshot_download(str(name), local_files_only=local_files_only, **options))
    except HFValidationError:
        raise UserError(f"{name}: there is no such folder; give the folder of a model.") from None
    except LocalEntryNotFoundError:
        remedy = (
            "is not a folder, and no model of this name was downloaded before; nothing is"
            " downloaded unless local_files_only=False is given"
            if local_files_only
            else "could not be downloaded; check that the hub can be reached"
        )
        raise UserError(f"{name}: {remedy}.") from None
    except Exception as error:  # the hub's and its client's many ways to say no
        kind = type(error).__name__
        raise UserError(f"{name}: could not be downloaded from the hub ({kind}).") from error


def need(folder: Path, *names: str) -> Path:
    """The first of the files ``names``, all of which a model folder must hold."""
    for name in names:
        if not (folder / name).is_file():
            inside = folder / "model"
            hint = f"; {inside} is one" if (inside / name).is_file() else ""
            what = f"is not a complete model folder: {name} is missing{hint}"
            if not folder.exists():
                what = "there is no such folder; give the folder 'model' of a run"
            raise UserError(f"{folder}: {what}.")
    return folder / names[0]


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Read a state dict from ``.safetensors`` or ``torch.save``; pickled objects are refused."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such weight file.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if isinstance(error, pickle.UnpicklingError) and "GLOBAL" in str(error):
            raise UserError(
                f"{path}: holds Python objects besides its tensors, which are not loaded because "
                f"they could run code; {CONVERT}."
            ) from error
        raise UserError(
            f"{path}: cannot be read as a weight file ({type(error).__name__}); copy it again."
        ) from error
    if isinstance(content, Mapping) and all(isinstance(content.get(n), Mapping) for n in PARTS):
        content = {f"{name}.{key}": value for name in PARTS for key, value in content[name].items()}
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise UserError(f"{path}: holds no state dict; {CONVERT}.")
    return {str(key): value for key, value in content.items() if isinstance(value, Tensor)}


def write_weights(state: Mapping[str, Tensor], path: Path) -> None:
    """Write a state dict as ``.safetensors``."""
    from safetensors.torch import save_file

    plain = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    save_file(plain, path, metadata={"format": "pt"})


def summed_channels(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Turn the three-channel filters ``name`` into the one-channel filters for a grey image."""
    filters = state.get(name)
    if filters is None or filters.ndim != 4 or filters.shape[1] != 3:
        return dict(state)
    return {**state, name: filters.sum(dim=1, keepdim=True)}


def load_strictly(module: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Load ``state``; every tensor must be there, fit, and be wanted."""
    own = module.state_dict()
    missing = [k for k in own if k not in state and not k.endswith("num_batches_tracked")]
    unknown = [k for k in state if k not in own]
    shapes = [
        f"{k} {list(state[k].shape)} instead of {list(own[k].shape)}"
        for k in own
        if k in state and state[k].shape != own[k].shape
    ]
    problems = [
        f"{len(names)} {kind} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for kind, names in (("missing", missing), ("unknown", unknown), ("misshapen", shapes))
        if names
    ]
    if problems:
        raise UserError(
            f"{where}: these weights are of another architecture; tensors {'; '.join(problems)}."
        )
    module.load_state_dict({key: state.get(key, own[key]).to(own[key].dtype) for key in own})


_MOST_LAYERS, _WIDEST, _MOST_WORDS = 256, 131_072, 2_000_000
"""Far above every published model: a name or an empty tensor could say any size."""


def layers_in(state: Mapping[str, Tensor], pattern: str) -> int:
    """One more than the largest number that ``pattern``'s group catches, 0 for none."""
    matches = (re.search(pattern, key) for key in state)
    count = 1 + max((int(match[1][:9]) for match in matches if match), default=-1)
    if count > _MOST_LAYERS:
        raise UserError(f"these weights are of another architecture; they have {count} layers.")
    return count


def shape_of(state: Mapping[str, Tensor], name: str) -> tuple[int, ...]:
    """Shape of the tensor ``name``."""
    if name not in state:
        raise UserError(f"these weights are of another architecture; tensor '{name}' is missing.")
    shape, most = tuple(state[name].shape), _MOST_WORDS if "embedding" in name else _WIDEST
    if not all(0 < size <= most for size in shape):
        raise UserError(
            f"these weights are of another architecture; tensor '{name}' is {list(shape)}."
        )
    return shape


_BUILDING = RLock()


@contextmanager
def uninitialised() -> Iterator[None]:
    """What is built inside has weights of no meaning where layers would draw them (slowly).

    Every tensor must be loaded afterwards, from a file that is refused where it lacks one.
    """
    from transformers.initialization import no_init_weights

    with _BUILDING, no_init_weights():  # it puts functions of torch aside, for all threads
        yield


M = TypeVar("M", bound=nn.Module)


def check_room(build: Callable[[], nn.Module], weights: Path, where: object) -> None:
    """Refuse sizes that the file of weights cannot fill, before any memory is taken for them."""
    with torch.device("meta"), uninitialised():
        numbers = sum(value.numel() for value in build().state_dict().values())
    size = weights.stat().st_size
    if numbers > size:
        raise UserError(
            f"{where}: its sizes need {numbers:,} numbers, and {weights.name} has {size:,} bytes;"
            " it is of another architecture."
        )


def read_model(
    build: Callable[[Mapping[str, Tensor]], M],
    weights: Path,
    where: object,
    names: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = dict,
) -> M:
    """Build a model for the tensors of a file and fill it.

    ``names`` leads from the file's names to the model's.
    """
    state = names(read_checkpoint(weights))
    check_room(partial(build, state), weights, where)
    with uninitialised():
        model = build(state)
    load_strictly(model, state, str(weights))
    return model
