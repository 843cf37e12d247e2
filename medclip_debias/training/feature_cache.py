"""Features of frozen encoders, computed once and read in every step (docs/training.md).

What is kept is whatever the frozen part gives, ``image_encoder.features_upto(images, depth)`` up to
the last layer that is frozen, so the input of the first layer that is trained; and
the features of a text encoder that is frozen as a whole. A folder is named by a hash of all that
the numbers depend on, so other weights, images or settings have another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from medclip_debias.config import json_hash
from medclip_debias.data.augment import augment, draw
from medclip_debias.data.frozen_features import FeatureFile, readable
from medclip_debias.errors import UserError, explained
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.training.optim import frozen_depth, frozen_part
from medclip_debias.training.run import Precision, Run
from medclip_debias.training.settings import TrainSettings

FORMAT = 1
_LOCK = "lock"
_TEXTS = 512
_CLOSE = {"fp32": 1e-3, "fp16": 4e-3, "bf16": 3e-2}
"""How far stored features may be from those computed now, as a share of the largest."""


class _Part(NamedTuple):
    """The features of ``image`` or ``text``, how rows are computed, ``chunk`` at a time.

    ``sample`` are the first rows.
    """

    what: str
    file: FeatureFile
    compute: Callable[[range], Tensor]
    chunk: int
    sample: Tensor


class Features:
    """Finds, writes and reads the features of a run, whose frozen parts are in evaluation mode.

    The run's model has the weights that it starts with; ``settings`` may be others than the run's.

    Attributes:
        images: features of the image encoder, after `make`; None where images are encoded.
        texts: those of the text encoder, by the number of the sentence.
    """

    def __init__(self, run: Run, settings: TrainSettings) -> None:
        self.settings, self.wanted = settings, settings.features
        if not isinstance(run.model, DualEncoder):
            raise UserError(
                f"{run.where}: 'train.features.cache' and 'train.features.text' keep what encoders"
                " of this project give, and 'model.start_from' is another group's model; set both "
                "to false."
            )
        if self.wanted.text and run.model.similarity.settings.aggregator == "local_words":
            raise UserError(
                f"{run.where}: train.features.text keeps one vector a sentence, but the aggregator"
                " local_words reads its words; leave one of them out."
            )
        self.run, self.model = run, run.model
        self.images: FeatureFile | None = None
        self.texts: FeatureFile | None = None
        self._samples: dict[str, Tensor] = {}
        self._precision = Precision(settings.precision, run.model.device)
        self._folder = self.wanted.folder or run.prepared.folder / "features"
        studies = run.batches.studies
        rows = studies.frontal if run.batches.views_per_study == 1 else None
        self._rows = np.unique(np.concatenate(rows or studies.rows))  # those that can be drawn
        encoder = run.model.image_encoder
        self._depth = frozen_depth(encoder, "image", settings, "the settings")
        if self.wanted.cache and not encoder.splits and self._depth <= len(encoder.layers):
            raise UserError(
                f"features.cache: of {encoder.arch} only the whole encoder's features can be kept;"
                " set trainable.image to frozen, and model.image.blocks for blocks of its own that"
                " train."
            )
        self._weights = self._state_hashes()

    # ------------------------------------------------------------------------------ reading

    def region_vectors(self, features: Tensor) -> Tensor:
        """Unit vectors ``[I, N, D]`` from stored features of images."""
        sample = self._samples["image"]
        x = features.to(sample.dtype)
        if x.ndim == 4:  # as the encoder gives it, for the layout decides on rounding
            last = not sample.is_contiguous()
            x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        return self.model.encode_features(x, self._depth).regions

    def sentence_vectors(self, texts: Tensor) -> Tensor:
        """Unit vectors ``[T, D]`` of the sentences with these numbers."""
        assert self.texts is not None
        stored = self.texts.at(texts.numpy()).to(self.model.device)
        return self.model.encode_text_features(stored.to(self._samples["text"].dtype))

    # ------------------------------------------------------------------------------ writing

    def make(self) -> None:
        """Open the files that the settings ask for, computed first where they are missing."""
        for part in self._parts():
            self._write(part)
            self._samples[part.what] = part.sample
            if part.what == "image":
                self.images = part.file
            else:
                self.texts = part.file

    def planned(self) -> int:
        """Bytes that `make` would still write; nothing is written here."""
        return sum(part.file.size for part in self._parts() if not part.file.is_whole())

    def check_weights(self, where: str) -> None:
        """See that a checkpoint did not bring other frozen weights than the features are of."""
        for what, state in self._state_hashes().items():
            if state != self._weights[what]:
                raise UserError(
                    f"{where}: its frozen {what} encoder has other weights than the run's settings"
                    " start from now, so the stored features are not of it; restore the weights"
                    " that the run began with, or start over with --fresh."
                )

    def _state_hashes(self) -> dict[str, str]:
        hashes = {}
        if self.wanted.cache:
            hashes["image"] = state_hash(frozen_part(self.model.image_encoder, self._depth))
        if self.wanted.text:
            hashes["text"] = state_hash([self.model.text_encoder])
        return hashes

    def _parts(self) -> Iterator[_Part]:
        train = self.settings
        if self.wanted.cache:
            k = self.wanted.augmentations
            key = {
                "arch": self.model.settings.image.model_dump(mode="json", exclude={"weights"}),
                "depth": self._depth,
                "preprocessing": self.run.settings.preprocessing.model_dump(mode="json"),
                "set": self.run.prepared.content_hash,
                "rows": hashlib.sha256(self._rows.astype("<i8").tobytes()).hexdigest()[:16],
                "augment": train.augment.model_dump(mode="json", exclude={"where"}) if k else None,
                "augmentations": k,
                "seed": train.seed if k else None,
                "channels_last": train.channels_last,
            }
            share = train.batch_size // (train.accumulate * self.run.ranks.world)
            chunk = max(2, min(64, share))
            yield self._part("image", key, len(self._rows), self._encode_images, chunk, max(k, 1))
        if self.wanted.text:
            tokens = json.dumps(self.run.tokens).encode()
            key = {"tokens": hashlib.sha256(tokens).hexdigest()[:16]}
            yield self._part("text", key, len(self.run.tokens), self._encode_texts, _TEXTS)

    def _part(
        self,
        what: str,
        key: dict[str, Any],
        count: int,
        compute: Callable[[range], Tensor],
        chunk: int,
        copies: int = 1,
    ) -> _Part:
        key = {"format": FORMAT, "what": what, "weights": self._weights[what], **key}
        key |= {"dtype": self.wanted.dtype, "precision": self.settings.precision}
        rows, images = count * copies, self._rows if what == "image" else None
        sample = compute(range(min(2, rows)))
        folder, dtype = self._folder / f"{what}-{json_hash(key)}", self.wanted.dtype
        file = FeatureFile(folder, key, rows, (), dtype, images=images, copies=copies)
        return _Part(what, file.like(sample), compute, chunk, sample)

    @torch.no_grad()
    def _encode_images(self, part: range) -> Tensor:
        # Libraries compute a batch of one image in another way, with other rounding.
        places = np.array(part if len(part) > 1 else [*part, *part])
        rows, copies = np.divmod(places, max(self.wanted.augmentations, 1))
        rows, batches, prepared = self._rows[rows], self.run.batches, self.run.prepared
        if batches.stored.count:
            draws = batches.stored.draws(rows, copies)
        else:  # nothing is left to chance
            rng, size = np.random.default_rng(0), prepared.settings.size
            draws = draw(rng, self.settings.augment, len(rows), size, batches.input_size)
        pixels = torch.from_numpy(augment(prepared.pixels, rows, draws))
        images = self.model.normalise(pixels.to(self.model.device))
        if self.settings.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with self._precision.autocast():
            features: Tensor = self.model.image_encoder.features_upto(images, self._depth)
        return features[: len(part)]

    @torch.no_grad()
    def _encode_texts(self, part: range) -> Tensor:
        """Sentences of equal length together: no padding, so no sentence depends on another."""
        model, tokens = self.model, self.run.tokens
        by_length: dict[int, list[int]] = {}
        for number in part:
            by_length.setdefault(len(tokens[number]), []).append(number)
        features: Tensor | None = None
        for numbers in by_length.values():
            ids, mask = model.tokenizer.pad([tokens[number] for number in numbers])
            with self._precision.autocast():
                values = model.text_encoder(ids.to(model.device), mask.to(model.device))
            if features is None:
                features = values.new_empty(len(part), *values.shape[1:])
            features[[number - part.start for number in numbers]] = values
        assert features is not None
        return features

    def _write(self, part: _Part) -> None:
        """Write the file where it is missing; of several processes one does, and the others wait.

        Where the one that writes fails, the next one tries, and says why it cannot.
        """
        file, folder = part.file, part.file.folder
        if file.is_whole():
            self._compare(part)
            return
        with explained(f"{folder}: cannot be written; set train.features.folder", OSError):
            folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK)
        self._take(lock, folder)
        try:
            if file.is_whole():  # written while this one waited
                return
            augmented = f" x {file.copies} augmentations" if file.copies > 1 else ""
            what = "images" if part.what == "image" else "sentences"
            beside = [path for path in self._folder.iterdir() if path.is_dir() and path != folder]
            size = sum(f.stat().st_size for path in beside for f in path.iterdir() if f.is_file())
            folders = f"{len(beside)} other folder{'s' if len(beside) > 1 else ''} of features"
            others = f" ({folders} beside it: {readable(size)})" if beside else ""
            self.run.say(
                f"{folder}: computes features of {file.rows // file.copies} {what}{augmented}, "
                f"{readable(file.size)} in {file.dtype}{others}."
            )
            for done in file.write(part.compute, part.chunk):
                if self.run.progress:
                    self.run.progress(done, file.rows)
        finally:
            lock.release()

    def _take(self, lock: FileLock, folder: Path) -> None:
        """Take the lock, or wait for who has it as long as that one goes on writing."""
        minutes, idle, last_note = self.settings.stall_minutes, -1, 0.0
        while True:
            try:
                lock.acquire(timeout=1)
                return
            except Timeout:
                if idle < 0 and self.run.ranks.rank == 0:
                    self.run.say(
                        f"{folder}: another process is writing these features; waiting for it."
                    )
                note = folder.stat().st_mtime  # that of its progress is replaced now and then
                idle, last_note = idle + 1 if note == last_note else 0, note
                if minutes and idle > 60 * minutes:
                    raise UserError(
                        f"{folder}: the process that writes these features has written nothing for"
                        f" {minutes:g} minutes (train.stall_minutes); end it, and run the same"
                        " command again."
                    ) from None

    def _compare(self, part: _Part) -> None:
        """Compute a few rows again: a damaged file, or another library, is seen at once."""
        file = part.file
        for start in {0, max(file.rows - 2, 0)}:
            rows = range(start, min(start + 2, file.rows))
            fresh, kept = part.compute(rows).float().cpu(), file.at(np.array(rows)).float()
            limit = _CLOSE["bf16" if self._precision.half else file.dtype]
            if not (fresh - kept).abs().max() <= limit * fresh.abs().max():
                raise UserError(
                    f"{file.folder}: row {start} of the stored features is not what the encoder "
                    "gives now, so the file is damaged; remove the folder, and it is computed "
                    "again."
                )


def state_hash(modules: Iterable[nn.Module]) -> str:
    """16 hex digits that name the weights and buffers of ``modules``, in order."""
    digest = hashlib.sha256()
    for module in modules:
        for name, value in module.state_dict().items():
            value = value.detach().cpu().contiguous()
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
