"""Features of frozen encoders, computed once and read in every step (docs/training.md).

What is kept is whatever the frozen part gives, ``image_encoder.features_upto(images, depth)`` up to
the last layer that is frozen, so the input of the first layer that is trained; and
the features of a text encoder that is frozen as a whole. A folder is named by a hash of all that
the numbers depend on, so other weights, images or settings have another one.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor, nn

from medclip_debias.config import json_hash
from medclip_debias.data.augment import augment, draw
from medclip_debias.data.frozen_features import (
    Layout,
    StoredFeatures,
    is_whole,
    readable,
    write_features,
)
from medclip_debias.data.loader import StepBatches
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError, explained
from medclip_debias.losses.distributed import Ranks
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.training.distributed import share_from_first
from medclip_debias.training.optim import frozen_depth, frozen_part
from medclip_debias.training.precision import Precision
from medclip_debias.training.settings import RunSettings, TrainSettings

FORMAT = 1
_LOCK = "lock"
_HEARTBEAT = 5.0
"""Seconds after which process 0 tells the others that it is still writing."""
_TEXTS = 512
_CLOSE = {"fp32": 1e-3, "fp16": 4e-3, "bf16": 3e-2}
"""How far stored features may be from those computed now, as a share of the largest."""

Progress = Callable[[int, int], None]


class Kind(NamedTuple):
    """How an encoder gives its features."""

    dtype: torch.dtype = torch.float32
    channels_last: bool = False


@dataclass(frozen=True, eq=False)
class FeatureCache:
    """What a run reads in the place of its frozen encoders.

    Attributes:
        depth: how many layers of the image encoder are frozen (`frozen_depth`).
        images: its features; None where images are encoded.
        texts: the text encoder's, by the number of the sentence; None where they are encoded.
        computed: what the two encoders gave: number type, and whether channels lay last.
    """

    depth: int
    images: StoredFeatures | None
    texts: StoredFeatures | None
    computed: tuple[Kind, Kind]

    def regions(self, model: DualEncoder, features: Tensor) -> Tensor:
        """Unit vectors ``[I, N, D]`` from stored features of images."""
        dtype, last = self.computed[0]
        x = features.to(dtype)
        if x.ndim == 4:  # as the encoder gives it, for the layout decides on rounding
            x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        return model.encode_features(x, self.depth).regions

    def sentences(self, model: DualEncoder, texts: Tensor) -> Tensor:
        """Unit vectors ``[T, D]`` of the sentences with these numbers."""
        assert self.texts is not None
        stored = self.texts.at(texts.numpy()).to(model.device)
        return model.encode_text_features(stored.to(self.computed[1].dtype))


@dataclass(frozen=True, eq=False)
class _Source:
    """One file that is wanted: what it is of, and how its rows are computed."""

    what: str
    key: dict[str, Any]
    rows: int
    chunk: int
    compute: Callable[[range], Tensor]
    copies: int = 1


@dataclass(frozen=True, eq=False)
class Features:
    """Finds or writes the features of a run.

    Attributes:
        settings: of the run.
        model: with its starting weights, frozen parts in evaluation mode, laid out as in training.
        prepared: the run's data.
        batches: of the run, which say which images can be drawn and how they are augmented.
        tokens: tokenised sentences of the run.
        ranks: who takes part; process 0 writes, the others wait.
        say: called with a sentence about what is written.
        progress: called with rows done and rows to do.
    """

    settings: RunSettings
    model: DualEncoder
    prepared: PreparedSet
    batches: StepBatches
    tokens: Sequence[list[int]]
    ranks: Ranks
    say: Callable[[str], None]
    progress: Progress | None = None

    @property
    def _train(self) -> TrainSettings:
        return self.settings.train

    @cached_property
    def _folder(self) -> Path:
        return self._train.features.folder or self.prepared.folder / "features"

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        """Rows of the prepared set that can be drawn."""
        studies = self.batches.studies
        rows = studies.frontal if self.batches.views_per_study == 1 else None
        return np.unique(np.concatenate(rows or studies.rows))

    @cached_property
    def _precision(self) -> Precision:
        return Precision(self._train.precision, self.model.device)

    def ready(self) -> FeatureCache:
        """The features that the settings ask for, computed first where they are missing.

        Raises:
            UserError: they cannot be written, or what is there is of something else.
        """
        stored: dict[str, StoredFeatures] = {}
        types: dict[str, Kind] = {}
        for source in self._sources():
            folder, layout, types[source.what] = self._place(source)
            self._write(source, folder, layout)
            rows = self._rows if source.what == "image" else np.arange(source.rows)
            stored[source.what] = StoredFeatures(folder, layout, rows, source.copies)
        computed = types.get("image", Kind()), types.get("text", Kind())
        return FeatureCache(self._depth, stored.get("image"), stored.get("text"), computed)

    def planned(self) -> int:
        """Bytes that `ready` would still write; nothing is written here."""
        needed = 0
        for source in self._sources():
            folder, layout, _ = self._place(source)
            needed += 0 if is_whole(folder, source.key, layout) else layout.size
        return needed

    def check_weights(self, where: str) -> None:
        """See that the frozen weights are still those that the features are of.

        Raises:
            UserError: a checkpoint brought others.
        """
        for on, what, parts in (
            (self._train.features.cache, "image", self._trunk),
            (self._train.features.text, "text", [self.model.text_encoder]),
        ):
            if on and state_hash(parts) != self._weights[what]:
                raise UserError(
                    f"{where}: its frozen {what} encoder has other weights than the run's settings "
                    "start from now, so the stored features are not of it; bring back the weights "
                    "that the run began with, or start over with --fresh."
                )

    # ------------------------------------------------------------------------ what is wanted

    def _sources(self) -> Iterator[_Source]:
        if self._train.features.cache:
            yield self._of_images()
        if self._train.features.text:
            yield self._of_texts()

    @property
    def _trunk(self) -> list[nn.Module]:
        return frozen_part(self.model.image_encoder, self._depth)

    @cached_property
    def _depth(self) -> int:
        encoder = self.model.image_encoder
        depth = frozen_depth(encoder, "image", self._train, "the settings")
        if self._train.features.cache and not encoder.splits and depth <= len(encoder.layers):
            raise UserError(
                f"features.cache: of {encoder.arch} only the whole encoder's features can be kept;"
                " set trainable.image to frozen, and model.image.blocks for blocks of its own that"
                " train."
            )
        return depth

    @cached_property
    def _weights(self) -> dict[str, str]:
        """What the frozen parts were when they were first asked for."""
        text = [self.model.text_encoder]
        return {"image": state_hash(self._trunk), "text": state_hash(text)}

    def _key(self, what: str, **more: Any) -> dict[str, Any]:
        train = self._train
        common = {"format": FORMAT, "what": what, "weights": self._weights[what]}
        return common | more | {"dtype": train.features.dtype, "precision": train.precision}

    def _of_images(self) -> _Source:
        train, settings = self._train, self.settings
        k = train.features.augmentations
        key = self._key(
            "image",
            arch=self.model.settings.image.model_dump(mode="json", exclude={"weights"}),
            depth=self._depth,
            preprocessing=settings.preprocessing.model_dump(mode="json"),
            set=self.prepared.content_hash,
            rows=hashlib.sha256(self._rows.astype("<i8").tobytes()).hexdigest()[:16],
            augment=train.augment.model_dump(mode="json", exclude={"where"}) if k else None,
            augmentations=k,
            seed=train.seed if k else None,
            channels_last=train.channels_last,
        )
        chunk = max(2, min(64, train.batch_size // (train.accumulate * self.ranks.world)))
        copies = max(k, 1)
        rows = len(self._rows) * copies
        return _Source("image", key, rows, chunk, self._encode_images, copies)

    def _of_texts(self) -> _Source:
        token_hash = hashlib.sha256(json.dumps(self.tokens).encode()).hexdigest()[:16]
        key = self._key("text", tokens=token_hash)
        return _Source("text", key, len(self.tokens), _TEXTS, self._encode_texts)

    # --------------------------------------------------------------------------- computing

    @torch.no_grad()
    def _encode_images(self, part: range) -> Tensor:
        # Libraries compute a batch of one image in another way, with other rounding.
        places = np.array(part if len(part) > 1 else [*part, *part])
        rows, copies = np.divmod(places, max(self._train.features.augmentations, 1))
        rows = self._rows[rows]
        stored, batches = self.batches.stored, self.batches
        if stored.count:
            draws = stored.draws(rows, copies)
        else:  # nothing is left to chance
            size = self.prepared.settings.size
            rng = np.random.default_rng(0)
            draws = draw(rng, self._train.augment, len(rows), size, batches.input_size)
        pixels = torch.from_numpy(augment(self.prepared.pixels, rows, draws))
        images = self.model.normalise(pixels.to(self.model.device))
        if self._train.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with self._precision.autocast():
            features: Tensor = self.model.image_encoder.features_upto(images, self._depth)
        return features[: len(part)]

    @torch.no_grad()
    def _encode_texts(self, part: range) -> Tensor:
        """Sentences of equal length together: no padding, so no sentence depends on another."""
        model = self.model
        by_length: dict[int, list[int]] = {}
        for number in part:
            by_length.setdefault(len(self.tokens[number]), []).append(number)
        features: Tensor | None = None
        for numbers in by_length.values():
            ids, mask = model.tokenizer.pad([self.tokens[number] for number in numbers])
            with self._precision.autocast():
                values = model.text_encoder(ids.to(model.device), mask.to(model.device))
            if features is None:
                features = values.new_empty(len(part), *values.shape[1:])
            features[[number - part.start for number in numbers]] = values
        assert features is not None
        return features

    # ----------------------------------------------------------------------------- the file

    def _place(self, source: _Source) -> tuple[Path, Layout, Kind]:
        """Folder and layout of the file, and how the encoder gives its features."""
        sample = source.compute(range(min(2, source.rows)))
        layout = Layout.of(sample, source.rows, self._train.features.dtype)
        kind = Kind(sample.dtype, sample.ndim == 4 and not sample.is_contiguous())
        return self._folder / f"{source.what}-{json_hash(source.key)}", layout, kind

    def _write(self, source: _Source, folder: Path, layout: Layout) -> None:
        """Write the file where it is missing; process 0 does, and the others wait for its word."""
        if self.ranks.rank:
            while not share_from_first(None, self.ranks):
                pass
            return
        last_beat = time.monotonic()
        for done in self._written(source, folder, layout):
            if self.progress:
                self.progress(done, layout.rows)
            if time.monotonic() - last_beat > _HEARTBEAT:
                share_from_first(False, self.ranks)
                last_beat = time.monotonic()
        share_from_first(True, self.ranks)

    def _written(self, source: _Source, folder: Path, layout: Layout) -> Iterator[int]:
        if is_whole(folder, source.key, layout):
            self._compare(source, folder, layout)
            return
        with explained(f"{folder}: cannot be written; set train.features.folder", OSError):
            folder.mkdir(parents=True, exist_ok=True)
        for waits in _alone(folder / _LOCK):
            if waits is not None:
                if not waits:
                    self.say(f"{folder}: another process writes these features; waits for it.")
                yield 0
                continue
            if is_whole(folder, source.key, layout):  # written while this one waited
                return
            augmented = f" x {source.copies} augmentations" if source.copies > 1 else ""
            what = "images" if source.what == "image" else "sentences"
            beside = [path for path in self._folder.iterdir() if path.is_dir() and path != folder]
            size = sum(f.stat().st_size for path in beside for f in path.iterdir() if f.is_file())
            folders = f"{len(beside)} other folder{'s' if len(beside) > 1 else ''} of features"
            others = f" ({folders} beside it: {readable(size)})" if beside else ""
            self.say(
                f"{folder}: computes features of {source.rows // source.copies} {what}{augmented}, "
                f"{readable(layout.size)} in {layout.dtype}{others}."
            )
            yield from write_features(folder, source.key, layout, source.compute, source.chunk)

    def _compare(self, source: _Source, folder: Path, layout: Layout) -> None:
        """Compute a few rows again: a damaged file, or another library, is seen at once."""
        stored = StoredFeatures(folder, layout, np.arange(source.rows))
        for start in {0, max(source.rows - 2, 0)}:
            part = range(start, min(start + 2, source.rows))
            fresh, kept = source.compute(part).float().cpu(), stored.at(np.array(part)).float()
            limit = _CLOSE["bf16" if self._precision.half else layout.dtype]
            if not (fresh - kept).abs().max() <= limit * fresh.abs().max():
                raise UserError(
                    f"{folder}: row {start} of the stored features is not what the encoder gives "
                    "now, so the file is damaged; remove the folder, and it is computed again."
                )


def _alone(path: Path) -> Iterator[int | None]:
    """Hold the lock ``path`` while the last item, None, is worked on; before it a number a wait."""
    lock = FileLock(path)
    for number in count():
        try:
            lock.acquire(blocking=False)
            break
        except Timeout:
            yield number
            time.sleep(1)
    try:
        yield None
    finally:
        lock.release()


def state_hash(modules: Iterable[nn.Module]) -> str:
    """16 hex digits that name the weights and buffers of ``modules``, in order."""
    digest = hashlib.sha256()
    for module in modules:
        for name, value in module.state_dict().items():
            value = value.detach().cpu().contiguous()
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
