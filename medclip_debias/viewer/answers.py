"""What the page answers: radiographs, findings, maps, search, exports; no web in here."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.images.files import read_radiograph
from medclip_debias.data.images.radiograph import Radiograph
from medclip_debias.errors import UserError, need_packages, printable
from medclip_debias.evaluation.decisions.calibration import Calibration
from medclip_debias.grounding.dicom_out.deliver import DeliverTo, Delivery
from medclip_debias.grounding.dicom_out.source import Source, read_source
from medclip_debias.grounding.files import grounding_row
from medclip_debias.grounding.find import Say, find_images
from medclip_debias.grounding.reference import ReferenceBoxes
from medclip_debias.grounding.regions import threshold_regions
from medclip_debias.grounding.search.query import Hit, SearchIndex
from medclip_debias.grounding.settings import MapMethod
from medclip_debias.viewer.viewed_model import Encoded, ViewedModel

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.interface import ImageTextModel

MOST_CHARACTERS = 1000  # of a sentence
THUMBNAIL = 88  # pixels of the longer side
MOST_THUMBNAILS = 4096  # kept in memory, of about 2 KB each
MOST_HITS = 50
MOST_LEVELS = 65535  # of the pixels that a browser windows
Kind = Literal["json", "seg", "sr"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_SENTENCES = 20  # of an export

Phrases = list[tuple[str, list[list[float]]]]
Methods = Sequence[MapMethod]
"""How the maps of each model are computed; of none as it was started."""


@dataclass(frozen=True, eq=False)
class ShownPixels:
    """Every pixel as a level: ``low + step * level`` is its value in display polarity."""

    levels: NDArray[np.unsignedinteger]
    low: float
    step: float
    high: float
    inverted: bool
    window: tuple[float, float]

    @classmethod
    def of(cls, image: Radiograph, clip: tuple[float, float], seen: Radiograph) -> ShownPixels:
        """Of a radiograph."""
        low, high = image.range
        # A level is a function of the value alone, so it is found for each value that occurs.
        values = image.values
        if image.padding is not None:  # as dark as the darkest pixel of the picture
            values = np.where(image.padding, high if image.inverted else low, values)
        if image.inverted:
            values = low + high - values
        occur = values[image.counts > 0]
        whole = high - low <= MOST_LEVELS and bool(np.all(occur == np.rint(occur)))
        step = 1.0 if whole else (high - low) / MOST_LEVELS
        last = round((high - low) / step)
        numbers = np.nan_to_num(np.clip(np.rint((values - low) / step), 0, last))
        kind = np.uint8 if last <= 255 else np.uint16
        levels = numbers.astype(kind)[image.codes]
        return cls(levels, low, step, high, image.inverted, _window(image, clip, seen))

    def described(self) -> dict[str, object]:
        """Everything but the pixels."""
        height, width = self.levels.shape
        return {
            "height": height,
            "width": width,
            "depth": 8 * self.levels.dtype.itemsize,
            **{name: getattr(self, name) for name in ("low", "high", "step", "inverted")},
            "window": list(self.window),
        }

    def bytes(self) -> bytes:
        """The levels row by row; of 16 bits, the low byte first."""
        return self.levels.astype(self.levels.dtype.newbyteorder("<"), copy=False).tobytes()


def _window(image: Radiograph, clip: tuple[float, float], seen: Radiograph) -> tuple[float, float]:
    """Stored values, in display polarity, that reach the ends of what the model sees."""
    low, high = seen.percentiles(clip)
    same = image is not seen and np.array_equal(image.codes, seen.codes)
    if same:
        inside = (seen.values > low) & (seen.values < high) & (image.counts > 0)
        stored = image.values[inside]
        same = bool(stored.size) and float(np.ptp(stored)) > 0
    low, high = (float(stored.min()), float(stored.max())) if same else image.percentiles(clip)
    if image.inverted:
        total = sum(image.range)
        low, high = total - high, total - low
    return low, high


@dataclass(frozen=True, eq=False)
class ViewedImage:
    """One radiograph as the models have seen it; its file is not needed any more."""

    name: str
    shape: tuple[int, int]
    encoded: tuple[Encoded, ...]
    source: Source | None
    phrases: Phrases
    pixels: ShownPixels | None
    aside: int = 0


class Answers:
    """One model or two, perhaps with an index and a folder of images."""

    def __init__(
        self,
        models: Sequence[ViewedModel],
        index: SearchIndex | None = None,
        images: Mapping[str, Path] | None = None,
        references: ReferenceBoxes | None = None,
    ) -> None:
        self.models = tuple(models)
        self.index = index
        self.images = dict(images or {})
        self.names = list(self.images)
        self.thumbnail = lru_cache(MOST_THUMBNAILS)(self._thumbnail)
        self._references = references

    @classmethod
    def open(
        cls,
        model: Path,
        index: Path | None = None,
        images: Path | None = None,
        device: str = "auto",
        say: Say | None = None,
        *,
        beside: Path | None = None,
        boxes: Path | None = None,
        calibrations: Sequence[Path] = (),
        methods: Sequence[str] = (),
    ) -> Answers:
        """Read all that the page needs; the last of ``methods`` holds for the models left."""
        folders = [model] if beside is None else [model, beside]
        if boxes is not None and images is None:
            raise UserError("--boxes holds boxes of the images of a folder; give --images, too.")
        if len(methods) > len(folders):
            raise UserError("there are more --method than models; give one for each, or one.")
        listed = listed_images(images, say) if images is not None else {}
        references = ReferenceBoxes.read(boxes, list(listed.values())) if boxes else None
        if references and say:
            for line in references.left_aside():
                say(line)
        search_index = SearchIndex.open(index) if index is not None else None
        fitted = {path: Calibration.read(path) for path in calibrations}
        by_hash = {one.model_hash or "": one for one in fitted.values()}
        first, *others = methods or ["similarity"]
        models = [
            ViewedModel.open(folder, device, by_hash, method)
            for folder, method in zip(folders, (first, *others, first), strict=False)
        ]
        if beside is not None:  # two runs may well have folders of one name
            for letter, one in zip("AB", models, strict=True):
                one.name = f"{letter}: {one.name}"
        for path, each in fitted.items():
            if each.model_hash not in {one.model.content_hash for one in models}:
                raise UserError(
                    f"{path}: was made for the model {each.model_hash}, and none of these is that"
                    " one; make one with 'medclip-debias calibrate'."
                )
        if search_index is not None:
            search_index.check_model(models[0].model.content_hash, model)
        return cls(models, search_index, listed, references)

    @property
    def model(self) -> ImageTextModel:
        """The first model."""
        return self.models[0].model

    # ------------------------------------------------------------------------------ images

    def read(self, path: Path) -> ViewedImage:
        """Read an image file and encode it; the sentence of an error names the file alone."""
        windows = [one.model.preprocessing.prepare.window for one in self.models]
        with _without_place(path):
            seen = read_radiograph(path, windows[0])
            images = {windows[0]: seen}
            # A window means something in DICOM files alone, of which `window` is set.
            for window in ("none", *windows):
                if window not in images:
                    images[window] = seen if seen.window is None else read_radiograph(path, window)
            encoded = [
                one.encode(images[window]) for one, window in zip(self.models, windows, strict=True)
            ]
        pixels = ShownPixels.of(images["none"], self.model.preprocessing.prepare.clip, seen)
        source, phrases, aside = None, Phrases(), 0
        if seen.window is not None:
            with suppress(UserError):  # the export says that there is none
                source = read_source(path)
        if self._references:
            phrases, aside = self._references.phrases_of(path, seen.shape)
        name = printable(path.name)
        return ViewedImage(name, seen.shape, tuple(encoded), source, phrases, pixels, aside)

    def choose(self, name: str) -> ViewedImage:
        """Read one of `images`."""
        if name not in self.images:
            raise UserError("there is no such image in the folder; choose one of the list.")
        return self.read(self.images[name])

    def _thumbnail(self, number: int) -> bytes:
        """A small JPEG of one of `names`, as the first model sees its grey levels."""
        from PIL import Image

        if not 0 <= number < len(self.names):
            raise UserError("there is no such image in the folder.")
        path, settings = self.images[self.names[number]], self.model.preprocessing.prepare
        with _without_place(path):
            grey = read_radiograph(path, settings.window).stretched(settings)
        small, stream = Image.fromarray(grey), io.BytesIO()
        small.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
        small.save(stream, "JPEG", quality=80)
        return stream.getvalue()

    def hit(self, row: int) -> ViewedImage:
        """Open an image of the index as it was prepared, with the boxes that the set has of it."""
        self._with_index()
        data, square = self._indexed, self.prepared_image(row)
        if data is None or square is None:
            raise UserError("the prepared set of this index no longer exists.")
        record, how = data.images.iloc[row], data.settings
        shape = int(record["height"]), int(record["width"])
        place = SquareGeometry(*shape, how.size, how.size, how.fit)
        annotated = data.phrases[data.phrases["image_id"] == record["image_id"]]
        phrases = [
            (str(text), np.round(place.box_to_model(boxes), 3).tolist())
            for text, boxes in zip(annotated["text"], annotated["boxes"], strict=True)
            if boxes
        ]
        image = Radiograph.of(square)
        # The second model may want another size, which it makes of the square.
        encoded = (
            self.models[0].encode_square(square),
            *(one.encode(image) for one in self.models[1:]),
        )
        pixels = ShownPixels.of(image, (0.0, 100.0), image)
        return ViewedImage(str(record["image_id"]), image.shape, encoded, None, phrases, pixels)

    @property
    def has_prepared(self) -> bool:
        """Whether the prepared set of the index is still there, so that hits can be opened."""
        return self._indexed is not None

    def prepared_image(self, row: int) -> NDArray[np.uint8] | None:
        """An image of the index ``[size, size]``; None where its set is not there."""
        data = self._indexed
        return np.array(data.pixels[row]) if data is not None and 0 <= row < len(data) else None

    @cached_property
    def _indexed(self) -> PreparedSet | None:
        """The set of the index, if it is where it was; `SearchIndex.open` compared its hash."""
        from medclip_debias.data.store import PreparedSet

        folder = Path(self.index.meta.get("prepared", "")) if self.index is not None else None
        there = folder is not None and (folder / "meta.json").is_file()
        return PreparedSet.open(folder) if folder is not None and there else None

    # ----------------------------------------------------------------------------- answers

    def opened(self, image: ViewedImage, methods: Methods = ()) -> list[dict[str, Any]]:
        """What each model says of a radiograph before it is asked."""
        return [
            model.opened(encoded, image.shape, method)
            for model, encoded, method in self._by_model(image, methods)
        ]

    def look(
        self, image: ViewedImage, sentence: str, methods: Methods = ()
    ) -> list[dict[str, Any]]:
        """Where each model sees a sentence."""
        text = checked_sentence(sentence)
        return [
            model.look(encoded, image.shape, text, method)
            for model, encoded, method in self._by_model(image, methods)
        ]

    def _by_model(
        self, image: ViewedImage, methods: Methods
    ) -> list[tuple[ViewedModel, Encoded, MapMethod]]:
        chosen = methods or [model.method for model in self.models]
        if len(chosen) != len(self.models):
            raise UserError("each model has one method of its maps.")
        return list(zip(self.models, image.encoded, chosen, strict=True))

    def find_sentence(self, text: str, k: int) -> list[Hit]:
        """The ``k`` images of the index that a sentence describes best."""
        index = self._with_index()
        with torch.inference_mode():
            vector = self.model.encode_sentences([checked_sentence(text)])[0]
        return index.by_sentence(vector, self.model.score, k)

    def find_similar(self, image: ViewedImage, k: int) -> list[Hit]:
        """The ``k`` images of the index most like the given one."""
        return self._with_index().by_image(image.encoded[0].features, k)

    def _with_index(self) -> SearchIndex:
        if self.index is None:
            raise UserError("this viewer has no index to search; start it with --index.")
        return self.index

    def export(
        self,
        image: ViewedImage,
        number: int,
        sentences: Sequence[str],
        threshold: float | None,
        kind: Kind,
        method: MapMethod | None = None,
    ) -> tuple[str, bytes]:
        """Name and content of a file of what model ``number`` says; boxes from ``threshold`` on."""
        texts = [checked_sentence(text) for text in sentences]
        if not 0 < len(texts) <= MOST_SENTENCES:
            raise UserError(f"an export takes 1 to {MOST_SENTENCES} sentences, not {len(texts)}.")
        if kind != "json":
            need_packages("DICOM results", "dicom", "highdicom")
            if image.source is None:
                raise UserError(
                    "this image is not a DICOM file with the identifiers that DICOM results need;"
                    " JSON can be exported."
                )
        if kind == "seg" and threshold is None:
            raise UserError("SEG holds boxes, and these are off; switch them on first.")
        model, encoded = self.models[number], image.encoded[number]
        method = method or model.method
        rows = []
        for one in model.ground(encoded, image.shape, texts, method):
            heatmap = one.heatmap
            regions = [] if threshold is None else threshold_regions(heatmap, threshold)
            rows.append(grounding_row(one, heatmap, regions))
        warning = " ".join(filter(None, (model.warning, model.maps_warning(method))))
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            delivery = Delivery(DeliverTo(folder, (kind,)), model.model, warning)
            # There is no file at this path: what is known of the image is its `source`.
            files = delivery.write(folder / "image", folder, image.shape, rows, image.source)
            if not files:
                raise UserError(f"{'; '.join(delivery.left_out) or 'nothing was written'}.")
            (file,) = map(Path, files)
            content = file.read_bytes()
        if kind == "json":
            listed = json.loads(content) | {"findings": model.findings(encoded)}
            content = json.dumps(listed, indent=1, ensure_ascii=False).encode()
        return file.name, content


@contextmanager
def _without_place(path: Path) -> Iterator[None]:
    """Errors that name a file alone: the page must not learn where it lies on the server."""
    try:
        yield
    except UserError as error:
        place = str(UserError(str(path)))  # as the error has it, without folders of patients
        raise UserError(str(error).replace(place, path.name)) from error


def checked_sentence(text: str) -> str:
    """A sentence without the white space around it and with single spaces inside."""
    sentence = " ".join(text.split())
    if not any(one.isprintable() and one != " " for one in sentence):
        raise UserError("write a sentence, as in 'Left pleural effusion.'.")
    if len(sentence) > MOST_CHARACTERS:
        raise UserError(
            f"this sentence has {len(sentence):,} characters, more than the {MOST_CHARACTERS:,}"
            " that the page takes; write a shorter one."
        )
    return sentence


def listed_images(folder: Path, say: Say | None = None) -> dict[str, Path]:
    """Image files below a folder, by their path in it; ``say`` as for `find_images`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; check the path.")
    files = find_images([folder], say)
    # Names that are not UTF-8 cannot be sent.
    return {printable(file.relative_to(folder).as_posix()): file for file in files}
