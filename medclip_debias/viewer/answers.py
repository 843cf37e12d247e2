"""What the viewer's page answers: radiographs, heatmaps, probabilities, search; no web in here."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medclip_debias.data.images import prepare_image, read_radiograph
from medclip_debias.data.prompts import PromptSet, load_prompts
from medclip_debias.errors import UserError
from medclip_debias.evaluation.classification import sigmoid
from medclip_debias.evaluation.prompt_scores import class_scores
from medclip_debias.grounding.absent import AbsentFindings
from medclip_debias.grounding.files import GroundOptions, write_groundings
from medclip_debias.grounding.find import Say, find_images
from medclip_debias.grounding.ground import ground_features, region_grid
from medclip_debias.grounding.overlay import thinned
from medclip_debias.grounding.search.query import Hit, SearchIndex
from medclip_debias.grounding.sentences import cut_notes
from medclip_debias.models.dual_encoder import best_device
from medclip_debias.models.finite import finite
from medclip_debias.models.load import load_model
from medclip_debias.models.synthetic import synthetic_warning

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

MOST_SENTENCES = 20
MOST_CHARACTERS = 1000  # of a sentence
MOST_IMAGES = 2000


@dataclass(frozen=True, eq=False)
class ViewedImage:
    """One radiograph as the model has seen it; its file is not needed any more.

    Attributes:
        name: of its file, without the folder.
        grey: uint8 ``[height, width]`` of the original, clipped and stretched.
        features: of this one image.
    """

    name: str
    grey: NDArray[np.uint8]
    features: ImageFeatures

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the original."""
        height, width = self.grey.shape
        return height, width

    def small(self) -> NDArray[np.uint8]:
        """The image with every n-th pixel, 1,200 a side at most, for a page."""
        return thinned(self.grey, 0.0, 0.0, 1.0, 1.0)[0]


@dataclass(frozen=True)
class Look:
    """Sentences seen on an image.

    Attributes:
        pictures: for each sentence its PNG file, drawn as ``medclip-debias ground`` draws it.
        rows: for each sentence what ``groundings.json`` says about it (text, score, lowest,
            highest, peak, boxes).
        notes: one line for each sentence that the encoder cuts.
    """

    pictures: list[bytes]
    rows: list[dict[str, Any]]
    notes: list[str]


@dataclass(frozen=True)
class ClassRow:
    """Zero-shot answer for one class of one prompt set.

    Attributes:
        prompt_set: name of the set.
        name: of the class.
        probability: sigmoid of the scaled difference; None for a model without a scale.
        present: mean score of the prompts that say it is there.
        absent: mean score of those that say it is not.
    """

    prompt_set: str
    name: str
    probability: float | None
    present: float
    absent: float


@dataclass(frozen=True)
class Found:
    """One search result, with the prepared image where the set is still there."""

    hit: Hit
    image: NDArray[np.uint8] | None


class Answers:
    """One model, perhaps with an index and a folder of images.

    Args:
        model: in evaluation mode, with regions.
        name: what the page calls it.
        index: a search index built with this model.
        images: image files that may be chosen, by the name shown.

    Raises:
        UserError: the model has no regions, or its prompts are not whole.
    """

    def __init__(
        self,
        model: ImageTextModel,
        name: str,
        index: SearchIndex | None = None,
        images: Mapping[str, Path] | None = None,
    ) -> None:
        region_grid(model)
        self.model = model
        self.name = name
        self.index = index
        self.images = dict(images or {})
        self.prompt_sets = _prompt_sets(model)

    @classmethod
    def open(
        cls,
        model: Path,
        index: Path | None = None,
        images: Path | None = None,
        device: str = "auto",
        say: Say | None = None,
    ) -> Answers:
        """Read everything that the page needs.

        Args:
            model: model folder, also of another group's model.
            index: folder of a search index of this model.
            images: folder of DICOM, JPG and PNG files to choose from.
            device: cpu, cuda, or auto.
            say: called with a sentence on files of ``images`` that are left aside.

        Raises:
            UserError: any of them is missing, damaged or does not fit the others.
        """
        listed = listed_images(images, say) if images is not None else {}
        found = SearchIndex.open(index) if index is not None else None
        loaded = load_model(model, best_device(device))
        if found is not None:
            found.check_model(loaded.content_hash, model)
        return cls(loaded, "/".join(Path(model).resolve().parts[-2:]).lstrip("/"), found, listed)

    # ------------------------------------------------------------------------------ images

    def read(self, path: Path) -> ViewedImage:
        """Read an image file and encode it; the sentence of an error names the file alone.

        Raises:
            UserError: it is no radiograph that can be used.
        """
        settings = self.model.preprocessing.prepare
        try:
            image = read_radiograph(path, settings.window)
            grey = image.stretched(settings)
            square = torch.from_numpy(prepare_image(image, settings)[None])
        except UserError as error:
            # The page must not learn where an upload lies on the server.
            raise UserError(str(error).replace(str(path), path.name)) from error
        with torch.inference_mode():
            features = self.model.encode_images(square).cpu()
        return ViewedImage(path.name, grey, features)

    def choose(self, name: str) -> ViewedImage:
        """Read one of `images`.

        Raises:
            UserError: there is none of this name, or it cannot be used.
        """
        if name not in self.images:
            raise UserError("there is no such image in the folder; choose one of the list.")
        return self.read(self.images[name])

    # ----------------------------------------------------------------------------- answers

    def look(self, image: ViewedImage, text: str, options: GroundOptions | None = None) -> Look:
        """Where on an image each sentence is seen.

        Args:
            image: what `read` gave.
            text: sentences, one a line; empty lines do not count.
            options: what is drawn; no map is written whatever they say.

        Raises:
            UserError: no sentence, more than `MOST_SENTENCES`, or one that is too long.
        """
        sentences = sentence_lines(text)
        options = (options or GroundOptions()).model_copy(update={"maps": False})
        found = ground_features(
            self.model,
            image.features.to(self.model.device),
            image.shape,
            sentences,
            smoothing=options.smoothing,
            absent=self._absent if options.needs_reference else None,
        )
        with tempfile.TemporaryDirectory() as folder:
            rows = write_groundings(
                Path(folder), image.grey, found, options, warning=self.warning or ""
            )
            pictures = [Path(row.pop("picture")).read_bytes() for row in rows]
        return Look(pictures, rows, cut_notes(self.model, sentences))

    def classes(self, image: ViewedImage) -> list[ClassRow]:
        """Zero-shot probabilities of the model's own prompts.

        The mean score of the prompts that say a finding is present, and of those that say it is
        absent; their difference times the learned scale is the logit, as in evaluation.
        """
        scale = self.model.learned_scale
        features = image.features.to(self.model.device)
        rows = []
        for prompts in self.prompt_sets:
            with torch.inference_mode():
                scored = self.model.score(features, self._prompt_vectors[prompts.name])
            scores = finite(scored, "zero-shot classification").astype(np.float64)
            present = class_scores(scores, prompts, "positive")
            absent = class_scores(scores, prompts, "negative")
            for name in prompts.classes:
                difference = present[name] - absent[name]
                probability = None if scale is None else float(sigmoid(scale * difference)[0])
                sides = float(present[name][0]), float(absent[name][0])
                rows.append(ClassRow(prompts.name, name, probability, *sides))
        return rows

    def find_sentence(self, text: str, k: int) -> list[Found]:
        """The ``k`` images of the index that a sentence describes best.

        Raises:
            UserError: there is no index, or not exactly one sentence.
        """
        index = self._with_index()
        sentences = sentence_lines(text)
        if len(sentences) != 1:
            raise UserError("search takes one sentence at a time; write one line.")
        with torch.inference_mode():
            vector = self.model.encode_sentences(sentences)[0]
        return self._found(index.by_sentence(vector, self.model.score, k))

    def find_similar(self, image: ViewedImage, k: int) -> list[Found]:
        """The ``k`` images of the index most like the given one.

        Raises:
            UserError: there is no index.
        """
        return self._found(self._with_index().by_image(image.features, k))

    # ------------------------------------------------------------------------- description

    @property
    def warning(self) -> str | None:
        """What the page says in red: that the model was trained on synthetic images, if it was.

        Also before images of a phantom: the page cannot know what will be put on it.
        """
        return synthetic_warning(self.model.provenance)

    def described(self) -> list[tuple[str, str]]:
        """What answers here: names and values for the head of the page."""
        model, how = self.model, self.model.preprocessing
        prepare, grid = how.prepare, region_grid(model)
        clip = f"grey levels clipped at the {prepare.clip[0]:g} and {prepare.clip[1]:g} percentiles"
        fit = "padded to a square" if prepare.fit == "pad" else "central square"
        equalized = ", equalised" if prepare.equalize else ""
        lines = [
            ("Model", f"{self.name}, hash {model.content_hash or 'none (not from a folder)'}"),
            (
                "Sees",
                f"{clip}{equalized}; {fit}, {prepare.size} px a side, of which the central"
                f" {how.input_size}; {grid.rows} x {grid.columns} regions",
            ),
            ("Reads", f"sentences of up to {model.max_tokens} tokens"),
        ]
        if self.index is not None:
            lines.append(("Index", f"{len(self.index):,} images of this model"))
        return lines

    # ------------------------------------------------------------------------------- parts

    def _with_index(self) -> SearchIndex:
        if self.index is None:
            raise UserError("this viewer has no index to search; start it with --index.")
        return self.index

    def _found(self, hits: Sequence[Hit]) -> list[Found]:
        pixels = None if self._indexed is None else self._indexed.pixels
        return [Found(hit, None if pixels is None else np.array(pixels[hit.row])) for hit in hits]

    @cached_property
    def _indexed(self) -> PreparedSet | None:
        """The set of the index, if it is where it was; `SearchIndex.open` compared its hash."""
        from medclip_debias.data.store import PreparedSet

        folder = Path(self._with_index().meta.get("prepared", ""))
        return PreparedSet.open(folder) if (folder / "meta.json").is_file() else None

    @cached_property
    def _absent(self) -> AbsentFindings:
        return AbsentFindings(self.model)

    @cached_property
    def _prompt_vectors(self) -> dict[str, Tensor]:
        with torch.inference_mode():
            return {one.name: self.model.encode_sentences(one.texts) for one in self.prompt_sets}


def sentence_lines(text: str) -> list[str]:
    """Sentences of a text, one a line.

    Raises:
        UserError: none, more than `MOST_SENTENCES`, or one of more than `MOST_CHARACTERS`.
    """
    sentences = [line.strip() for line in text.splitlines() if line.strip()]
    if not sentences:
        raise UserError("write at least one sentence, as in 'Left pleural effusion.'.")
    if len(sentences) > MOST_SENTENCES:
        raise UserError(
            f"{len(sentences)} sentences are too many for a page, which shows {MOST_SENTENCES};"
            " use medclip-debias ground for more."
        )
    for number, sentence in enumerate(sentences, start=1):
        if len(sentence) > MOST_CHARACTERS:
            raise UserError(
                f"sentence {number} has {len(sentence):,} characters, more than the"
                f" {MOST_CHARACTERS:,} that the page takes; write one sentence a line."
            )
    return sentences


def listed_images(folder: Path, say: Say | None = None) -> dict[str, Path]:
    """Image files below a folder, by their path in it; ``say`` as for `find_images`.

    Raises:
        UserError: there is no such folder, no image in it, or more than `MOST_IMAGES`.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; check the path.")
    files = find_images([folder], say)
    if len(files) > MOST_IMAGES:
        raise UserError(
            f"{folder}: holds {len(files):,} images, but the page lists {MOST_IMAGES:,} at most;"
            " give a smaller folder."
        )
    return {file.relative_to(folder).as_posix(): file for file in files}


def _prompt_sets(model: ImageTextModel) -> list[PromptSet]:
    """The model's own prompt sets, else the packaged one."""
    own = [content for content in model.prompts.values() if isinstance(content, Mapping)]
    return [load_prompts(content) for content in own] or [load_prompts()]
