"""Build a search index of a prepared set: encode, learn the global stage, measure, put in place."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from medclip_debias.errors import UserError
from medclip_debias.files import check_out, exchange, read_json_or_none, take_back, write_json
from medclip_debias.grounding.preparation import check_preparation
from medclip_debias.grounding.search.landmarks import Progress
from medclip_debias.grounding.search.learn import IndexSettings, learn
from medclip_debias.grounding.search.store import (
    FORMAT,
    ITEMS,
    META,
    REGIONS,
    map_regions,
    write_items,
    write_meta,
)
from medclip_debias.grounding.sentences import read_sentences
from medclip_debias.models.finite import finite
from medclip_debias.models.interface import need_vectors

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.interface import ImageTextModel

FEWEST_SENTENCES = 32
_JOB = "job.json"


def headline(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The few numbers of an index that a terminal should show."""
    numbers: dict[str, Any] = {"images": meta["regions"][0], "bytes": sum(meta["bytes"].values())}
    for kind, measured in meta["recall"].items():
        if kind == "k":
            continue
        count = meta["candidates"][kind]
        numbers[f"candidates for {kind}"] = count
        numbers[f"recall@{meta['recall']['k']} for {kind}"] = measured["by_candidates"][str(count)]
    return numbers


def build_index(
    model_folder: Path,
    prepared: Path,
    out: Path,
    settings: IndexSettings | None = None,
    *,
    sentences: Path | None = None,
    device: str = "auto",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Index every image of a prepared set; a run that was killed resumes when it is given again.

    Of a peer one vector an image is stored. The folder ``out`` appears whole, or not at all;
    ``sentences`` is a file of some, one a line, to learn from besides the set's own.
    ``progress`` gets steps done and in all: an image is encoded in one, and scored in another.

    Returns:
        The content of ``index.json``.
    """
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.data.verify import check_sample
    from medclip_debias.models.load import load_model

    settings = settings or IndexSettings()
    out = Path(out)
    retired = out.with_name(f".{out.name}.retired")
    take_back(out, retired)  # what a run left that was killed while it exchanged the folders
    check_out(out, META, "index")
    if out.exists() and not overwrite:
        raise UserError(f"{out}: is already there; give another folder or --overwrite.")
    data = PreparedSet.open(Path(prepared))
    if not len(data):
        raise UserError(f"{prepared}: the set has no image to index.")
    check_sample(data)
    model = load_model(Path(model_folder), device)
    # Of other models with several vectors a sentence `_queries` says more.
    need_vectors(model, "index", several=model.outputs.text_form != "words")
    check_preparation(model.preprocessing, data)
    texts = sorted({*data.texts, *(read_sentences(sentences) if sentences else ())})
    if len(texts) < FEWEST_SENTENCES:
        raise UserError(
            f"{data.folder}: has {len(texts)} distinct sentences, but the index learns from at"
            f" least {FEWEST_SENTENCES}; give a file of them, one per line, with --sentences."
        )
    # The folder beside `out` where the index grows; emptied unless it belongs to this job.
    job = [FORMAT, model.content_hash, data.content_hash, settings.batch_size]
    work = out.with_name(f".{out.name}.building")
    if read_json_or_none(work / _JOB) != job:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        write_json(work / _JOB, job)
    rows, columns = model.grid.shape
    vectors = 1 if model.outputs.whole_alone else rows * columns + model.outputs.has_whole
    shape = (len(data), vectors, model.dim)
    size = 2 * math.prod(shape)
    free = shutil.disk_usage(work).free + sum(path.stat().st_size for path in work.iterdir())
    if size > free:
        raise UserError(
            f"{work.parent}: the index needs {size / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are"
            " free; give a folder on a larger disk."
        )

    def step(done: int) -> None:
        if progress:
            progress(done, 2 * len(data))

    queries = _queries(model, texts, settings)  # first: a model that has none is refused at once
    _encode(model, data, work / REGIONS, shape, settings.batch_size, step)
    learned = learn(
        work,
        map_regions(work / REGIONS, shape),
        model.score,
        *queries,
        settings,
        progress=lambda done, _: step(len(data) + done),
    )
    write_items(work / ITEMS, data.images)
    (work / _JOB).unlink()
    content = {
        "model": str(Path(model_folder).resolve()),
        "model_hash": model.content_hash,
        "prepared": str(Path(prepared).resolve()),
        "data_hash": data.content_hash,
        "synthetic": bool(data.meta.get("synthetic", False)),
        "regions": list(shape),
        "landmarks": len(queries[0]),
        "settings": settings.model_dump(mode="json"),
    }
    meta = write_meta(work, content | learned)
    exchange(work, out, retired)
    return meta


def _encode(
    model: ImageTextModel,
    data: PreparedSet,
    path: Path,
    shape: tuple[int, int, int],
    batch: int,
    step: Callable[[int], None],
) -> None:
    """Write the vectors of every image; a file that was cut off goes on at a whole batch."""
    row = 2 * shape[1] * shape[2]
    images = path.stat().st_size // row if path.is_file() else 0
    # Whole batches only: a batch of another size may round otherwise.
    done = len(data) if images >= len(data) else images // batch * batch
    with path.open("r+b" if path.is_file() else "w+b") as stream, torch.inference_mode():
        stream.truncate(done * row)
        stream.seek(done * row)
        for start in range(done, len(data), batch):
            pixels = torch.from_numpy(np.array(data.pixels[start : start + batch]))
            stored = finite(model.encode_images(pixels).stored, "index").astype(np.float16)
            if stored.shape[1:] != shape[1:]:  # all after them would be misread
                raise ValueError(f"expected [B, *{shape[1:]}], got {stored.shape}")
            stream.write(np.ascontiguousarray(stored).tobytes())
            step(start + len(stored))
        stream.flush()
        os.fsync(stream.fileno())


def _queries(
    model: ImageTextModel, texts: Sequence[str], settings: IndexSettings
) -> tuple[Tensor, Tensor]:
    """Landmarks and held-out sentences, sampled without overlap; at least half are landmarks."""
    order = np.random.default_rng(settings.seed).permutation(len(texts))
    count = min(settings.landmarks, max(len(texts) - settings.queries, len(texts) // 2))
    chosen = [texts[number] for number in order[: count + settings.queries]]
    with torch.inference_mode():
        vectors = model.encode_sentences(chosen)
    if vectors.ndim > 2:
        raise UserError(
            "this model scores a sentence by several vectors (as local_words and CARZero by its "
            "words) or by a question and not by a cosine (KAD, MedKLIP, AFLoc), which an index "
            "cannot hold; index another model, or rank images with 'evaluate' or 'ground'."
        )
    return vectors[:count], vectors[count:]
