"""Fixtures that every test may use: real data when it is there, small hand-written trees."""

from __future__ import annotations

import fcntl
import gc
import gzip
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from filelock import FileLock

from dicom_files import write_radiograph
from medclip_debias.cli import keep_freed_memory

# Before torch is imported: tests run side by side, and a forked child has no thread pool to lose.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No power fails in a test: what a killed process wrote is in the file all the same. Thousands of
# small files that must reach the disk take a third of the time of the tests that write them.
os.fsync = lambda _: None
gc.set_threshold(20_000, 20, 20)  # as the program does (medclip_debias.cli.main)
keep_freed_memory()
# No limit of time an example: a machine that does something else fails no property. Each run draws
# other examples, so few of them are enough; folders of a test are only written anew.
hypothesis.settings.register_profile(
    "here",
    deadline=None,
    max_examples=40,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("here")

REPO = Path(__file__).parents[1]
SHARED_DATA = REPO.parent / "shared" / "data"

PHANTOM_STUDIES = 160
PHANTOM_SIZE = 72


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """One process after the other: in a fresh clone, the second finds compiled what all import."""
    with Path(__file__).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return (yield)


def pytest_collection_finish() -> None:
    """Thousands of tests, and what they import: no garbage, and looked at each time."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Leave little for pytest's five last collections, of a second together."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def undrawn() -> Iterator[Callable[..., bytes]]:
    """Plots are made, but written as empty drawings: `drawn` and tests/reporting draw them."""
    from medclip_debias.reporting import plots

    svg = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"></svg>'
    real = plots.drawn_as
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plots, "drawn_as", lambda *_, **__: svg)
        yield real


@pytest.fixture
def drawn(undrawn: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The plots of this test are drawn."""
    monkeypatch.setattr("medclip_debias.reporting.plots.drawn_as", undrawn)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real, openly licensed inputs."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real inputs are not beside the repository")
    return SHARED_DATA


@pytest.fixture(scope="session")
def once(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, Callable[[Path], object]], Path]:
    """A function: the folder that one process makes, and the others beside it find."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name: str, make: Callable[[Path], object]) -> Path:
        with FileLock(root / f"{name}.lock"):
            if not (root / name).exists():
                make(root / f"{name}.part")
                (root / f"{name}.part").rename(root / name)
        return root / name

    return made


@pytest.fixture(scope="session")
def openi_source(shared_data: Path) -> Any:
    """The real Open-i archive, opened."""
    from medclip_debias.data.sources.detect import detect

    return detect(shared_data / "openi")


@pytest.fixture(scope="session")
def openi_studies(openi_source: Any) -> list[Any]:
    """Every study of the real Open-i archive."""
    return list(openi_source.studies())


@pytest.fixture(scope="session")
def openi_text(shared_data: Path, once: Callable[..., Path]) -> Any:
    """The prepared set of the real reports of Open-i without their images: do not write to it."""
    from medclip_debias.cli import run
    from medclip_debias.data.store import PreparedSet

    def make(out: Path) -> None:
        words = ["prepare", f"{shared_data / 'openi'}", f"{out}", "--kind", "openi", "--text-only"]
        assert run([*words, "--quiet"]) == 0

    return PreparedSet.open(once("openi_text", make))


@pytest.fixture(scope="session")
def phantom_tree(once: Callable[..., Path]) -> Path:
    """A small phantom in the MIMIC-CXR layout (DICOM): do not write to it."""
    from medclip_debias.phantom import PhantomSettings, generate

    settings = PhantomSettings(studies=PHANTOM_STUDIES, seed=3, min_side=80, max_side=112)
    return once("phantom_tree", lambda out: generate(out, settings, None, 1))


@pytest.fixture(scope="session")
def prepared_phantom(phantom_tree: Path, once: Callable[..., Path]) -> Path:
    """The prepared set of `phantom_tree`: give it to `PreparedSet.open`, do not write to it."""
    from medclip_debias.config import PrepareSettings
    from medclip_debias.data.prepare import prepare

    settings = PrepareSettings(size=PHANTOM_SIZE)
    return once("prepared_phantom", lambda out: prepare(phantom_tree, out, settings, workers=1))


@pytest.fixture
def dicomweb() -> Iterator[Callable[[list[Path]], Any]]:
    """A function that serves DICOM files on loopback: `tests/dicomweb_server.py`."""
    place = Path(__file__).with_name("dicomweb_server.py")
    spec = importlib.util.spec_from_file_location("dicomweb_server", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    servers = []

    def serve(files: list[Path]) -> Any:
        servers.append(module.DicomWebServer(files))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


# Of a module, not of the session: Playwright's loop runs as long, and no asyncio.run beside it.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The system's Chromium under Playwright; ``CHROMIUM=FILE`` names another."""
    place = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if place is None:
        pytest.skip("there is no chromium on the path (CHROMIUM=FILE names one)")
    reason = "playwright is not installed: pip install -e '.[browser]'"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=place, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def serious() -> Callable[[Any], list[Any]]:
    """A function: what axe-core (WCAG A and AA, and good practice) finds serious in a page."""
    axe = pytest.importorskip("axe_playwright_python")
    script = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")

    def found(page: Any) -> list[Any]:
        page.evaluate(script)
        result = page.evaluate("axe.run()")
        assert len(result["passes"]) > 5  # it did look
        return [
            (one["id"], [node["html"] for node in one["nodes"]])
            for one in result["violations"]
            if one["impact"] in ("serious", "critical")
        ]

    return found


WriteDicom = Callable[..., Path]


@pytest.fixture(scope="session")
def write_dicom() -> WriteDicom:
    """A function that writes an array as a DICOM file; keywords set or (None) remove elements."""

    return write_radiograph


@dataclass(frozen=True)
class TinyTree:
    """A hand-written MIMIC-CXR tree, small enough to know every row of it.

    Patients 1 and 2 are in train, 3 in validate, 4 in test; patient 2 has an MS-CXR box.
    Images a (AP), b (PA, MONOCHROME1 negative of a), c (lateral), d (JPG), e (PA, test).
    """

    root: Path
    picture: np.ndarray

    def image(self, name: str) -> Path:
        """The file of image ``name``."""
        return next(self.root.glob(f"files/*/*/*/{name}.*"))

    def report(self, study: str) -> Path:
        """The report of ``study``."""
        return next(self.root.glob(f"files/*/*/s{study}.txt"))


@pytest.fixture
def tiny_tree(tmp_path: Path, write_dicom: WriteDicom) -> TinyTree:
    """A fresh `TinyTree`, free to be damaged by the test."""
    from PIL import Image

    root = tmp_path / "mimic"
    rows = np.arange(48)[:, None] * 30 + np.arange(40)[None, :] * 50
    picture = (rows + 100).astype(np.uint16)
    images = [  # name, patient, study, view, split
        ("a", 1, 101, "AP", "train"),
        ("b", 2, 102, "PA", "train"),
        ("c", 2, 102, "LATERAL", "train"),
        ("d", 3, 103, "AP", "validate"),
        ("e", 4, 104, "PA", "test"),
    ]
    texts = {
        101: "FINAL REPORT\n FINDINGS: \n \n Lungs are clear. Heart is normal.\n",
        102: " IMPRESSION: \n \n 1. Left effusion.\n 2. No pneumothorax.\n",
        103: " FINDINGS: Mild edema.\n \n IMPRESSION: Edema.\n",
        104: " COMPARISON: None.\n \n The heart is large.\n",
    }
    metadata = "dicom_id,subject_id,study_id,ViewPosition,Rows,Columns\n"
    split = "dicom_id,study_id,subject_id,split\n"
    for name, patient, study, view, part in images:
        subject = f"1000000{patient}"
        folder = root / "files" / "p10" / f"p{subject}"
        place = folder / f"s{study}"
        place.mkdir(parents=True, exist_ok=True)
        (folder / f"s{study}.txt").write_text(" " * 33 + texts[study], encoding="utf-8")
        metadata += f"{name},{subject},{study},{view},48,40\n"
        split += f"{name},{study},{subject},{part}\n"
        if name == "d":
            grey = np.rint((picture - 100) / 3360 * 255).astype(np.uint8)
            Image.fromarray(grey).save(place / "d.jpg", quality=95)
        elif name == "b":
            negative = (4095 - picture).astype(np.uint16)
            options = {"PhotometricInterpretation": "MONOCHROME1"}
            write_dicom(place / "b.dcm", negative, BitsStored=12, HighBit=11, **options)
        else:
            write_dicom(place / f"{name}.dcm", picture, BitsStored=12, HighBit=11)
    chexpert = (
        "subject_id,study_id,Edema,Lung Opacity,Pleural Effusion\n"
        "10000001,101,0.0,,0.0\n10000002,102,,-1.0,1.0\n10000004,104,,1.0,\n"
    )
    human = "study_id,Airspace Opacity,Edema\n104,0,1\n101,1,1\n"
    _gzip(root / "mimic-cxr-2.0.0-metadata.csv.gz", metadata)
    _gzip(root / "mimic-cxr-2.0.0-split.csv.gz", split)
    _gzip(root / "mimic-cxr-2.0.0-chexpert.csv.gz", chexpert)
    (root / "mimic-cxr-2.1.0-test-set-labeled.csv").write_text(human, encoding="utf-8")
    coco = {  # annotated at twice the size of the file here
        "images": [{"id": 0, "file_name": "b.jpg", "width": 80, "height": 96}],
        "annotations": [
            {"id": 0, "image_id": 0, "category_id": 1, "bbox": b, "label_text": "Left effusion"}
            for b in ([10, 20, 30, 40], [50, 60, 10, 10])
        ],
        "categories": [{"id": 1, "name": "Pleural Effusion"}],
    }
    (root / "MS_CXR_Local_Alignment_v1.0.0.json").write_text(json.dumps(coco), encoding="utf-8")
    return TinyTree(root, picture)


def _gzip(path: Path, text: str) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(text)


@pytest.fixture
def nih_folder(tmp_path: Path) -> Callable[..., Path]:
    """A function: a folder as ChestX-ray14's: name, and by image its labels and split.

    A name begins with eight digits of the patient; the list of a split that is neither test nor
    train leaves the image out.
    """

    from PIL import Image

    def make(name: str, images: Mapping[str, tuple[str, str]], side: int = 24) -> Path:
        folder = tmp_path / name
        (folder / "images").mkdir(parents=True)
        rows = ["Image Index,Finding Labels,Patient ID,View Position"]
        for number, (image, (labels, _)) in enumerate(images.items()):
            rows.append(f"{image}.png,{labels},{int(image[:8])},PA")
            seed = [number, len(name), *name.encode()]
            grey = np.random.default_rng(seed).integers(0, 256, (side, side), dtype=np.uint8)
            Image.fromarray(grey).save(folder / "images" / f"{image}.png")
        (folder / "Data_Entry_2017.csv").write_text("\n".join([*rows, ""]))
        for file, wanted in (("train_val_list.txt", "train"), ("test_list.txt", "test")):
            listed = [f"{image}.png" for image, (_, split) in images.items() if split == wanted]
            (folder / file).write_text("\n".join(listed))
        return folder

    return make
