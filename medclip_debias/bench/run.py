"""The benchmark itself: every model on every card whose archive is there.

An archive is prepared once a preprocessing, an image encoded once a model, whatever number of cards
judge it; what is done is found again by the hashes of card, model and images. Whatever cannot be
run is named with the reason, and the rest goes on.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.bench.card import Card
from medclip_debias.bench.find import Archives
from medclip_debias.bench.lists import check_list
from medclip_debias.bench.record import (
    CACHE,
    RECORD,
    RESULTS,
    CardName,
    Figure,
    Judged,
    Record,
    check_model,
    keep_model,
    named_models,
    read_record,
    record_of,
    without_places,
)
from medclip_debias.bench.sets import PLACES, CardImages, Recipe, card_images
from medclip_debias.bench.vectors import CachedVectors
from medclip_debias.config import Preprocessing, validate
from medclip_debias.data.executor import map_pieces
from medclip_debias.data.label_maps import LabelMap, load_label_map
from medclip_debias.data.prompts import PromptSet, load_prompts
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.evaluation.catalogue import PROTOCOLS, address
from medclip_debias.evaluation.evaluate import Planned, measure, plan
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.presets import chosen_presets
from medclip_debias.evaluation.protocol import Draw, Request
from medclip_debias.evaluation.provenance import versions
from medclip_debias.evaluation.table import Results, read_results
from medclip_debias.evaluation.zero_shot import ONE_VALUE
from medclip_debias.files import atomic_folder, write_json, write_text
from medclip_debias.grounding.saliency import with_maps
from medclip_debias.models.expected_images import expected_images
from medclip_debias.models.finite import NotFiniteError
from medclip_debias.training.lock import holder_of, locked

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.interface import ImageTextModel

Say = Callable[[str], None]
Bars = Callable[[str], AbstractContextManager[Callable[..., None]]]
"""Opens a progress bar for a kind of thing; it is called with how many are done, and of all."""

_BATCH = 64
"""Images whose vectors are looked at together."""


def silent(_: str) -> AbstractContextManager[Callable[..., None]]:
    """No progress bar."""
    return nullcontext(lambda *_: None)


@dataclass(frozen=True)
class How:
    """How the benchmark is run.

    Attributes:
        draw: of the intervals.
        device: where models run; ``auto`` takes a GPU when there is one.
        batch_size: images encoded at a time.
        workers: processes that prepare; all processors by default.
        again: measure anew what is done, too, from the vectors that are kept.
        cluster: where models are run, one a worker, instead of one after the other here; see
            `medclip_debias.data.executor.map_pieces`.
        bars: progress bars.
        say: takes sentences on what happens.
    """

    draw: Draw = field(default_factory=Draw)
    device: str = "auto"
    batch_size: int = 32
    workers: int | None = None
    again: bool = False
    cluster: str | None = None
    bars: Bars = silent
    say: Say = lambda _: None


@dataclass
class Outcome:
    """What became of every model on every card.

    Attributes:
        records: by model and card.
        fresh: those of them that were measured now.
        not_run: why others were not; a model's name is blank where no model could.
    """

    records: dict[tuple[str, str], Record] = field(default_factory=dict)
    fresh: set[tuple[str, str]] = field(default_factory=set)
    not_run: dict[tuple[str, str], str] = field(default_factory=dict)


def bench(
    models: Sequence[str], cards: Sequence[Card], root: Path, out: Path, how: How | None = None
) -> Outcome:
    """Run every model on every card.

    Args:
        models: folders, or ``NAME=FOLDER``.
        cards: tasks.
        root: folder below which the archives are.
        out: results; ``out/cache`` keeps prepared sets and vectors, which are not to be shared.
        how: see `How`.

    Raises:
        UserError: a model cannot be found, ``out`` holds another model's results or is in use.
    """
    how = how or How()
    # Absolute: what must not be in results is found in them by its whole path.
    folders = {name: folder.absolute() for name, folder in named_models(models).items()}
    root, out = root.absolute(), out.absolute()
    archives = Archives(root)
    outcome = Outcome()
    places: dict[str, Path] = {}
    for card in cards:
        try:
            archive = archives.of(card)
            # What is wrong with a card or its list shall be said before hours of work.
            Inputs.of(card, archive)
            Recipe.of(card, archive, Preprocessing())
            check_list(card, archive)
            places[card.full_name] = archive
        except UserError as error:
            outcome.not_run["", card.full_name] = str(error)
    there = [card for card in cards if card.full_name in places]
    if not there:
        return outcome
    with _held(out):
        if how.cluster is None:
            clock = _Clock(len(folders) * len(there), how.say)
            for name, folder in folders.items():
                _Model(name, folder, out, how, outcome, clock).run(there, places)
        else:
            _on_cluster(how.cluster, folders, there, places, out, how, outcome)
    return outcome


def _on_cluster(
    cluster: str,
    folders: Mapping[str, Path],
    cards: Sequence[Card],
    places: Mapping[str, Path],
    out: Path,
    how: How,
    outcome: Outcome,
) -> None:
    """Every model in a worker of its own; first the sets, each once, for models share them."""
    recipes: dict[str, Recipe] = {}
    for folder in folders.values():
        for card in cards:
            with suppress(UserError):  # the model's own run names it
                recipe = Recipe.of(card, places[card.full_name], expected_images(folder))
                recipes[recipe.key] = recipe
    sets = [(recipe, out / CACHE, how.workers) for recipe in recipes.values()]
    with how.bars("Sets") as bar:
        for number, _ in enumerate(map_pieces(_prepare, sets, cluster=cluster), start=1):
            bar(number, len(sets))
    quiet = replace(how, bars=silent, say=_unsaid)
    jobs = [(name, folder, out, quiet, cards, places) for name, folder in folders.items()]
    for part, sentences in map_pieces(_run_model, jobs, cluster=cluster):
        outcome.records |= part.records
        outcome.fresh |= part.fresh
        outcome.not_run |= part.not_run
        for sentence in sentences:
            how.say(sentence)


def _prepare(job: tuple[Recipe, Path, int | None]) -> None:
    recipe, cache, workers = job
    with suppress(UserError):  # the model's own run names it
        recipe.make(cache, workers, None, None)


def _run_model(
    job: tuple[str, Path, Path, How, Sequence[Card], Mapping[str, Path]],
) -> tuple[Outcome, list[str]]:
    name, folder, out, how, cards, places = job
    outcome, sentences = Outcome(), list[str]()
    how = replace(how, say=sentences.append)
    clock = _Clock(len(cards), sentences.append)
    _Model(name, folder, out, how, outcome, clock).run(cards, places)
    return outcome, sentences


def _unsaid(_: str) -> None:
    pass


@contextmanager
def _held(out: Path) -> Iterator[None]:
    """Hold a folder of results; its cache is nothing to publish, and says so to git."""
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


class _Model:
    """One model on its cards."""

    def __init__(
        self, name: str, folder: Path, out: Path, how: How, outcome: Outcome, clock: _Clock
    ) -> None:
        self.name, self.folder, self.out = name, folder, out
        self.how, self.outcome, self.clock = how, outcome, clock

    def run(self, cards: Sequence[Card], places: Mapping[str, Path]) -> None:
        """Run the cards, set by set."""
        from medclip_debias.models.device import best_device
        from medclip_debias.models.interface import need_vectors
        from medclip_debias.models.load import load_model

        try:
            model = load_model(self.folder, best_device(self.how.device))
            need_vectors(model, "bench", several=True)
        except UserError as error:
            for card in cards:
                self._not_run(card, error)
            return
        self.record = record_of(self.name, model)
        check_model(self.out, self.record)
        sets: dict[str, tuple[Recipe, list[Card]]] = {}
        for card in cards:
            with self._naming(card):
                recipe = Recipe.of(card, places[card.full_name], model.preprocessing)
                sets.setdefault(recipe.key, (recipe, []))[1].append(card)
        for recipe, of_set in sets.values():
            self._on_set(model, recipe, of_set)

    def _on_set(self, model: ImageTextModel, recipe: Recipe, cards: Sequence[Card]) -> None:
        cache = self.out / CACHE
        try:
            with self.how.bars("Reports, images") as bar:
                data = recipe.make(cache, self.how.workers, bar, self.how.say)
        except UserError as error:
            for card in cards:
                self._not_run(card, error)
            return
        runs = [run for card in cards if (run := self._planned(model, recipe, card, data))]
        if not runs:
            return
        vectors = CachedVectors(cache / "features", model, data)
        try:
            seconds = self._encode(vectors, runs)
        except (NotFiniteError, UserError) as error:
            for run in runs:
                self._not_run(run.card, error)
            return
        for run in runs:
            with self._naming(run.card):
                record = run.write(self.out, vectors, self.how.draw, {"encode": seconds})
                keep_model(self.out, self.record)
                self._ran(run.card, record, fresh=True)

    def _planned(
        self, model: ImageTextModel, recipe: Recipe, card: Card, data: PreparedSet
    ) -> CardRun | None:
        """What is still to be done of a card."""
        with self._naming(card):
            images = card_images(card, recipe.archive, recipe, data)
            inputs = Inputs.of(card, recipe.archive)
            run = CardRun(self.name, self.folder, model, card, recipe.archive, images, inputs)
            record = None if self.how.again else run.finished(self.out, self.how.draw)
            if record is None:
                run.plan()
                return run
            self._ran(card, record, fresh=False)
        return None

    def _encode(self, vectors: CachedVectors, runs: Sequence[CardRun]) -> float:
        """One pass over what any of the cards needs; the seconds it took."""
        began = time.perf_counter()
        rows: set[int] = set()
        mapped: set[int] = set()
        texts: dict[str, None] = {}
        for run in filter(lambda run: run.reads_vectors, runs):
            rows |= run.planned.rows
            mapped |= run.planned.rows if run.reads_regions else set()
            texts |= dict.fromkeys(run.planned.texts)
        with self.how.bars(f"Images ({self.name})") as bar:
            vectors.encode(
                rows, list(texts), regions=mapped, batch_size=self.how.batch_size, progress=bar
            )
        return time.perf_counter() - began

    @contextmanager
    def _naming(self, card: Card) -> Iterator[None]:
        """Name a card that cannot be run, and go on."""
        try:
            yield
        except (UserError, NotFiniteError) as error:
            self._not_run(card, error)

    def _not_run(self, card: Card, error: Exception) -> None:
        self.outcome.not_run[self.name, card.full_name] = str(error)
        self.clock.passed(f"{self.name} on {card.full_name}: not run.")

    def _ran(self, card: Card, record: Record, *, fresh: bool) -> None:
        key = self.name, card.full_name
        self.outcome.records[key] = record
        if fresh:
            self.outcome.fresh.add(key)
        metric, figure = next(iter(record.metrics.items()))
        shown = f"{metric} {figure.value:.3f}" + ("" if fresh else ", as it was")
        if record.status == "incomplete":
            shown += f"; incomplete, {record.judged.lacks}"
        self.clock.passed(f"{self.name} on {card.full_name}: {shown}.", worked=fresh)
        for note in record.notes if fresh else ():
            self.how.say(f"    {note}")


class _Clock:
    """Says how many of the card runs are over, and how long the others may take."""

    def __init__(self, total: int, say: Say) -> None:
        self._total, self._say = total, say
        self._began, self._over, self._worked = time.monotonic(), 0, 0

    def passed(self, sentence: str, *, worked: bool = False) -> None:
        """Count a card run; only those with work in them say how long one takes."""
        self._over += 1
        self._worked += worked
        left = ""
        if self._worked and self._over < self._total:
            each = (time.monotonic() - self._began) / self._worked
            left = f", about {each * (self._total - self._over):.0f} s left"
        self._say(f"[{self._over} of {self._total}{left}] {sentence}")


# ------------------------------------------------------------------- one model on one card


@dataclass(frozen=True)
class Inputs:
    """What a card gives to the evaluation, read and checked before any work is done.

    Attributes:
        protocols: that give its metrics.
        prompts: of the classes that are judged.
        options: of the evaluation, with the preset.
        label_map: what the archive's columns mean.
        files: beside the prepared set, by keyword of the request.
    """

    protocols: frozenset[str]
    prompts: PromptSet
    options: EvaluationOptions
    label_map: LabelMap | None
    files: Mapping[str, Any]

    @classmethod
    def of(cls, card: Card, archive: Path) -> Inputs:
        """Read what a card names.

        Raises:
            UserError: this version lacks something of it, or a file is not there.
        """
        protocols = frozenset(address(key)[0] for key in card.metrics)
        unknown = sorted(protocols - set(PROTOCOLS))
        if unknown:
            raise UserError(
                f"{card.full_name}: this version has no protocol"
                f" '{unknown[0]}'{did_you_mean(unknown[0], PROTOCOLS)}."
            )
        chosen_presets(card.preset)
        content = {**card.options, "preset": card.preset}
        return cls(
            protocols,
            load_prompts(card.prompts or "chex5").only(card.classes),
            validate(EvaluationOptions, content, f"card {card.full_name}", "options."),
            None if card.label_map is None else load_label_map(card.label_map),
            _files(card, archive),
        )


def _files(card: Card, archive: Path) -> dict[str, Path]:
    """Files that the evaluation is given beside the set, by keyword."""
    files = {keyword: archive / name for keyword, name in card.data.files if name is not None}
    for path in files.values():
        if not path.is_file():
            raise UserError(
                f"{path}: is not there, and {card.full_name} is measured with it; it comes"
                f" with: {card.data.obtain.rstrip('.')}."
            )
    return files


@dataclass
class CardRun:
    """One model on one card.

    Attributes:
        name, folder, model: of the model.
        card: what is measured.
        archive: where its images are.
        images: that are judged.
        inputs: of the evaluation.
    """

    name: str
    folder: Path
    model: ImageTextModel
    card: Card
    archive: Path
    images: CardImages
    inputs: Inputs
    planned: Planned = field(init=False)

    def plan(self) -> None:
        """See what is asked of the model.

        Raises:
            UserError: the model, the set or this version of the program does not allow it.
        """
        grid = self.model.grid
        if self.card.kind in PLACES and grid.rows * grid.columns < 2:
            raise UserError(
                f"{self.name}: gives one vector an image and no regions, and {self.card.full_name}"
                " asks where in an image a finding is."
            )
        request = Request(
            data=self.images.data,
            split=self.images.split,
            model=with_maps(self.model, self.inputs.options.method),
            prompts=self.inputs.prompts,
            options=self.inputs.options,
            model_folder=self.folder,
            label_map=self.inputs.label_map,
        )
        request = replace(request, **self.inputs.files)
        self.planned = plan(request, self.inputs.protocols)

    @property
    def reads_regions(self) -> bool:
        """Whether the regions of its images are looked at."""
        return any(protocol.reads_regions for protocol in self.planned.protocols)

    @property
    def reads_vectors(self) -> bool:
        """Whether kept vectors will do; maps that explain a score need the images themselves."""
        return self.inputs.options.method == "similarity"

    def finished(self, out: Path, draw: Draw) -> Record | None:
        """The record in ``OUT/MODEL/CARD@VERSION``, if it is of these very inputs."""
        folder = out / self.name / self.card.folder
        try:
            results, record = read_results(folder / RESULTS), read_record(folder)
        except UserError:  # damaged, or of another format: it is measured again
            return None
        label_map = self.inputs.label_map
        same = (
            record.card == self._card_name
            and record.model_hash == self.model.content_hash
            and record.judged.set_hash == self.images.data.content_hash
            and record.judged.list_hash == self.images.list_hash
            and record.judged.missing == self.images.missing
            and results.resamples == draw.resamples
            and results.get("seed") == draw.seed
            and results.get("prompts") == self.inputs.prompts.model_dump(mode="json")
            and results["options"].get("label_map")
            == (None if label_map is None else [label_map.name, label_map.digest])
            and all(
                path.stat().st_mtime <= (folder / RECORD).stat().st_mtime
                for path in self.inputs.files.values()
            )
            and (folder / "items").is_dir()
        )
        return record if same else None

    @property
    def _card_name(self) -> CardName:
        card = self.card
        return CardName(name=card.name, version=card.version, hash=card.content_hash)

    def write(
        self, out: Path, vectors: CachedVectors, draw: Draw, seconds: Mapping[str, float]
    ) -> Record:
        """Measure, and write ``OUT/MODEL/CARD@VERSION`` as a whole.

        Raises:
            UserError: none of the card's metrics can be measured.
        """
        began = time.perf_counter()
        card, images = self.card, self.images
        target = out / self.name / card.folder
        with _without_empty(target.parent), atomic_folder(target) as temporary:
            results = measure(
                self.planned,
                temporary,
                draw,
                images.names,
                vectors=vectors.read(regions=self.reads_regions) if self.reads_vectors else None,
                batch_size=_BATCH,
            )
            places = {
                str(self.archive): "ARCHIVE",
                str(self.folder): "MODEL",
                str(images.data.folder): "SET",
                str(out): "RESULTS",
            }
            results = Results(without_places(results, places))
            results.write(temporary / RESULTS)
            refused = _refused_classes(card, self.inputs.label_map, results)
            metrics, reasons = figures(card, results)
            if not metrics:
                why = " ".join(dict.fromkeys(reasons.values()))
                raise UserError(f"{card.full_name}: none of its metrics can be measured. {why}")
            judged = self._judged(results)
            record = Record(
                card=self._card_name,
                model_hash=str(self.model.content_hash),
                preset=card.preset,
                judged=judged,
                status=judged.status,
                metrics=metrics,
                reasons=reasons,
                notes=(*_lacking(judged, results), *refused, *results["notes"]),
                seconds={**seconds, "score": time.perf_counter() - began},
                versions=versions(),
                command=self._command(draw),
            )
            write_json(temporary / RECORD, record.model_dump(mode="json"))
        return record

    def _judged(self, results: Results) -> Judged:
        images, boxes = self.images, results.details("grounding").get("boxes")
        return Judged(
            archive=self.card.data.archive,
            set_hash=images.data.content_hash,
            list_hash=images.list_hash,
            wanted=len(images.listed),
            found=len(images.found),
            missing=images.missing,
            boxes=boxes,
            boxes_wanted=None if boxes is None else self.card.data.list.boxes,
        )

    def _command(self, draw: Draw) -> str:
        words = ["medclip-debias", "bench", f"{self.name}=MODEL", "--tasks", self.card.full_name]
        words += ["--data", "ROOT", "--out", "RESULTS"]
        words += [] if draw.resamples == Draw().resamples else ["--bootstrap", str(draw.resamples)]
        words += [] if draw.seed == Draw().seed else ["--seed", str(draw.seed)]
        return shlex.join(words)


@contextmanager
def _without_empty(folder: Path) -> Iterator[None]:
    """Leave no empty folder of a model behind when its card fails."""
    try:
        yield
    finally:
        with suppress(OSError):  # it holds results
            folder.rmdir()


def figures(card: Card, results: Results) -> tuple[dict[str, Figure], dict[str, str]]:
    """The card's metrics with their intervals, and why others have no value."""
    metrics: dict[str, Figure] = {}
    reasons: dict[str, str] = {}
    for key in card.metrics:
        row = results.of(key)
        if row is None:
            why = results["skipped"].get(address(key)[0], "these images allow no such metric.")
            reasons[key] = str(why)
        else:
            metrics[key] = Figure(value=row["value"], low=row["low"], high=row["high"])
    return metrics, reasons


def _lacking(judged: Judged, results: Results) -> Iterator[str]:
    """What of the card's images, labels and boxes no figure is of, a sentence each."""
    if judged.missing:
        yield (
            f"{judged.missing} of the {judged.wanted} images of the card's list are not on the"
            " disk, or cannot be read."
        )
    labelled = results.details("zero_shot").get("images")
    if isinstance(labelled, int) and labelled < judged.found:
        yield (
            f"{judged.found - labelled} of the {judged.found} judged images have no label, and"
            " are in no figure of zero-shot classification."
        )
    if judged.boxes_wanted is not None and judged.boxes != judged.boxes_wanted:
        yield f"{judged.boxes} of the card's {judged.boxes_wanted} boxes are in this archive."


def _refused_classes(card: Card, label_map: LabelMap | None, results: Results) -> list[str]:
    """Classes that no mean is over, in a sentence.

    Raises:
        UserError: the labels lack the column of one: they are of another version.
    """
    refused = results.details("zero_shot").get("refused") or {}
    left_out = {} if label_map is None else label_map.reasons
    lacking = [n for n, r in refused.items() if r["reason"] != ONE_VALUE and n not in left_out]
    if lacking:
        raise UserError(
            f"{card.full_name}: the archive's labels have no column for {', '.join(lacking)}, so"
            " they are of another version than the card's; get the release that it names:"
            f" {card.data.obtain.rstrip('.')}."
        )
    each = [f"{name} ({why['reason'].rstrip('.')})" for name, why in refused.items()]
    return [f"Not judged, and in no mean: {', '.join(each)}."] if each else []


def summary(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON values."""
    return {
        "ran": [
            {
                "model": model,
                "card": card,
                "status": record.status,
                "measured_now": (model, card) in outcome.fresh,
                "metrics": {key: figure.value for key, figure in record.metrics.items()},
                "missing": record.judged.missing,
            }
            for (model, card), record in outcome.records.items()
        ],
        "not_run": [
            {"model": model or None, "card": card, "reason": reason}
            for (model, card), reason in outcome.not_run.items()
        ],
    }
