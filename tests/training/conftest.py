"""A small run, and processes forked from this one, which has imported everything already."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml
from safetensors.torch import load_file

from medclip_debias.config import (
    ImageEncoderSettings,
    ModelSettings,
    Preprocessing,
    TextEncoderSettings,
)
from medclip_debias.data.loader import training_corpus
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims.table import claim_set
from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.training.settings import RunSettings, TrainSettings
from medclip_debias.training.signals import StoppedBySignalError
from medclip_debias.training.train import train

Change = Callable[..., RunSettings]


@pytest.fixture(scope="module")
def claimed(prepared_phantom, tmp_path_factory):
    """The phantom's set with its claims, apart from the one that other tests share."""
    folder = tmp_path_factory.mktemp("claimed") / "set"
    shutil.copytree(prepared_phantom, folder)
    claim_set(folder, "phantom")
    return folder


def _language_model(layers: int) -> Any:
    """A fixture: a tiny language model of the phantom's sentences, with a BERT's dropout of 0.1."""

    @pytest.fixture(scope="session")
    def folder(prepared_phantom: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
        out = tmp_path_factory.mktemp("engine") / "lm"
        small = LanguageModelSettings(
            vocabulary=500, hidden=16, layers=layers, heads=2, steps=2, batch_size=16, max_tokens=32
        )
        train_masked_lm(training_corpus(PreparedSet.open(prepared_phantom)), out, small)
        return out

    return folder


small_language_model = _language_model(2)
one_layer_model = _language_model(1)


@pytest.fixture(scope="session")
def box_file(prepared_phantom: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """COCO boxes on every frontal image: an effusion in the image's left half, a mass across."""
    data = PreparedSet.open(prepared_phantom)
    images = data.images[data.frontal].reset_index(drop=True)
    listed, drawn = [], []
    for number, (name, width, height) in enumerate(
        zip(images["image_id"], images["width"], images["height"], strict=True)
    ):
        size = {"width": int(width), "height": int(height)}
        listed.append({"id": number, "file_name": f"{name}.png"} | size)
        left = [0, height / 2, width / 4, height / 4]
        across = [width / 4, height / 4, width / 2, height / 2]
        for category, label, box in ((1, "Pleural effusion.", left), (2, "Mass.", across)):
            drawn.append(
                {"id": len(drawn), "image_id": number, "category_id": category}
                | {"bbox": [float(value) for value in box], "label_text": label}
            )
    names = [{"id": 1, "name": "Pleural Effusion"}, {"id": 2, "name": "Mass"}]
    path = tmp_path_factory.mktemp("boxes") / "boxes.json"
    path.write_text(json.dumps({"images": listed, "annotations": drawn, "categories": names}))
    return path


@pytest.fixture
def run(run_in: Callable[..., Change], tmp_path: Path) -> Change:
    """A function that makes settings: ``run(out="a", loss=..., accumulate=2)``."""
    return run_in(tmp_path)


@pytest.fixture
def config(run: Change, tmp_path: Path) -> Callable[..., str]:
    """A function that writes a run's YAML file."""

    def write(**changes: Any) -> str:
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(run(**changes).model_dump(mode="json")))
        return str(path)

    return write


PLAIN = {
    "steps": 6,
    "batch_size": 8,
    "sentences_per_study": 2,
    "lr": 1e-3,
    "channels_last": False,  # the plain forward that steps are held against has none
    # Adam divides by the gradient's size: with its usual 1e-8, rounding of gradients that are
    # nearly 0 would decide on the direction of a step.
    "adam_eps": 1e-4,
    "warmup_steps": 2,
    "log_every": 2,
    "checkpoint_every": 2,
    "preview": "off",
    "workers": 0,
}


# Everything a checkpoint must hold: state of samples, a moving average, a best validation.
FULL = {"ema": 0.9, "validate_every": 2, "batch_size": 4}
LOSS = {"kind": "clip", "negatives": [{"kind": "glofnd", "alpha": 0.2}]}


def judge(model: DualEncoder) -> dict[str, float]:
    """A deterministic figure of the weights, cheaper than a validation."""
    return {"recall_at_10": float(model.image_projection.weight.double().abs().sum())}


@pytest.fixture(scope="session")
def run_in(
    prepared_phantom: Path, small_language_model: Path, one_layer_model: Path
) -> Callable[..., Change]:
    """A function: the `run` whose folders lie in that one, of "tiny" or "small" networks."""
    prepare = PreparedSet.open(prepared_phantom).settings
    texts = {"small": small_language_model, "tiny": one_layer_model}

    def make(
        root: Path,
        networks: str,
        out: str = "run",
        loss: dict[str, Any] | None = None,
        **train: Any,
    ) -> RunSettings:
        return RunSettings(
            prepared=prepared_phantom,
            out=root / out,
            preprocessing=Preprocessing(prepare=prepare, input_size=32),
            model=ModelSettings(
                image=ImageEncoderSettings(arch=f"resnet_{networks}"),
                text=TextEncoderSettings(folder=texts[networks], max_tokens=32),
                dim=16,
            ),
            loss=loss or {"kind": "infonce"},
            train=TrainSettings(**(PLAIN | train)),
        )

    return lambda root, networks="tiny": partial(make, root, networks)


def train_until(settings: RunSettings, step: int, **options: Any) -> None:
    """Train, and interrupt the run after ``step`` steps."""

    def stop(done: int, *_: Any) -> None:
        if done == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(settings, progress=stop, **options)


# ------------------------------------------------------------------------------- processes


def fork(work: Callable[[], object]) -> int:
    """Begin ``work`` in a forked process that leads a group of its own; its number."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 1
        try:
            os.setpgid(0, 0)
            torch.set_num_threads(1)
            work()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except StoppedBySignalError:
            code = 75
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def wait_until(condition: Callable[[], Any], limit: float = 60.0) -> Any:
    """The first true answer, asked for again and again."""
    until = time.monotonic() + limit
    while not (answer := condition()):
        if time.monotonic() > until:
            pytest.fail(f"this did not happen within {limit:g} s: {condition}")
        time.sleep(0.02)
    return answer


def exit_codes(children: Sequence[int], limit: float = 60.0) -> list[int]:
    """Exit codes of forked processes, all of which end in time; nobody is left of their groups."""
    codes: dict[int, int] = {}

    def ended() -> bool:
        for child in children:
            if child not in codes:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    codes[child] = os.waitstatus_to_exitcode(status)
        return len(codes) == len(children)

    def gone() -> bool:
        return not [pid for pid in psutil.pids() if _lives_in(pid, children)]

    try:
        wait_until(ended, limit)
        wait_until(gone, 10)
    finally:
        for child in children:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
    return [codes[child] for child in children]


def _lives_in(pid: int, groups: Sequence[int]) -> bool:
    try:
        return os.getpgid(pid) in groups and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.Error):
        return False


def exit_code(work: Callable[[], object], limit: float = 60.0) -> int:
    """Exit code of ``work`` in a forked process."""
    return exit_codes([fork(work)], limit)[0]


def in_processes(world: int, work: Callable[[], object]) -> list[int]:
    """Run ``work`` in ``world`` forked processes under torchrun's variables; exit codes."""
    port = free_port()

    def member(rank: int) -> None:
        names = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({k: str(v) for k, v in (names | address).items()})
        work()

    return exit_codes([fork(partial(member, rank)) for rank in range(world)])


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# ----------------------------------------------------------------------------------- files


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def weights(model: Path) -> dict[str, torch.Tensor]:
    """The weights in a model folder, without building the networks that they are of."""
    return load_file(model / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether two sets of weights are equal to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Largest absolute difference of two sets of weights with the same names and shapes."""
    assert a.keys() == b.keys()
    pairs = [(a[k].double(), b[k].double()) for k in a if a[k].numel() or b[k].numel()]
    return max(float((x - y).abs().max()) for x, y in pairs)


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
