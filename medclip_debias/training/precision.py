"""How the encoders compute: number format, memory layout, compiled or not, repeatable or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from medclip_debias.errors import UserError
from medclip_debias.models.start import TrainableModel
from medclip_debias.training.settings import TrainSettings

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Autocast for the encoders, and the scaling of the loss, which does nothing but for fp16."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.half = _HALF.get(name)
        self.device = device
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> AbstractContextManager[object]:
        """Context in which the encoders run.

        A new one each time: weights cast without a graph must not be reused with one.
        """
        return torch.autocast(self.device.type, self.half) if self.half else nullcontext()


def arrange(model: TrainableModel, settings: TrainSettings) -> None:
    """Memory layout, activation checkpoints and compilation of the encoders, in place."""
    if settings.channels_last:
        model.image_encoder.to(memory_format=torch.channels_last)
    if settings.checkpoint_text:
        # The random state is kept, so that dropout is the same in the second pass.
        bert: Any = getattr(model.text_encoder, "bert", None)
        if bert is None:
            raise UserError(
                "train.checkpoint_text is set, but CLIP's text tower keeps its activations; leave "
                "it out."
            )
        bert.config.use_cache = False
        # transformers 5 gave it a new name on the way.
        enable = getattr(bert, "activation_checkpointing_enable", None)
        (enable or bert.gradient_checkpointing_enable)({"use_reentrant": False})
    if settings.compile:
        # torch's own random numbers, so that dropout is the same with and without a graph.
        options = {"fallback_random": True}
        model.image_encoder.compile(options=options)
        model.text_encoder.compile(dynamic=True, options=options)


def be_deterministic() -> None:
    """Choose algorithms whose result never varies, or fail where there is none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")


@contextmanager
def advice(compiled: bool) -> Iterator[None]:
    """Turn a failed allocation, or a failed compilation, into a sentence of advice."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        words = str(error).lower()
        short = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        if short or any(text in words for text in _NO_MEMORY):
            raise UserError(
                "The memory does not suffice for this batch: raise train.accumulate, set "
                "train.checkpoint_text=true, use train.precision=bf16, or lower train.batch_size "
                "(which changes the loss)."
            ) from None
        if compiled and type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise UserError(
                "train.compile is set, but the encoders cannot be compiled here (it takes a C++ "
                "compiler on a CPU, and Triton on a GPU); leave it out."
            ) from error
        raise
