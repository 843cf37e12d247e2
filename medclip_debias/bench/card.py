"""A task card: one task of the field, written down once.

A card is data: which archive and which of its images, which prompts, which published protocol
(`medclip_debias.evaluation.presets`), which metrics, what others published and what is known to
differ. What it asks for is done by `medclip_debias.evaluation.evaluate`; a card holds no code.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from medclip_debias.config import Settings, json_hash, validate
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.settings_files import load_yaml

Kind = Literal["zero_shot", "grounding", "segmentation", "retrieval", "negation", "time"]


class ImageList(Settings):
    """Which images of the archive a card judges.

    Attributes:
        split: of the prepared set that is judged; ``all`` puts every image into it.
        file: official list below the archive's folder (``*`` stands for any letters); None where
            the archive's own tables say it.
        column: of a CSV, or key of the entries of a JSON list, that names the images; None for a
            text file with a name a line, or a JSON object whose keys are the images.
        where: cells that a row of a CSV must have, as ``{split: test}``.
        images: how many the official list has; None where it is not published.
        boxes: how many the archive's official box file has; None where it is not published.
        hash: `medclip_debias.bench.images.list_hash` of the official list, where it is known.
            Lists themselves are never stored.
    """

    split: Literal["test", "validate", "all"] = "test"
    file: str | None = None
    column: str | None = None
    where: dict[str, str] = Field({})
    images: int | None = Field(None, ge=1)
    boxes: int | None = Field(None, ge=1)
    hash: str | None = Field(None, pattern="^[0-9a-f]{16}$")


class EvaluationFiles(Settings):
    """Files that `medclip_debias.evaluation.evaluate` is given, below the archive's folder.

    Some are the archive's, others are made of it by ``scripts/cards.py``. Attributes are those of
    its keywords.
    """

    labels: str | None = None
    class_images: str | None = None
    phrases: str | None = None
    triplets: str | None = None


class CardData(Settings):
    """Where a card's images come from.

    Attributes:
        archive: kind of source, as ``prepare --kind`` takes it.
        folders: names that the archive's folder usually has below the data's root.
        obtain: what to get and where, in one sentence, for who lacks it.
        prepare: settings of the selection, as ``views`` and ``labels``
            (`medclip_debias.config.SelectionSettings`).
        reports: settings of the reports (`medclip_debias.data.text.reports.ReportSettings`).
        list: which of its images are judged.
        files: that the evaluation needs beside the prepared set.
        synthetic: whether the card is of a phantom; one of a real archive never runs on one.
    """

    archive: str
    folders: tuple[str, ...] = ()
    obtain: str
    prepare: dict[str, Any] = Field({})
    reports: dict[str, Any] = Field({})
    list: ImageList = ImageList()
    files: EvaluationFiles = EvaluationFiles()
    synthetic: bool = False


class Published(Settings):
    """A figure that somebody published; it was not reproduced here.

    Attributes:
        model: whose.
        metric: key of the metric, as in ``Card.metrics``.
        value: as printed.
        source: where it stands: paper, table.
        protocol: what is known of how it was measured, where it differs from the card's.
    """

    model: str
    metric: str
    value: float
    source: str
    protocol: str = ""


class CardName(Settings):
    """A card's name, as ``chestxray14/zero-shot``, and version."""

    name: str
    version: int

    @property
    def full_name(self) -> str:
        """Name and version, as ``chestxray14/zero-shot@1``."""
        return f"{self.name}@{self.version}"

    @property
    def folder(self) -> str:
        """Name of a folder for it, as ``chestxray14.zero-shot@1``."""
        return self.full_name.replace("/", ".")


class MeasuredCard(CardName):
    """Which card was run, and the hash of its content."""

    hash: str


class Card(CardName):
    """A task, versioned: another version is another task.

    Attributes:
        name: as ``chestxray14/zero-shot``.
        version: raised whenever a figure could change.
        kind: of task.
        title, about: for people.
        data: archive and images.
        prompts: packaged prompt set; None for a task without prompts.
        classes: those of the prompt set that are judged; None for all.
        label_map: packaged label map that says what the archive's columns mean.
        preset: published protocol.
        options: of the evaluation (`medclip_debias.evaluation.options.EvaluationOptions`).
        metrics: keys into ``results.json``, as ``zero_shot.mean_auc``; the first one ranks.
        published: figures of others.
        differs: what is known to differ from how others measure it, a sentence each.
    """

    name: str = Field(pattern="^[a-z0-9_.-]+/[a-z0-9_.-]+$")
    version: int = Field(ge=1)
    kind: Kind
    title: str
    about: str
    data: CardData
    prompts: str | None = None
    classes: tuple[str, ...] | None = None
    label_map: str | None = None
    preset: str = "ours"
    options: dict[str, Any] = Field({})
    metrics: tuple[str, ...] = Field(min_length=1)
    published: tuple[Published, ...] = ()
    differs: tuple[str, ...] = ()

    @property
    def measured(self) -> MeasuredCard:
        """What a record holds of it."""
        return MeasuredCard(name=self.name, version=self.version, hash=self.content_hash)

    @property
    def content_hash(self) -> str:
        """Of everything that a figure depends on: not of titles, notes and others' figures.

        What a card leaves at its default is left out, so that a setting which a later version of
        the program adds does not make every published result one of another card.
        """
        words = {"title", "about", "published", "differs"}
        content = self.model_dump(mode="json", exclude=words | {"data"}, exclude_defaults=True)
        data = self.data.model_dump(
            mode="json",
            exclude={"obtain": True, "folders": True, "list": {"boxes": True}},
            exclude_defaults=True,
        )
        if not data.get("list", True):  # only a count of boxes, which no figure depends on
            del data["list"]
        data = {key: value for key, value in data.items() if value != {}}
        return json_hash(content | {"data": data})

    @model_validator(mode="after")
    def _figures_are_of_its_metrics(self) -> Card:
        for figure in self.published:
            if figure.metric not in self.metrics:
                raise ValueError(
                    f"a published figure is for '{figure.metric}', which is not one of its metrics"
                )
        return self


@cache
def packaged_cards() -> dict[str, Card]:
    """Every card of this version by name, sorted."""
    folder = files("medclip_debias.bench") / "cards"
    cards: dict[str, Card] = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".yaml"):
            with as_file(entry) as path:
                card = validate(Card, load_yaml(path), str(path))
            if card.name in cards:
                raise UserError(f"{entry.name}: another card is already named '{card.name}'.")
            cards[card.name] = card
    return dict(sorted(cards.items()))


def find_card(word: str) -> Card:
    """The card of a name, with or without ``@version``."""
    name, _, version = word.partition("@")
    cards = packaged_cards()
    if name not in cards:
        raise UserError(
            f"There is no task card '{name}'{did_you_mean(name, cards)}; 'bench list' shows them."
        )
    card = cards[name]
    if version and version != str(card.version):
        raise UserError(
            f"Card '{name}' is at version {card.version} here, not {version}; results of the two"
            " cannot share one table."
        )
    return card


def cards_of(tasks: str) -> tuple[list[Card], frozenset[str]]:
    """Cards, and the full names of those that were asked for by name.

    Args:
        tasks: ``all``, or words with commas: a card's name, with or without ``@version``; a
            pattern, as ``chestxray14/*``; a YAML file with a card of one's own.
    """
    chosen: dict[str, Card] = {}
    named: set[str] = set()
    for word in dict.fromkeys(part.strip() for part in tasks.split(",") if part.strip()):
        if word == "all":
            cards = list(packaged_cards().values())
        elif word.endswith((".yaml", ".yml")):
            cards = [validate(Card, load_yaml(Path(word)), word)]
        elif set(word) & set("*?["):
            cards = [card for name, card in packaged_cards().items() if fnmatchcase(name, word)]
            if not cards:
                raise UserError(f"No task card fits '{word}'; 'bench list' shows them.")
        else:
            cards = [find_card(word)]
        for card in cards:
            if chosen.setdefault(card.full_name, card) != card:
                raise UserError(
                    f"{word}: another card is already named '{card.full_name}'; give it another"
                    " name."
                )
        if len(cards) == 1 and word != "all" and not set(word) & set("*?["):
            named.add(cards[0].full_name)
    if not chosen:
        raise UserError("--tasks names no card; write 'all', or names as 'bench list' shows them.")
    return list(chosen.values()), frozenset(named)
