"""A run's page while it trains: how far it is, curves, and six images with their maps.

It is ``report.html`` of the run's folder, which `medclip_debias.reporting.report` replaces when the
run has been evaluated. One file, written at once or not at all; a browser that has it open reads it
anew by itself until the run has ended.
"""

from __future__ import annotations

import io
import time

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.preview import Example, choose, pictures, refuse, sheet
from medclip_debias.files import write_text
from medclip_debias.models.starting import TrainableModel
from medclip_debias.reporting.light_curve import light_curve
from medclip_debias.reporting.page import render
from medclip_debias.reporting.plots import data_address
from medclip_debias.reporting.run_files import read_metrics
from medclip_debias.reporting.training import curves, validation_curves
from medclip_debias.training.pace import clock
from medclip_debias.training.progress_log import FINISHED, RUNNING, Moment
from medclip_debias.training.settings import RunSettings

REFRESH = 20  # seconds after which a browser reads the page anew
SHARE = 0.005  # of the run's time that the page may take


class LivePage:
    """Writes the page when it is called (`medclip_debias.training.progress_log.Watcher`).

    The first call and the end of the run always write it; in between it is left out while what it
    took so far is more than half a hundredth of the run's time.

    Args:
        settings: of the run.

    Attributes:
        spent: seconds that it took so far.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._data: PreparedSet | None = None
        self._examples: list[Example] = []
        self._pictures: list[NDArray[np.uint8]] = []
        self._without, self._step = "", 0
        self.spent = 0.0

    def __call__(self, moment: Moment, model: TrainableModel | None) -> NDArray[np.uint8] | None:
        """Write the page; return the pictures as one, where there are new ones."""
        if moment.status == RUNNING and self.spent > SHARE * moment.elapsed:
            return None
        began = time.perf_counter()
        fresh = model is not None and self._look(model, moment.step)
        write_text(moment.out / "report.html", self._page(moment))
        self.spent += time.perf_counter() - began
        if not fresh:
            return None
        return sheet(self._pictures, [example.text for example in self._examples])

    def _look(self, model: TrainableModel, step: int) -> bool:
        """Make the pictures; whether there are any."""
        train = self._settings.train
        if self._data is None:
            self._data = PreparedSet.open(self._settings.prepared)
            self._without = refuse(self._data, train.preview, train.task)
            if not self._without:
                try:
                    self._examples = choose(self._data, model.preprocessing.input_size)
                except UserError:
                    self._without = "no pictures: no study of the validate split has a sentence"
        if not self._examples:
            return False
        self._pictures, self._step = pictures(model, self._data, self._examples), step
        return True

    def _page(self, moment: Moment) -> str:
        train = self._settings.train
        return render(
            "live.html.j2",
            name=moment.out.resolve().name,
            refresh=REFRESH if moment.status == RUNNING else None,
            finished=moment.status == FINISHED,
            word={RUNNING: "Training", FINISHED: "Trained"}.get(moment.status, "Stopped"),
            status=moment.status.rstrip("."),
            now=time.strftime("%Y-%m-%d %H:%M:%S"),
            tiles=[
                ("Step", f"{moment.step:,} of {moment.steps:,}"),
                ("Elapsed", clock(moment.elapsed)),
                ("Left", clock(moment.left) if moment.status == RUNNING else "-"),
            ],
            best=moment.best,
            weights=moment.weights,
            curves=curves(read_metrics(moment.out / "metrics.csv"), light_curve),
            validation=validation_curves(
                read_metrics(moment.out / "validation.csv"), train.model_dump(), light_curve
            ),
            validates=bool(train.validate_every),
            pictures=[
                {"picture": _png(picture), "text": example.text, "boxes": len(example.boxes)}
                for picture, example in zip(self._pictures, self._examples, strict=False)
            ],
            pictures_step=self._step,
            without=self._without,
            evaluate=f"medclip-debias evaluate {moment.out}/model {self._settings.prepared} "
            f"--out {moment.out}",
            report=f"medclip-debias report {moment.out}",
        )


def _png(picture: NDArray[np.uint8]) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG", compress_level=3)
    return data_address(buffer.getvalue(), "image/png")
