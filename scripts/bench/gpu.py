"""Everything that waits for a GPU, in one run: the table of docs/performance.md.

    python scripts/bench/gpu.py --device cuda                       # about 25 minutes on one GPU
    python scripts/bench/gpu.py --device cuda --only step precision # some rows
    python scripts/bench/gpu.py --device cpu --small                # the same, toy size

Correctness comes before speed: the losses of engine and plain loop agree, bf16 agrees with fp32 for
every preset, one process under NCCL gives what it gives alone. Then times, medians of rounds in
turn. A row that cannot be measured says why, and the next one is begun. What a study's steps take,
`medclip-debias study ... --plan` says.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

# cuBLAS reads it when it starts; `train.deterministic` needs it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.distributed as dist
import train_step
from common import HEAD, Row, in_turn, machine, measure, title
from torch.nn import functional as F
from train_step import SMALL, Scale, make_data

from medclip_debias.losses.distributed import Ranks, gather_batch
from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.models.similarity import pooled_cosine

HALF_ERROR = 1e-2


@dataclass(frozen=True)
class Options:
    """What every row is given."""

    folder: Path
    scale: Scale
    rounds: int
    small: bool

    def turns(self, ways: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
        """Seconds of all ways in turn."""
        return in_turn(ways, self.rounds)


def agreement(options: Options) -> Iterator[Row]:
    """Loss of the engine against the plain loop, in float32."""
    off = train_step.agree(options.folder, options.scale)
    what = "loss of the engine against the plain loop, fp32"
    yield Row(what, "<= 1e-04 of it", f"{off:.1e}", off <= train_step.AGREE)


def precision(options: Options) -> Iterator[Row]:
    """bf16 against fp32 for the loss of every preset: loss and gradient."""
    exact = replace(options.scale, precision="fp32")
    only = ["clip", "debiased", "infonce"] if options.small else []
    found = train_step.precision(options.folder, exact, only)
    if not found:
        raise RuntimeError("no preset could be built on this phantom")
    for place, what in enumerate(("loss", "gradient's norm", "gradient, as a vector")):
        worst = max(found, key=lambda name: found[name][place])
        good = sum(errors[place] <= HALF_ERROR for errors in found.values())
        # A sum over many rounded products has the right length sooner than the right direction.
        goal = f"<= {HALF_ERROR:g} of it, every preset" if place < 2 else ""
        met = good == len(found) if goal else None
        measured = f"{good} of {len(found)} presets; worst {found[worst][place]:.1e} ({worst})"
        yield Row(f"bf16 against fp32: {what}", goal, measured, met)


def nccl(options: Options) -> Iterator[Row]:
    """One process in a group of its own: NCCL on a GPU, gloo elsewhere."""
    device = torch.device(options.scale.device)
    kind = "nccl" if device.type == "cuda" else "gloo"
    store = dist.FileStore(str(options.folder / "store"), 1)
    dist.init_process_group(kind, store=store, rank=0, world_size=1)
    try:
        count, objective = 64, build_objective(loss_settings({"kind": "clip"}, "gpu"))
        torch.manual_seed(0)
        given = [torch.randn(count, 128, device=device) for _ in range(2)]
        losses, gradients = [], []
        for joined in (False, True):
            x, y = (F.normalize(value, dim=-1).requires_grad_() for value in given)
            if joined:  # everything travels, to this process itself
                part = torch.empty_like(y)
                dist.all_gather([part], y.detach())
                torch.testing.assert_close(part, y.detach(), rtol=0, atol=0)
            scale = torch.tensor(14.0, device=device)
            loss = objective(gather_batch(x[:, None], y, pooled_cosine, scale, Ranks(0, 1))).loss
            loss.backward()
            gradient = torch.cat([x.grad.flatten(), y.grad.flatten()])  # type: ignore[union-attr]
            if joined:
                dist.all_reduce(gradient)
            losses.append(float(loss.detach()))
            gradients.append(gradient)
        dist.barrier()
        off = float((gradients[0] - gradients[1]).abs().max()) + abs(losses[0] - losses[1])
    finally:
        dist.destroy_process_group()
    yield Row(
        f"one process under {kind}: loss and gradients as alone", "equal", f"{off:g}", off == 0
    )


def step(options: Options) -> Iterator[Row]:
    """A training step against a plain loop and open_clip's step, on batches already read."""
    note = f"{options.scale.precision}, 3 steps a round"
    return train_step.training_steps(options.folder, options.scale, options.turns, note, count=3)


def cached(options: Options) -> Iterator[Row]:
    """An epoch with frozen encoders: computed against read from stored features."""
    return train_step.stored_features(options.folder, options.scale, options.turns)


ROWS: dict[str, Callable[[Options], Iterator[Row]]] = {
    "agreement": agreement,
    "precision": precision,
    "nccl": nccl,
    "step": step,
    "cached": cached,
}


def main(words: list[str] | None = None) -> int:
    """Measure the rows that are asked for; each is written as soon as it is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="*", choices=ROWS, default=list(ROWS), help="rows")
    parser.add_argument("--small", action="store_true", help="toy size")
    parser.add_argument("--arch", default="resnet50")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(words)
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("there is no GPU here; --device cpu --small runs the same at toy size")
    large = Scale("", "bf16", given.batch, 480, given.arch, 768, 12, workers=given.workers)
    scale = replace(SMALL if given.small else large, device=given.device)
    where = torch.cuda.get_device_name() if scale.device.startswith("cuda") else "a processor"
    print(f"{where}; {machine('torch')}", file=sys.stderr)
    print(HEAD)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="medclip-debias-gpu-") as name:
        options = Options(Path(name), scale, given.rounds, given.small)
        make_data(options.folder, scale)
        for key in given.only:
            failed += measure(partial(ROWS[key], options), title(ROWS[key]))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
