"""Fetch the radiographs of studies from a DICOMweb server into a folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medclip_debias.data.dicomweb.client import DicomWeb, Match, first
from medclip_debias.data.images.contents import kind_of_instance
from medclip_debias.data.images.elements import header_start
from medclip_debias.data.images.headers import read_header
from medclip_debias.errors import UserError
from medclip_debias.files import atomic_file

MOST_STUDIES = 1000
MOST_INSTANCES = 10_000
"""Of a series, and series of a study."""
MOST_LISTED = 50_000
"""Instances and series of all studies together."""
_UID = re.compile(r"(?=.{1,64}$)[0-9]+(\.[0-9]+)*")
_QUERY = re.compile(r"([A-Za-z0-9]{1,64})=(.*)", re.DOTALL)
_STUDY, _SERIES, _INSTANCE = "0020000D", "0020000E", "00080018"
_CLASS, _MODALITY, _FRAMES = "00080016", "00080060", "00280008"

Say = Callable[[str], None]


@dataclass
class Received:
    """What came.

    Attributes:
        files: the radiographs, numbered in the order of the server's list.
        listed: series and instances that the server listed.
        left_aside: instances and studies that are none of them, by kind.
    """

    files: list[Path] = field(default_factory=list)
    listed: int = 0
    left_aside: Counter[str] = field(default_factory=Counter)

    def told(self) -> str:
        """A sentence on what was left aside, ``""`` for nothing."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.left_aside.most_common())
        return f"the server's studies: skipped {kinds}." if kinds else ""

    def uid(self, match: Match, tag: str, what: str) -> str:
        """The UID of what a server lists; ``""``, and counted, where it is none."""
        uid = first(match, tag)
        if _UID.fullmatch(uid):
            return uid
        self.left_aside[f"{what} without a valid UID"] += 1
        return ""


def fetch(
    url: str | None, folder: Path, studies: Sequence[str], query: Sequence[str], say: Say
) -> list[Path]:
    """`receive` from the server at ``url``, telling what was left aside; none without a ``url``."""
    if url is None:
        if studies or query:
            raise UserError("--study and --query need the address of a server: --dicomweb URL.")
        return []
    server = DicomWeb(url)
    if not server.is_encrypted:
        say(f"{server.url}: patients' images travel unencrypted; use https where you can.")
    received = receive(server, folder, studies, query)
    if told := received.told():
        say(told)
    return received.files


def receive(
    server: DicomWeb,
    folder: Path,
    studies: Sequence[str] = (),
    query: Sequence[str] = (),
) -> Received:
    """Search, retrieve and keep: ``0001.dcm``, ``0002.dcm`` ... in ``folder``.

    What the server's list already shows to be no radiograph (reports, presentation states, other
    modalities, several frames) is not retrieved. The files hold patients: only their owner may
    read them, and their names are numbers.
    """
    if not studies and not query:
        raise UserError("say which studies to fetch: --study UID, or --query KEY=VALUE.")
    if not all(map(_UID.fullmatch, studies)):
        raise UserError(
            "--study needs a study instance UID: digits and dots, 64 at most, as 1.2.840.1."
        )
    received, failed = Received(), ""
    wanted = dict.fromkeys([*studies, *_matching(server, query, received)])
    places = [place for study in wanted for place in _instances(server, study, received)]
    for number, place in enumerate(places, start=1):
        path = folder / f"{number:04d}.dcm"
        try:
            content = server.retrieve("studies/{}/series/{}/instances/{}".format(*place))
            _keep(path, content, place[2])
            received.files.append(path)
        except UserError as error:
            failed = failed or str(error)
            received.left_aside["radiographs that could not be retrieved"] += 1
    if not received.files:
        raise UserError(
            failed
            or f"{server.url}: holds no radiograph of these studies"
            f" ({received.told() or 'no study matches.'}); check UID or query."
        )
    return received


def _matching(server: DicomWeb, query: Sequence[str], received: Received) -> list[str]:
    """UIDs of the studies that match."""
    pairs = {}
    for number, text in enumerate(query, start=1):
        pair = _QUERY.fullmatch(text)
        if pair is None or pair[1].lower() in ("limit", "offset", "includefield"):
            raise UserError(
                f"query {number} is not a KEY=VALUE of a study, as StudyDate=20260101-20260131 or"
                " ModalitiesInStudy=DX."
            )
        pairs[pair[1]] = pair[2]
    matches = server.search("studies", pairs, MOST_STUDIES + 1) if pairs else ()
    uids = list(filter(None, (received.uid(match, _STUDY, "studies") for match in matches)))
    if len(uids) > MOST_STUDIES:
        raise UserError(
            f"{server.url}: more than {MOST_STUDIES:,} studies match; make the query narrower."
        )
    return uids


def _instances(server: DicomWeb, study: str, received: Received) -> Iterator[tuple[str, str, str]]:
    """Study, series and instance UID of what may be a radiograph in a study.

    Series by series: not every server searches the instances of a whole study.
    """

    def listed(path: str, query: dict[str, str]) -> Iterator[Match]:
        for match in server.search(path, query, MOST_INSTANCES):
            received.listed += 1
            if received.listed > MOST_LISTED:
                raise UserError(
                    f"{server.url}: lists more than {MOST_LISTED:,} series and instances of these"
                    " studies; ask for fewer studies."
                )
            yield match

    wanted = {"includefield": ",".join((_CLASS, _MODALITY, _FRAMES))}
    for listed_series in listed(f"studies/{study}/series", {}):
        series = received.uid(listed_series, _SERIES, "series")
        path = f"studies/{study}/series/{series}/instances"
        for match in listed(path, wanted) if series else ():
            modality = first(match, _MODALITY) or first(listed_series, _MODALITY)
            kind = kind_of_instance(first(match, _CLASS), modality, first(match, _FRAMES))
            if kind:
                received.left_aside[kind] += 1
            elif instance := received.uid(match, _INSTANCE, "instances"):
                yield study, series, instance


def _keep(path: Path, content: bytes, instance: str) -> None:
    """Write one instance, if it is the one that was asked for."""
    if header_start(content) is None:
        raise UserError("the server sent something that is not a DICOM file; check the address.")
    with atomic_file(path, private=True) as temporary:
        temporary.write_bytes(content)
        header = read_header(temporary, ["SOPInstanceUID"])
        if header is None or str(header.get("SOPInstanceUID") or "").strip() != instance:
            raise UserError(
                "the server sent a different image from the one requested; check the address."
            )
