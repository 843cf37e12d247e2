"""Images as people hold them (files, arrays, Pillow images, DICOM data sets) to radiographs."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from medclip_debias.config import PrepareSettings, WindowPolicy
from medclip_debias.data.images.files import check_visible, radiograph_of, read_radiograph
from medclip_debias.data.images.radiograph import Radiograph, check_size
from medclip_debias.data.images.raster import grey_values, luminance
from medclip_debias.data.images.square import prepare_image
from medclip_debias.data.synthetic import in_phantom
from medclip_debias.errors import ReportedWarning, UserError
from medclip_debias.grounding.find import find_images

ImageLike: TypeAlias = Any
"""A path, a `Radiograph`, an array, a Pillow image or a pydicom data set; see `GivenImage.read`."""

ImagesLike: TypeAlias = ImageLike | Iterable[ImageLike]
"""One image, a folder, or any number of them."""


@dataclass(frozen=True)
class GivenImage:
    """One image that was handed in, not read yet.

    Attributes:
        name: its path as it was given, or its place among the images, from 0: the row of a table.
        content: what was handed in.
    """

    name: str | int
    content: ImageLike

    @property
    def place(self) -> Path:
        """What messages call it."""
        return Path(f"image {self.name}" if isinstance(self.name, int) else self.name)

    @property
    def is_phantoms(self) -> bool:
        """Whether it is a file of a phantom; of what is in memory that is not known."""
        return _is_path(self.content) and in_phantom(Path(self.content))

    def read(self, window: WindowPolicy) -> Radiograph:
        """Read it as `medclip_debias.data.images.read_radiograph` reads the same pixels in a file.

        Arrays are ``[H, W]`` with high = bright, or colours ``[H, W, 3 or 4]`` in the order red,
        green, blue, alpha: integers of any size, or floats of any range. Only the order and the
        proportions of the values count, for every radiograph is clipped at its percentiles and
        stretched: values in 0..1 and in 0..255 give the same picture.

        Args:
            window: which display window of a DICOM file is applied.

        Raises:
            UserError: it is no radiograph, nothing can be seen on it, or it is a `Radiograph`
                that was read with another ``window``.
        """
        content, place = self.content, self.place
        if _is_path(content):
            return read_radiograph(Path(content), window)
        if isinstance(content, Radiograph):
            if content.window not in (None, window):
                raise UserError(
                    f"{place}: was read from DICOM with window='{content.window}', but this"
                    f" model was trained with '{window}'; give the path, or read_radiograph(path,"
                    f" window='{window}')."
                )
            return content
        if _is_a(content, "Dataset", "pydicom"):
            return radiograph_of(_encoded(content, place), place, window)
        radiograph = Radiograph.of(_grey(content, place))
        check_visible(place, radiograph)
        return radiograph

    def prepared(self, settings: PrepareSettings) -> NDArray[np.uint8]:
        """The square that ``prepare`` stores of it, ``[S, S]``.

        Raises:
            UserError: as of `read`.
        """
        radiograph = self.read(settings.window)
        try:
            return prepare_image(radiograph, settings)
        except UserError as error:
            raise UserError(f"{self.place}: {error}") from error


def given_images(images: ImagesLike) -> list[GivenImage]:
    """Every image that was meant; nothing is read yet."""
    if isinstance(images, Mapping):
        raise UserError("images are an image or a list of images, not a mapping; give a list.")
    if isinstance(images, np.ndarray) and images.dtype.kind in "OU":
        images = images.tolist()  # paths in an array
    alone = _is_path(images) or _is_pixels(images) or not isinstance(images, Iterable)
    several: list[GivenImage] = []
    for number, image in enumerate([images] if alone else images):
        if not _is_path(image):
            several.append(GivenImage(number, image))
        elif Path(image).is_dir():
            several += [GivenImage(str(path), path) for path in find_images([Path(image)], warn)]
        else:
            several.append(GivenImage(str(image), image))
    return several


def _is_path(image: ImageLike) -> bool:
    return isinstance(image, str | os.PathLike)


def _is_pixels(image: ImageLike) -> bool:
    in_memory = isinstance(image, Radiograph | np.ndarray | Pillow.Image)
    return in_memory or _is_a(image, "Tensor", "torch") or _is_a(image, "Dataset", "pydicom")


def _is_a(image: ImageLike, kind: str, module: str) -> bool:
    """Whether it is of a class of a library that need not be imported to know."""
    return module in sys.modules and isinstance(image, getattr(sys.modules[module], kind))


def _encoded(dataset: Any, place: Path) -> bytes:
    """The bytes of a DICOM file of ``dataset``: one reader and its checks serve both."""
    stream = io.BytesIO()
    try:
        dataset.save_as(stream, enforce_file_format=True)
    except Exception as error:  # pydicom has many words for a data set that is not whole
        raise UserError(
            f"{place}: this data set is not a complete DICOM file ({type(error).__name__}); give"
            " the file's path."
        ) from error
    return stream.getvalue()


def _grey(image: ImageLike, place: Path) -> NDArray[Any]:
    """Grey values ``[H, W]``, high = bright."""
    if isinstance(image, Pillow.Image):
        return _grey_of_pillow(image, place)
    if not _is_pixels(image):
        raise UserError(
            f"{place}: {type(image).__name__} is not an image; give a path, an array [H, W], a"
            " Pillow image, or the result of read_radiograph."
        )
    array = np.asarray(image.detach().cpu() if _is_a(image, "Tensor", "torch") else image)
    if array.dtype.kind not in "iuf":
        raise UserError(
            f"{place}: an array of {array.dtype} holds no grey levels; give integers or floats."
        )
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim == 3 and array.shape[2] in (3, 4):
        check_size(place, *array.shape[:2])
        if array.dtype.kind != "f" and array.dtype not in (np.uint8, np.uint16):
            raise UserError(
                f"{place}: colours are uint8, uint16 or floats, not {array.dtype}; convert them."
            )
        return luminance(array)
    if array.ndim != 2:
        raise UserError(
            f"{place}: an array of shape {array.shape} is not one image; give [H, W], or colours"
            " [H, W, 3]. Channels come last (array.transpose(1, 2, 0)), and several images are a"
            " list (list(array))."
        )
    check_size(place, *array.shape)
    return array


def _grey_of_pillow(image: Pillow.Image, place: Path) -> NDArray[Any]:
    check_size(place, image.height, image.width)
    if getattr(image, "n_frames", 1) > 1:
        raise UserError(f"{place}: is an animated image; give one image per radiograph.")
    if image.mode == "1":
        raise UserError(f"{place}: has only black and white pixels (one bit each); leave it out.")
    try:
        return grey_values(image)
    # Pillow's decoders raise almost anything on damaged input, also struct.error, SyntaxError.
    except Exception as error:
        raise UserError(f"{place}: the image is truncated or damaged; copy it again.") from error


def warn(sentence: str, category: type[Warning] = ReportedWarning) -> None:
    """Warn of ``sentence`` at the user's own line, the nearest outside of the package."""
    package = __name__.partition(".")[0]
    level, frame = 1, sys._getframe()
    while frame.f_back is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] != package:
            break
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, category, stacklevel=level)
