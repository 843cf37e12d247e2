"""A trained model for scripts and notebooks: images and sentences in, tables and maps out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from medclip_debias.config import Preprocessing
from medclip_debias.data.images.radiograph import Radiograph
from medclip_debias.data.prompts import PromptSet
from medclip_debias.errors import ReportedWarning, UserError
from medclip_debias.evaluation.archives import archive_name, trained_on
from medclip_debias.evaluation.decisions.calibration import Calibration
from medclip_debias.evaluation.metrics import sigmoid
from medclip_debias.evaluation.options import PrevalenceLike
from medclip_debias.evaluation.prompt_checks import unsaid_prompts, unsaid_warning
from medclip_debias.evaluation.sides import prompt_differences
from medclip_debias.front.calibrated import CalibrationLike, decide
from medclip_debias.front.heatmaps import Heatmaps
from medclip_debias.front.images import GivenImage, ImageLike, ImagesLike, given_images, warn
from medclip_debias.front.prompts import PromptsLike, asked_classes
from medclip_debias.grounding.ground import ground_image
from medclip_debias.grounding.regions import boxes_of_share
from medclip_debias.grounding.saliency import with_maps
from medclip_debias.grounding.sentences import checked_sentences, cut_notes
from medclip_debias.grounding.settings import MapMethod, Sharpen
from medclip_debias.grounding.suppression import read_rule
from medclip_debias.models.checkpoint import model_folder
from medclip_debias.models.finite import finite
from medclip_debias.models.load import expected_images, load_model
from medclip_debias.models.sentences import one_vector
from medclip_debias.models.synthetic import synthetic_warning

if TYPE_CHECKING:
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

_BATCH = 16


class SyntheticModelWarning(ReportedWarning):
    """A model that learned from generated images alone is shown something else."""


def load(folder: Path | str, device: str = "auto", *, online: bool = False) -> Model:
    """Read a model folder that ``train`` (``RUN/model``) or ``import-model`` wrote.

    Nothing is downloaded unless ``online`` is true.

    Args:
        folder: the model's folder, or with ``online`` the name of a model on the Hugging Face Hub.
        device: ``cpu``, ``cuda``, or ``auto`` for a GPU if there is one.
        online: whether a model that is not on this machine may be downloaded.

    Raises:
        UserError: the folder holds no complete model, the model cannot be downloaded, or the
            device does not exist.
    """
    name, folder = str(folder), Path(folder)
    if not folder.is_dir():
        if not online:
            raise UserError(
                f"{folder}: there is no such folder; give the folder 'model' of a run, or"
                " online=True for a model on the hub."
            )
        folder = model_folder(name, local_files_only=False)
    expected_images(folder)  # has the better words for a folder that holds no model
    return Model(load_model(folder, device), str(folder))


class Model:
    """An image-text model. Its methods return arrays or tables, without gradients.

    Images are paths (DICOM, JPG, PNG, or a folder of them), arrays (`GivenImage.read` says which),
    Pillow images, pydicom data sets or results of `read_radiograph`, one or several. They are
    prepared as the model's training images were, as ``evaluate`` and ``ground`` do with the same
    files. A single string counts as one text.

    Attributes:
        network: the torch module, in evaluation mode, for work with tensors.
        name: the folder that it was read from, or ``""``.

    Example:
        >>> model = load(folder, device="cpu")
        >>> table = model.zero_shot(image, {"Effusion": ("Left effusion.", "No effusion.")})
        >>> table.shape, bool(table["Effusion"].between(0, 1).all())
        ((1, 1), True)
        >>> model.encode_texts("Left effusion.").shape == (1, model.dim)
        True
        >>> maps = model.heatmaps(image, ["Left effusion.", "No effusion."])
        >>> maps.values.shape == (2, *image.shape), maps["No effusion."].shape == image.shape
        (True, True)
    """

    def __init__(self, network: ImageTextModel, name: str = "") -> None:
        """Wrap a model in memory.

        Raises:
            UserError: it is in training mode, in which scores depend on chance and on the batch.
        """
        if getattr(network, "training", False):
            raise UserError("this model is in training mode; call its .eval() first.")
        self.network = network
        self.name = name
        self._warned = False

    def __repr__(self) -> str:
        trained = trained_on(self.network.provenance)
        size = self.preprocessing.input_size
        about = f"{self.network.content_hash or 'in memory'}, {size} x {size} pixels"
        if trained["kind"] is not None:
            about += f", trained on {archive_name(trained)}"
        return f"<Model {self.name!r}: {about}>"

    @property
    def preprocessing(self) -> Preprocessing:
        """How a file becomes what the network sees."""
        return self.network.preprocessing

    @property
    def dim(self) -> int:
        """D, the width of the shared space."""
        return self.network.dim

    @property
    def prompt_sets(self) -> tuple[str, ...]:
        """Names of the prompt sets that the model's folder keeps."""
        return tuple(self.network.prompts)

    # ------------------------------------------------------------------------ classifying

    def zero_shot(
        self,
        images: ImagesLike,
        prompts: PromptsLike = None,
        *,
        scale: float | None = None,
        calibration: CalibrationLike | None = None,
        prevalence: PrevalenceLike = "validation",
        batch_size: int = _BATCH,
    ) -> pd.DataFrame:
        """Probabilities of classes described by sentences.

        For classes with a positive and a negative side, each class by itself: ``sigmoid(scale *
        d)``, with d the mean score of the positive sentences minus that of the negative ones, as
        in ``evaluate``; rows do not add up to 1. For a list of sentences: the softmax of ``scale *
        score`` over them; rows add up to 1 and say which sentence fits best, not whether it is
        true. Neither is calibrated (see `ece` in the results of ``evaluate``). With
        ``calibration`` the probabilities are fitted to labelled images: of 100 images with a
        probability of 0.2 about 20 have the finding, if ``prevalence`` is right.

        Args:
            images: I images.
            prompts: name of a prompt set (of the model's folder, or packaged), a YAML file of one,
                class -> (positive, negative), each a sentence or several, or a list of two
                sentences or more; by default the set that ``evaluate`` takes, chex5.
            scale: factor of the scores; by default the learned one. Peers whose files hold none
                (those of CLIP, open_clip and MedCLIP do) need one.
            calibration: a file that ``calibrate`` wrote for this model, or the result of
                `Calibration.read`, in place of the scale. Its own prompts are the default; classes
                that it could not calibrate are left out, with a warning.
            prevalence: with a calibration, see `decisions`.
            batch_size: images encoded at a time.

        Returns:
            ``[I, classes]`` float64 in [0, 1]; rows are named by path, or by place from 0.

        Raises:
            UserError: an image or the prompts cannot be used, no scale is known, or the
                calibration is of another model or other prompts.
        """
        if calibration is not None:
            if scale is not None:
                raise UserError("a calibration has its own scale; give one of the two.")
            about = calibration, prompts, prevalence, None
            decisions, index = self._decisions(images, *about, batch_size)
            columns = {name: each["probability"].to_numpy() for name, each in decisions.items()}
            return pd.DataFrame(columns, index=index).rename_axis(columns="class")
        if prevalence != "validation":
            raise UserError("a prevalence needs a calibration; give calibration=FILE, too.")
        classes = asked_classes(prompts, self.network.prompts)
        if isinstance(classes, PromptSet):
            absent = unsaid_prompts(self.network.provenance, classes.texts)
            for sentence in unsaid_warning(absent, len(classes.texts)):
                warn(sentence)
        learned = self.network.learned_scale if scale is None else scale
        if learned is None:
            raise UserError(
                "this model does not say by what its scores were multiplied in training, so they"
                " are not probabilities; give scale= (CLIP's is 100), or ask for `scores`."
            )
        if not 0 < learned < float("inf"):
            raise UserError(f"scale must be a positive number, got {learned}.")
        texts = classes.texts if isinstance(classes, PromptSet) else classes
        scores = self.scores(images, texts, batch_size=batch_size)
        values = scores.to_numpy(dtype=np.float64)
        if isinstance(classes, PromptSet):
            differences = prompt_differences(values, classes)
            columns = {name: sigmoid(learned * d) for name, d in differences.items()}
        else:
            powers = np.exp(learned * (values - values.max(axis=1, keepdims=True)))
            shares = powers / powers.sum(axis=1, keepdims=True)
            columns = dict(zip(texts, shares.T, strict=True))
        table = pd.DataFrame(columns, index=scores.index)
        return table.rename_axis(columns="class")

    def decisions(
        self,
        images: ImagesLike,
        calibration: CalibrationLike,
        prompts: PromptsLike = None,
        *,
        prevalence: PrevalenceLike = "validation",
        coverage: float | None = None,
        batch_size: int = _BATCH,
    ) -> pd.DataFrame:
        """Probability and set of answers for each image and class of a calibration.

        The ``answer`` is ``present``, ``absent``, ``both`` (the model abstains: either may be true)
        or ``none`` (the image is unlike those with the finding and unlike those without it). The
        set contains the truth for a share ``coverage`` of the images.

        Args:
            images: I images.
            calibration: a file that ``calibrate`` wrote for this model, or what it holds.
            prompts: of the classes wanted, as the calibration has them; all of them by default.
            prevalence: share of positives among such images: the calibration's own
                (``validation``), a share by class name, or ``estimated`` from the scores of these
                images, which needs hundreds of them (docs/decisions.md).
            coverage: of the sets; by default the calibration's.
            batch_size: images encoded at a time.

        Returns:
            A row for each image and class: ``image``, ``class``, ``probability``, ``answer``, and
            the ``prevalence`` taken.

        Raises:
            UserError: as of `zero_shot`; or the coverage is not in [0.5, 1).
        """
        if coverage is not None and not 0.5 <= coverage < 1:
            raise UserError(f"coverage must be at least 0.5 and below 1, got {coverage}.")
        about = calibration, prompts, prevalence, coverage
        decisions, index = self._decisions(images, *about, batch_size)
        tables = [
            pd.DataFrame({"image": index, "class": name, **each})
            for name, each in decisions.items()
        ]
        return pd.concat(tables, ignore_index=True)

    def _decisions(
        self,
        images: ImagesLike,
        calibration: CalibrationLike,
        prompts: PromptsLike,
        prevalence: PrevalenceLike,
        coverage: float | None,
        batch_size: int,
    ) -> tuple[dict[str, pd.DataFrame], pd.Index]:
        where = "calibration"
        if not isinstance(calibration, Calibration):
            where, calibration = str(calibration), Calibration.read(calibration)
        classes = calibration.prompts
        if prompts is not None:
            chosen = asked_classes(prompts, self.network.prompts)
            if not isinstance(chosen, PromptSet):
                raise UserError(
                    "a calibration is of classes with two sides; give no bare sentences."
                )
            classes = chosen
        calibration.check(where, self.network.content_hash, classes)
        for sentence in calibration.warnings:
            warn(f"{where}: {sentence}")
        scores = self.scores(images, classes.texts, batch_size=batch_size)
        differences = prompt_differences(scores.to_numpy(dtype=np.float64), classes)
        return decide(calibration, where, differences, prevalence, coverage), scores.index

    def scores(
        self, images: ImagesLike, texts: str | Sequence[str], *, batch_size: int = _BATCH
    ) -> pd.DataFrame:
        """The model's image-sentence similarities, on the cosine scale.

        Args:
            images: I images.
            texts: T sentences, none of them empty.
            batch_size: images encoded at a time.

        Returns:
            ``[I, T]`` float32 in [-1, 1]; rows are named by path, or by place from 0.

        Raises:
            UserError: an image or a sentence cannot be used, or the model gives NaN.
        """
        sentences = checked_sentences(texts)
        inputs = given_images(images)
        vectors = self._sentence_vectors(sentences)
        parts = [np.zeros((0, len(sentences)), dtype=np.float32)]
        for features in self._features(inputs, batch_size):
            with torch.inference_mode():
                parts.append(finite(self.network.score(features, vectors), "scores"))
        index = pd.Index([image.name for image in inputs], name="image")
        columns = pd.Index(sentences, name="sentence")
        return pd.DataFrame(np.concatenate(parts), index=index, columns=columns)

    # --------------------------------------------------------------------------- encoding

    def encode_images(self, images: ImagesLike, *, batch_size: int = _BATCH) -> NDArray[np.float32]:
        """One unit vector for each image, for a search, a probe or a plot.

        In a model that scores by regions these are the normalised mean regions, and `scores` are
        not their cosines.

        Args:
            images: I images.
            batch_size: images encoded at a time.

        Returns:
            ``[I, D]`` float32, rows of length 1.

        Raises:
            UserError: an image cannot be used, or the model gives NaN.
        """
        parts = [np.zeros((0, self.dim), dtype=np.float32)]
        for features in self._features(given_images(images), batch_size):
            with torch.inference_mode():
                parts.append(finite(features.pooled, "encode_images"))
        return np.concatenate(parts)

    def encode_texts(self, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """One unit vector for each text; a string is one text.

        Args:
            texts: T texts, none of them empty.

        Returns:
            ``[T, D]`` float32, rows of length 1; for a model with several vectors a sentence, the
            one in the space of whole images.

        Raises:
            UserError: there is no text, or one is empty or not a string.
        """
        vectors = self._sentence_vectors(checked_sentences(texts))
        return finite(one_vector(vectors, self.network.outputs.sentence_rows), "encode_texts")

    # -------------------------------------------------------------------------- grounding

    def heatmaps(
        self,
        image: ImageLike,
        sentences: str | Sequence[str],
        *,
        method: MapMethod = "similarity",
        smoothing: float = 0.0,
        sharpen: Sharpen = "none",
    ) -> Heatmaps:
        """Maps of where on a radiograph each sentence is seen, at its original pixels.

        All maps are in memory together: 600 MB for 20 sentences over 3056 x 2544 pixels.

        Args:
            image: one image.
            sentences: T sentences, none of them empty.
            method: ``similarity`` of the regions with the sentence, ``gradcam`` or ``occlusion``
                (`medclip_debias.grounding.saliency`).
            smoothing: sigma of a Gaussian over the model's grid of regions, in cells; 0 for none.
            sharpen: ``none``, or a way to sharper maps (docs/grounding.md, Sharper maps).

        Raises:
            UserError: the image or a sentence cannot be used, the model has no regions, or the
                method does not work with it.
        """
        texts, radiograph = self._one("heatmaps", image, sentences)
        settings = self.preprocessing.prepare
        network = with_maps(self.network, method)
        groundings = ground_image(network, radiograph, texts, smoothing=smoothing, sharpen=sharpen)
        values = np.stack([one.heatmap for one in groundings])
        return Heatmaps(
            values=values,
            sentences=tuple(texts),
            scores=np.array([one.score for one in groundings], dtype=np.float32),
            kind=network.outputs.map_kind,
            limits=(float(np.nanmin(values)), float(np.nanmax(values))),
            image=radiograph.stretched(settings),
        )

    def boxes(
        self,
        image: ImageLike,
        sentences: str | Sequence[str],
        *,
        share: float = 0.5,
        smoothing: float = 0.0,
        sharpen: Sharpen = "none",
        suppress: bool = True,
    ) -> pd.DataFrame:
        """Zero, one or many boxes for each sentence, with a confidence.

        Args:
            image: one image.
            sentences: T sentences, none of them empty.
            share: where a map is cut for boxes, as a share of its range from the lowest value.
            smoothing: sigma of a Gaussian over the model's grid of regions, in cells; 0 for none.
            sharpen: ``none``, or a way to sharper maps (docs/grounding.md, Sharper maps).
            suppress: return no box for a sentence that is not in the image, by the rule that
                ``medclip-debias evaluate suppression`` stores in the model's folder; if False,
                every sentence has boxes, without a confidence.

        Returns:
            One row a box, by sentence and falling confidence: ``sentence``, ``x``, ``y``,
            ``width``, ``height`` (pixels of the original), ``confidence`` in [0, 1]. A sentence
            that is not in the image has no row.

        Raises:
            UserError: the image or a sentence cannot be used, the model has no regions, or its
                folder has no rule of suppression.
        """
        texts, radiograph = self._one("boxes", image, sentences)
        rule = read_rule(Path(self.name), self.network) if suppress else None
        groundings = ground_image(
            self.network, radiograph, texts, smoothing=smoothing, sharpen=sharpen, rule=rule
        )
        rows = [
            (one.text, *box.box, np.nan if box.confidence is None else box.confidence)
            for one in groundings
            for box in boxes_of_share(one.heatmap, share, one.verdict)
        ]
        columns = ["sentence", "x", "y", "width", "height", "confidence"]
        return pd.DataFrame(rows, columns=columns)

    # ------------------------------------------------------------------------------ parts

    def _one(
        self, what: str, image: ImageLike, sentences: str | Sequence[str]
    ) -> tuple[list[str], Radiograph]:
        texts, inputs = checked_sentences(sentences), given_images(image)
        if len(inputs) != 1:
            raise UserError(f"{what} takes one image, got {len(inputs)}; call it for each.")
        self._tell_cut(texts)
        radiograph = inputs[0].read(self.preprocessing.prepare.window)
        self._tell_synthetic(inputs)
        return texts, radiograph

    def _sentence_vectors(self, sentences: list[str]) -> torch.Tensor:
        self._tell_cut(sentences)
        with torch.inference_mode():
            return self.network.encode_sentences(sentences)

    def _features(self, inputs: Sequence[GivenImage], batch_size: int) -> Iterator[ImageFeatures]:
        """Features of a batch of images at a time; only its squares are held together."""
        if batch_size < 1:
            raise UserError(f"batch_size must be at least 1, got {batch_size}.")
        rest = iter(inputs)
        while batch := list(islice(rest, batch_size)):
            settings = self.preprocessing.prepare
            squares = np.stack([image.prepared(settings) for image in batch])
            self._tell_synthetic(batch)
            with torch.inference_mode():
                features = self.network.encode_images(torch.from_numpy(squares))
            yield features

    def _tell_cut(self, sentences: Sequence[str]) -> None:
        for line in cut_notes(self.network, sentences):
            warn(line)

    def _tell_synthetic(self, images: Sequence[GivenImage]) -> None:
        """Say once that the model knows no patient, when it is shown other than a phantom."""
        shown = all(image.is_phantoms for image in images)
        warning = synthetic_warning(self.network.provenance, shown)
        if warning is not None and not self._warned:
            self._warned = True
            warn(warning, SyntheticModelWarning)
