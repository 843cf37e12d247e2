"""Measure again from the vectors on disk: no image is prepared, none encoded.

What a card run was made of stands in ``RESULTS/cache/runs/MODEL/CARD@VERSION.json``, on this
machine alone: it names folders and images.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.bench.card import Card
from medclip_debias.bench.models import CACHE, read_model
from medclip_debias.bench.record import MODEL, RECORD, Record
from medclip_debias.bench.score import CardRun, draw_of
from medclip_debias.bench.sets import CardImages, Recipe, only_listed
from medclip_debias.bench.vectors import CachedVectors
from medclip_debias.config import validate
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.verify import check_sample
from medclip_debias.errors import UserError
from medclip_debias.files import read_json, write_json, write_text
from medclip_debias.training.lock import holder_of, locked

if TYPE_CHECKING:
    from collections.abc import Callable

    from medclip_debias.models.interface import ImageTextModel

_AGAIN = "run 'bench' again with the model and the data"
_KEYS = ("model", "archive", "set", "card", "split", "listed", "found", "missing", "official")


def keep_state(out: Path, run: CardRun, recipe: Recipe) -> None:
    """Keep what a card run is made of."""
    images = run.images
    content = {
        "model": str(run.folder.absolute()),
        "archive": str(run.archive.absolute()),
        "set": recipe.key,
        "card": run.card.model_dump(mode="json"),
        "split": images.split,
        "listed": sorted(images.listed),
        "found": sorted(images.found),
        "missing": images.missing,
        "official": images.official,
    }
    write_json(_state(out, run.name, run.card.folder), content)


@contextmanager
def own(out: Path) -> Iterator[None]:
    """Hold a folder of results; its cache is nothing to publish, and says so to git.

    Raises:
        UserError: it cannot be written, or another command works in it.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; give a folder for results.")
    cache = out / CACHE
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(cache))
        except UserError:
            holder = holder_of(cache)
            if holder is None:
                raise
            raise UserError(
                f"{out}: another 'bench' works in this folder ({holder}); wait for it, or give"
                " another --out."
            ) from None
        write_text(cache / ".gitignore", "*\n")
        yield


def rescore(
    out: Path,
    *,
    device: str = "auto",
    resamples: int | None = None,
    seed: int | None = None,
    say: Callable[[str], None] | None = None,
) -> tuple[dict[tuple[str, str], Record], dict[tuple[str, str], str]]:
    """Measure every card run in a folder of results anew.

    Args:
        out: folder of results.
        device: where scores are computed.
        resamples: of the intervals; None for as many as before.
        seed: of the intervals; None for the same.
        say: takes a sentence on each.

    Returns:
        Records, and the reasons against those that could not be measured, by model and card.

    Raises:
        UserError: there are no results in the folder, or another run works in it.
    """
    out = out.absolute()
    models = sorted(path.parent for path in out.glob(f"*/{MODEL}"))
    if not models or not (out / CACHE).is_dir():
        raise UserError(
            f"{out}: has no results with their cache; give the --out of 'bench' on the machine"
            " that ran it."
        )
    records: dict[tuple[str, str], Record] = {}
    reasons: dict[tuple[str, str], str] = {}
    with own(out):
        for folder in models:
            rescoring = _Rescoring(out, folder, device)
            for place in sorted(path.parent for path in folder.glob(f"*/{RECORD}")):
                key = folder.name, place.name
                try:
                    records[key] = rescoring.card(place, resamples, seed)
                except UserError as error:
                    reasons[key] = str(error)
                if say:
                    say(f"{key[0]} on {key[1]}: {reasons.get(key, 'measured again.')}")
    return records, reasons


class _Rescoring:
    """One model's cards, with the model and the sets opened once."""

    def __init__(self, out: Path, folder: Path, device: str) -> None:
        self._out, self._device = out, device
        self._record = read_model(folder)
        self._models: dict[str, ImageTextModel] = {}
        self._sets: dict[str, PreparedSet] = {}
        self._vectors: dict[str, CachedVectors] = {}

    def card(self, place: Path, resamples: int | None, seed: int | None) -> Record:
        state = _read_state(_state(self._out, self._record.name, place.name))
        card = validate(Card, state["card"], str(place))
        results = read_json(place / "results.json", _AGAIN)
        draw = draw_of(results)
        if draw is None:
            raise UserError(f"{place / 'results.json'}: does not say its intervals; {_AGAIN}.")
        if resamples is not None:
            draw = replace(draw, resamples=resamples)
        if seed is not None:
            draw = replace(draw, seed=seed)
        folder, archive = Path(state["model"]), Path(state["archive"])
        model = self._model(folder)
        data = self._set(state["set"])
        if data.content_hash != results.get("data_hash"):
            raise UserError(f"{data.folder}: is another set than was measured; {_AGAIN}.")
        names = frozenset(state["listed"]), frozenset(state["found"])
        judged = only_listed(data, names[1], state["split"]) if state["official"] else data
        images = CardImages(judged, state["split"], *names, state["missing"], state["official"])
        run = CardRun.of(self._record.name, folder, model, card, archive, images)
        return run.write(self._out, self._cached(model, data), draw, {"encode": 0.0})

    def _model(self, folder: Path) -> ImageTextModel:
        from medclip_debias.models.device import best_device
        from medclip_debias.models.load import load_model

        if str(folder) not in self._models:
            # Unchecked: its golden samples would have to be encoded.
            model = load_model(folder, best_device(self._device), check=False)
            if model.content_hash != self._record.hash:
                raise UserError(f"{folder}: is another model than was measured; {_AGAIN}.")
            self._models[str(folder)] = model
        return self._models[str(folder)]

    def _set(self, key: str) -> PreparedSet:
        if key not in self._sets:
            data = PreparedSet.open(self._out / CACHE / "sets" / key)
            check_sample(data)
            self._sets[key] = data
        return self._sets[key]

    def _cached(self, model: ImageTextModel, data: PreparedSet) -> CachedVectors:
        if data.content_hash not in self._vectors:
            cache = self._out / CACHE / "features"
            self._vectors[data.content_hash] = CachedVectors(cache, model, data)
        return self._vectors[data.content_hash]


def _state(out: Path, model: str, card: str) -> Path:
    return out / CACHE / "runs" / model / f"{card}.json"


def _read_state(path: Path) -> dict[str, Any]:
    return read_json(path, _AGAIN, keys=_KEYS)
