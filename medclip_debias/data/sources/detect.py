"""Find out what a path holds."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import get_args

from medclip_debias.data.labels import Labeller
from medclip_debias.data.records import Source
from medclip_debias.data.sources import mimic_cxr, ms_cxr, openi
from medclip_debias.data.sources.manifest import ManifestSource
from medclip_debias.data.sources.mimic_cxr import MimicCxrSource
from medclip_debias.data.sources.mimic_files import is_bare_tree
from medclip_debias.data.sources.openi import OpeniSource
from medclip_debias.errors import UserError, did_you_mean

KINDS = ("auto", "mimic_cxr", "openi", "manifest")
_MANIFESTS = ("manifest.csv", "manifest.csv.gz", "manifest.parquet")
_LOOKED_AT = 2_000  # files and folders; a hint is not worth a walk over a whole disk
_TABLES = (".csv", ".csv.gz", ".parquet")


def detect(
    path: Path,
    kind: str = "auto",
    *,
    phrases: Path | None = None,
    reports: Path | None = None,
    labeller: Labeller = "chexpert",
    split_seed: int | None = None,
    tables: Path | None = None,
    text_only: bool = False,
) -> Source:
    """Return the source that ``path`` holds, read and checked.

    Args:
        path: a MIMIC-CXR(-JPG) folder (of reports alone also their zip), an Open-i folder or
            archive, a folder with ``manifest.csv`` (or ``.parquet``), or the manifest itself.
        kind: one of `KINDS`.
        phrases: boxes: a COCO file, MS-CXR's CSV, or a folder that holds one of them; by default
            what lies beside the data, if anything.
        reports: folder, zip or archive of the reports, for images that came without any.
        labeller: whose automatic labels to read from MIMIC-CXR-JPG.
        split_seed: split patients by a hash with this seed; ``None`` for the source's own split.
        tables: folder of MIMIC-CXR's tables, when they do not lie beside the images.
        text_only: the reports alone; a source whose images are missing is refused without it.

    Raises:
        UserError: nothing is there, or nothing that is known.
    """
    path = Path(path)
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS)
        raise UserError(f"'{kind}' is not a kind of source{hint}; known: {', '.join(KINDS)}.")
    if labeller not in get_args(Labeller):
        raise UserError(f"'{labeller}' is not a labeller; known: {', '.join(get_args(Labeller))}.")
    if not path.exists():
        raise UserError(f"{path}: there is no such folder or file; check the path.")
    if reports is not None and not reports.exists():
        raise UserError(f"{reports}: there is no such folder or file of reports; check the path.")
    if tables is not None and not tables.is_dir():
        raise UserError(f"{tables}: there is no such folder of tables; check the path.")
    if phrases is not None:
        phrases = _named_phrases(phrases)
    kind = _kind(path) if kind == "auto" else kind
    if kind == "mimic_cxr":
        if path.is_file():
            path, reports = _reports_alone(path, text_only)
        return MimicCxrSource(
            path,
            phrases,
            reports=reports,
            tables=tables,
            labeller=labeller,
            seed=split_seed,
            text_only=text_only,
        )
    if tables is not None:
        raise UserError(f"{tables}: only MIMIC-CXR has tables of its own; leave out --tables.")
    if kind == "openi":
        boxes = phrases or _boxes_beside(path if path.is_dir() else path.parent)
        return OpeniSource(path, boxes, reports=reports, seed=split_seed, text_only=text_only)
    if reports is not None:
        raise UserError(
            f"{reports}: a manifest holds its own reports; put them in its column 'report'."
        )
    manifest = path if path.is_file() else _manifest_in(path)
    if manifest is None:
        raise UserError(f"{path}: has no {_MANIFESTS[0]} or {_MANIFESTS[2]}; add one.")
    if not manifest.name.lower().endswith(_TABLES):
        raise UserError(
            f"{path}: is not a manifest; give a {', '.join(_TABLES)} table or a folder."
        )
    boxes = phrases or _boxes_beside(manifest.parent)
    return ManifestSource(manifest, boxes, seed=split_seed, text_only=text_only)


def _kind(path: Path) -> str:
    """Return the kind of what ``path`` holds.

    A manifest goes before loose XML files: it says outright what the folder is.
    """
    if path.is_file() and path.name.lower().endswith(".zip"):
        return "mimic_cxr"
    if path.is_file():
        return "openi" if openi.looks_like(path) else "manifest"
    if mimic_cxr.looks_like(path):
        return "mimic_cxr"
    if _manifest_in(path) is not None:
        return "manifest"
    if is_bare_tree(path):
        return "mimic_cxr"
    if openi.looks_like(path):
        return "openi"
    inside = _kind_of_child(path)
    raise UserError(
        f"{path}: is no known layout; expected MIMIC-CXR (a folder 'files' with p10 ... p19, or"
        f" {mimic_cxr.PATTERNS['metadata']}), Open-i ({openi.REPORTS_TGZ} or a folder"
        f" {openi.XML_FOLDER}), or a {_MANIFESTS[0]}{inside}."
    )


def _reports_alone(path: Path, text_only: bool) -> tuple[Path, Path]:
    """Return the folder and the zip of MIMIC-CXR's reports, given by itself."""
    if not path.name.lower().endswith(".zip"):
        raise UserError(f"{path}: is a file; give the folder that holds 'files'.")
    if not text_only:
        raise UserError(
            f"{path}: is a zip of reports without images; give the folder that holds 'files' and"
            " name this zip with --reports, or give --text-only to prepare the reports alone."
        )
    return path.parent, path


def _kind_of_child(path: Path) -> str:
    """Point to the folder that was meant: downloads nest (``physionet.org/files/...``)."""
    folders = (p for pattern in ("*", "*/*", "*/*/*", "*/*/*/*") for p in path.glob(pattern))
    for folder in sorted(islice(folders, _LOOKED_AT)):
        known = folder.is_dir() and (
            mimic_cxr.looks_like(folder)
            or _manifest_in(folder)
            or is_bare_tree(folder)
            or openi.looks_like(folder)
        )
        if known:
            return f"; did you mean {folder}?"
    return ""


def _manifest_in(folder: Path) -> Path | None:
    return next((folder / name for name in _MANIFESTS if (folder / name).is_file()), None)


def _named_phrases(path: Path) -> Path:
    if path.is_dir():
        found = _boxes_beside(path)
        if found is None:
            raise UserError(
                f"{path}: has no boxes, neither {ms_cxr.PATTERN} nor *.coco.json; name the file."
            )
        return found
    if not path.is_file():
        raise UserError(f"{path}: there is no such file of boxes; check the path.")
    return path


def _boxes_beside(folder: Path) -> Path | None:
    known = ms_cxr.find(folder)
    found = sorted([*folder.glob("*.coco.json"), *([known] if known else [])])
    if len(found) > 1:
        raise UserError(
            f"{folder}: both {found[0].name} and {found[1].name} hold boxes; name one with"
            " --phrases."
        )
    return found[0] if found else None
