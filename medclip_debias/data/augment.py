"""Random crop, brightness and contrast of training images (the paper's, section 3.2)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.config import AugmentSettings


class Augmenter:
    """albumentations' transforms, drawn from the generator handed in and nothing else.

    Args:
        settings: which transforms, and how strong.
        input_size: side of the crop, in prepared pixels.
    """

    def __init__(self, settings: AugmentSettings, input_size: int) -> None:
        self.settings = settings
        self.input_size = input_size
        self._compose: Any = None

    def __call__(self, image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        """Augment one prepared image: uint8 ``[S, S]`` to ``[C, C]``."""
        if self._compose is None:
            self._compose = self._build()
        self._compose.set_random_seed(int(rng.integers(2**31)))
        result: NDArray[np.uint8] = self._compose(image=np.ascontiguousarray(image))["image"]
        return result

    def _build(self) -> Any:
        # Unless told not to, albumentations asks a server for its newest version at import.
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        import albumentations
        import cv2

        cv2.setNumThreads(0)
        s, side = self.settings, self.input_size
        crop = albumentations.RandomCrop if s.crop else albumentations.CenterCrop
        transforms = [crop(side, side)]
        if s.brightness or s.contrast:
            transforms.append(
                albumentations.RandomBrightnessContrast(
                    brightness_limit=(-s.brightness, s.brightness),
                    contrast_limit=(-s.contrast, s.contrast),
                    p=1.0,
                )
            )
        return albumentations.Compose(transforms, seed=0)

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings, "input_size": self.input_size, "_compose": None}
