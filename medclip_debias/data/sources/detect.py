"""Find out what a path holds."""

from __future__ import annotations

from pathlib import Path

from medclip_debias.data.records import Source
from medclip_debias.data.sources import mimic_cxr
from medclip_debias.data.sources.manifest import ManifestSource
from medclip_debias.data.sources.mimic_cxr import MimicCxrSource
from medclip_debias.errors import UserError, did_you_mean

KINDS = ("auto", "mimic_cxr", "manifest")
_MANIFESTS = ("manifest.csv", "manifest.csv.gz", "manifest.parquet")
_TABLES = (".csv", ".csv.gz", ".parquet")


def detect(path: Path, kind: str = "auto", *, phrases: Path | None = None) -> Source:
    """Return the source that ``path`` holds, read and checked.

    Args:
        path: a MIMIC-CXR folder, a folder with ``manifest.csv`` (or ``.parquet``), or the
            manifest itself.
        kind: one of `KINDS`.
        phrases: COCO file of grounded phrases; by default the one beside the data, if any.

    Raises:
        UserError: nothing is there, or nothing that is known.
    """
    path = Path(path)
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS)
        raise UserError(f"'{kind}' is not a kind of source{hint}; known: {', '.join(KINDS)}.")
    if not path.exists():
        raise UserError(f"{path}: there is no such folder or file; check the path.")
    if phrases is not None and not phrases.is_file():
        raise UserError(f"{phrases}: there is no such file of boxes; check the path.")
    if path.is_file():
        return _from_file(path, kind, phrases)
    manifest = next((path / name for name in _MANIFESTS if (path / name).is_file()), None)
    if kind == "mimic_cxr" or (kind == "auto" and mimic_cxr.looks_like(path)):
        return MimicCxrSource(path, phrases)
    if manifest is not None:
        return ManifestSource(manifest, phrases or _coco_beside(path))
    if kind == "manifest":
        raise UserError(f"{path}: has no {_MANIFESTS[0]} or {_MANIFESTS[2]}; add one.")
    raise UserError(
        f"{path}: is no known layout; expected MIMIC-CXR (a folder 'files' with p10 ... p19 and"
        f" {mimic_cxr.PATTERNS['metadata']}) or a {_MANIFESTS[0]}."
    )


def _from_file(path: Path, kind: str, phrases: Path | None) -> Source:
    if kind == "mimic_cxr":
        raise UserError(f"{path}: is a file; give the folder that holds 'files'.")
    if not path.name.lower().endswith(_TABLES):
        raise UserError(
            f"{path}: is not a manifest; give a {', '.join(_TABLES)} table or a folder."
        )
    return ManifestSource(path, phrases or _coco_beside(path.parent))


def _coco_beside(folder: Path) -> Path | None:
    found = sorted([*folder.glob("*.coco.json"), *folder.glob(mimic_cxr.PATTERNS["phrases"])])
    if len(found) > 1:
        raise UserError(
            f"{folder}: both {found[0].name} and {found[1].name} hold boxes; name one with"
            " --phrases."
        )
    return found[0] if found else None
