"""Is a model tested on the archive that it was trained on, or on another one?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from medclip_debias.data.joint import FAMILIES

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.interface import ImageTextModel

SAME_SET, SAME_ARCHIVE = "same set", "same archive"
ANOTHER, NOT_KNOWN = "another archive", "unknown"

ANYBODYS = ("manifest",)
"""Kinds of source that are no archive: two such sets may come from one hospital or from two."""


def describe_archives(model: ImageTextModel, data: PreparedSet) -> dict[str, Any]:
    """What the model was trained on, what it is tested on, and how the two are related.

    Returns:
        ``model`` and ``data``, each with ``kind`` (of the source), ``synthetic`` and ``data_hash``,
        of the model null where it does not say; ``relation``: ``same set``, ``same archive``,
        ``another archive`` or ``unknown``.
    """
    trained = trained_on(model.provenance)
    tested = {
        "kind": data.meta.get("kind", data.meta.get("source")),
        "synthetic": bool(data.meta.get("synthetic", False)),
        "data_hash": data.content_hash,
    }
    return {"model": trained, "data": tested, "relation": _relation(trained, tested)}


def archive_notes(archives: Mapping[str, Any], data: PreparedSet) -> list[str]:
    """Sentences on what a reader of the metrics must know of the two archives."""
    trained, tested = (archive_name(archives[side]) for side in ("model", "data"))
    model, relation = archives["model"], archives["relation"]
    all_test = bool((data.meta.get("options") or {}).get("all_test"))
    on_both = f"The model was trained on {trained} and is measured on {tested}"
    if relation == ANOTHER:
        return [
            f"External test: the model was trained on {trained} and is measured on {tested}, with"
            " other patients, machines and labels than its own."
        ]
    if relation == NOT_KNOWN and model["kind"] is not None:
        return [f"{on_both}, another set; whether they share patients is not known."]
    if relation == NOT_KNOWN and model["data_hash"] is not None:
        return ["The model was trained on another set, and it does not say of which archive."]
    if relation == SAME_SET and all_test:
        return ["The model was trained on a set of these very images, all of them put into test."]
    if relation == SAME_ARCHIVE and model["kind"] != archives["data"]["kind"]:
        return [
            f"{on_both}, whose images come from one archive: images that it learned from may be"
            " among them."
        ]
    if relation == SAME_ARCHIVE and all_test:
        return [
            f"The model was trained on {trained}, too, and every image of this set was put into"
            " test (--all-test): images that it learned from may be among them."
        ]
    return []


def archive_name(side: Mapping[str, Any]) -> str:
    """Words for one side of `describe_archives`.

    >>> archive_name({"kind": "mimic_cxr", "synthetic": True})
    'mimic_cxr (synthetic)'
    """
    kind = side.get("kind") or "a set that it does not name"
    return f"{kind} (synthetic)" if side.get("synthetic") else str(kind)


def trained_on(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What a model's provenance says of its training set: as ``model`` of `describe_archives`."""
    inner, named = (
        part if isinstance(part, Mapping) else {}
        for part in (provenance.get("provenance"), provenance.get("data"))
    )
    trained = {"kind": named.get("kind"), "synthetic": named.get("synthetic")}
    sets = {"sets": named["sets"]} if named.get("sets") else {}
    return trained | {"data_hash": inner.get("data_hash")} | sets


def _relation(trained: Mapping[str, Any], tested: Mapping[str, Any]) -> str:
    hashes = (trained["data_hash"], *trained.get("sets", ()))
    if tested["data_hash"] is not None and tested["data_hash"] in hashes:
        return SAME_SET
    if trained["kind"] is None or tested["kind"] is None:
        return NOT_KNOWN
    if bool(trained["synthetic"]) != tested["synthetic"]:
        return ANOTHER
    pairs = [{kind, tested["kind"]} for kind in trained["kind"].split("+")]  # of a joint training
    if any(len(kinds) == 1 or any(kinds <= f for f in FAMILIES) for kinds in pairs):
        return NOT_KNOWN if tested["kind"] in ANYBODYS else SAME_ARCHIVE
    return NOT_KNOWN if any(kinds & set(ANYBODYS) for kinds in pairs) else ANOTHER
