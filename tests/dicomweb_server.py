"""A small DICOMweb server over files in memory, after PS3.18: for tests, on loopback alone.

QIDO-RS: ``/studies``, ``.../{uid}/series`` and ``.../{uid}/instances``, with matching of single
values, ``limit`` and ``offset``, ``includefield``, 204 for no match. WADO-RS: one instance,
``multipart/related``. Faults are set by name.
"""

from __future__ import annotations

import base64
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pydicom

_STUDY = ("StudyInstanceUID", "StudyDate", "PatientID", "AccessionNumber")
_SERIES = ("StudyInstanceUID", "SeriesInstanceUID", "Modality")
_INSTANCE = (*_SERIES[:2], "SOPClassUID", "SOPInstanceUID", "Rows", "Columns", "NumberOfFrames")


class DicomWebServer:
    """Attributes: ``url``; ``requests``, paths with queries; ``headers`` of the last request;
    ``fault``: ``""`` or what goes wrong; ``secret``: what ``Authorization`` must be; ``page``: most
    matches of an answer."""

    def __init__(self, files: list[Path]) -> None:
        self.contents = {}
        for file in files:
            dataset = pydicom.dcmread(file, stop_before_pixels=True)
            ids = (dataset.StudyInstanceUID, dataset.SeriesInstanceUID, dataset.SOPInstanceUID)
            self.contents[ids] = (dataset, file.read_bytes())
        self.requests: list[str] = []
        self.headers: dict[str, str] = {}
        self.fault, self.secret, self.page, self.pages = "", "", 1000, True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/dicom-web"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append(request.path)
        self.headers = dict(request.headers)
        parts = urlsplit(request.path)
        assert parts.path.startswith("/dicom-web/")
        steps = parts.path.removeprefix("/dicom-web/").split("/")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if self.secret and request.headers.get("Authorization") != self.secret:
            return send(request, 401, "text/plain", b"who are you?")
        if self.fault == "redirect":
            return send(request, 302, "text/plain", b"", Location="http://127.0.0.2:9/dicom-web")
        if self.fault == "error":
            return send(request, 500, "text/plain", b"PatientName=DOE^JANE")
        if len(steps) == 6 and steps[::2] == ["studies", "series", "instances"]:
            return self._instance(request, steps)
        if steps == ["studies"]:
            found = {ids[0]: row for ids, (row, _) in self.contents.items()}
            return self._list(request, found.values(), _STUDY, query)
        if len(steps) == 3 and (steps[0], steps[2]) == ("studies", "series"):
            rows = {ids[1]: row for ids, (row, _) in self.contents.items() if ids[0] == steps[1]}
            return self._list(request, rows.values(), _SERIES, query)
        if len(steps) == 5 and steps[::2] == ["studies", "series", "instances"]:
            wanted = (steps[1], steps[3])
            rows = [row for ids, (row, _) in self.contents.items() if ids[:2] == wanted]
            return self._list(request, rows, _INSTANCE, query)
        return send(request, 404, "text/plain", b"")

    def _list(self, request, rows, names, query) -> None:
        if self.fault == "no list":
            return send(request, 200, "text/html", b"<html>log in</html>")
        limit, offset = int(query.pop("limit", 1000)), int(query.pop("offset", 0))
        query.pop("includefield", None)
        rows = [row for row in rows if all(str(row.get(k) or "") == v for k, v in query.items())]
        rows = rows[offset if self.pages else 0 :][: min(limit, self.page)]
        if not rows:
            return send(request, 204, "application/dicom+json", b"")
        found = []
        for row in rows:
            match = pydicom.Dataset()
            for name in names:
                if name in row:
                    match[name] = row[name]
            found.append(match.to_json_dict())
        return send(request, 200, "application/dicom+json", json.dumps(found).encode())

    def _instance(self, request, steps) -> None:
        ids = (steps[1], steps[3], steps[5])
        if ids not in self.contents:
            return send(request, 404, "text/plain", b"")
        body = self.contents[ids][1]
        if self.fault == "another image":
            body = next(content for known, (_, content) in self.contents.items() if known != ids)
        if self.fault == "no dicom":
            body = b"not found, sorry"
        if self.fault == "bare":
            return send(request, 200, "application/dicom", body)
        boundary = base64.b16encode(ids[2].encode()[-12:]).decode()
        stream = io.BytesIO()
        stream.write(f"\r\n--{boundary}\r\nContent-Type: application/dicom\r\n\r\n".encode())
        stream.write(body)
        if self.fault == "cut off":
            stream.truncate(len(body) // 2)
        else:
            stream.write(f"\r\n--{boundary}--\r\n".encode())
        kind = f'multipart/related; type="application/dicom"; boundary="{boundary}"'
        return send(request, 200, kind, stream.getvalue())


def send(request, status: int, kind: str, body: bytes, **headers: str) -> None:
    request.send_response(status)
    request.send_header("Content-Type", kind)
    request.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)
