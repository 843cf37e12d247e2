"""Elements of a DICOM file, read within limits.

A deflated file of 12 KB can hold a sequence of a million empty items, each of which becomes an
object: half a minute and most of a gigabyte. So only the elements that are asked for are read,
their values are limited in length, and the reads are counted: pydicom needs one at least for each
element and each item.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from medclip_debias.errors import UserError

MAX_READS = 20_000
"""Of a file; each element and each item of a sequence needs one to three. Radiographs need some
hundreds."""
MAX_VALUE = 1 << 16
"""Bytes of an element that is neither pixels nor a sequence of these:"""
_SEQUENCES = {  # bytes, items
    0x00283000: (1 << 21, 4_000),  # ModalityLUTSequence; a table of 16 bits needs 128 KiB
    0x00283010: (1 << 21, 4_000),  # VOILUTSequence
    0x00041220: (1 << 25, 50_000),  # DirectoryRecordSequence, of a list of an export's files
}
MAX_DIRECTORY_READS = 2_000_000
"""Of a DICOMDIR, whose records have some fifteen elements each."""
MAX_UNPACKED = 1 << 29
"""Bytes of a deflated file; MAX_PIXELS in 16 bit need 400 MB."""

_DEFLATED = "1.2.840.10008.1.2.1.99"
_ITEM = (b"\xfe\xff\x00\xe0", b"\xff\xfe\xe0\x00")
_PIXELS = frozenset((0x7FE00008, 0x7FE00009, 0x7FE00010))
_CHARACTER_SET = 0x00080005
_UNDEFINED = 0xFFFFFFFF


def header_start(content: bytes) -> int | None:
    """Return where the elements of a DICOM file begin, ``None`` for another kind of file.

    132, behind the preamble and ``DICM`` of a Part-10 file; 0 for what older archives and network
    nodes write: the same elements from the first byte on.

    Args:
        content: the first 132 bytes, or more.
    """
    if content[128:132] == b"DICM":
        return 132
    group, kind = content[:2], content[4:6]
    if group == b"\x02\x00":
        return 0 if kind in (b"UL", b"OB", b"UI") else None
    short = int.from_bytes(content[4:8], "little") <= 64  # the length of an id or a date
    known = kind in (b"UL", b"UI", b"CS", b"DA", b"TM", b"SH", b"LO")
    return 0 if group == b"\x08\x00" and len(content) > 8 and (short or known) else None


def read_elements(
    file: IO[bytes], path: Path, tags: Sequence[str], *, max_reads: int = MAX_READS
) -> Any:
    """Return a pydicom data set with the elements that are asked for, and its ``file_meta``.

    Args:
        file: a DICOM file, with or without preamble; deflated ones are unpacked.
        path: named in messages.
        tags: keywords of the elements; ``PixelData`` among them is read whole, without it nothing
            behind the header is read.
        max_reads: as `MAX_READS`.

    Raises:
        UserError: it holds more than the limits of this module.
        Exception: any of a dozen kinds, where the file is damaged.
    """
    from pydicom.filereader import read_partial
    from pydicom.tag import Tag

    start = header_start(file.read(256))
    if start is None:
        raise ValueError("no DICOM file")
    wanted = [Tag(name) for name in tags]
    guard = _Guard(path, set(wanted), max_reads)
    meta = guard.meta(file, start)
    if meta.get("TransferSyntaxUID") == _DEFLATED:
        file = guard.unpacked(file, meta)
        start = 132
    file.seek(0)
    counted = _Counted(file, guard)
    try:
        dataset = read_partial(counted, guard.stops_before, force=not start, specific_tags=wanted)
    except Exception:
        if guard.reads < 0:  # pydicom makes another exception of it inside sequences
            raise guard.refusal() from None
        raise
    for tag, (_, items) in _SEQUENCES.items():
        value = dataset.get_item(tag).value if tag in dataset else None
        if isinstance(value, bytes) and sum(map(value.count, _ITEM)) > items:
            raise guard.refusal()
    return dataset


class _Guard:
    """Counts what is read of one file, and refuses what is too long."""

    def __init__(self, path: Path, tags: set[int], max_reads: int) -> None:
        self.path = path
        self.tags = tags
        self.reads = max_reads
        self.in_pixels = False

    def refusal(self) -> UserError:
        return UserError(
            f"{self.path}: holds more elements, or longer ones, than any radiograph; leave it out,"
            " or export it again."
        )

    def count(self, content: bytes) -> None:
        """Note a read; each value of a list counts, too, for it may be a list of character sets."""
        self.reads -= 1 if self.in_pixels else 1 + content.count(b"\\")
        if self.reads < 0:
            raise self.refusal()

    def stops_before(self, tag: int, _: str | None, length: int) -> bool:
        """Called by pydicom before each element of the outermost level."""
        self.in_pixels = tag in _PIXELS
        if self.in_pixels:
            return not self.tags & _PIXELS
        limit = _SEQUENCES.get(tag, (MAX_VALUE, 0))[0]
        is_read = tag in self.tags or tag == _CHARACTER_SET
        if is_read and limit < length != _UNDEFINED:
            raise self.refusal()
        return False

    def meta(self, file: IO[bytes], start: int) -> Any:
        """The elements of group 2; none where the file has none."""
        from pydicom.dataset import Dataset
        from pydicom.filereader import read_dataset

        def stops(tag: int, _: str | None, length: int) -> bool:
            if tag >> 16 == 2 and length > MAX_VALUE:
                raise self.refusal()
            return tag >> 16 != 2

        file.seek(start)
        if file.read(2) != b"\x02\x00":
            return Dataset()
        file.seek(start)
        return read_dataset(_Counted(file, self), False, True, stop_when=stops)

    def unpacked(self, file: IO[bytes], meta: Any) -> IO[bytes]:
        """The same file without deflation; ``file`` stands behind its meta elements."""
        from pydicom.dataset import FileMetaDataset
        from pydicom.filewriter import write_file_meta_info
        from pydicom.uid import ExplicitVRLittleEndian

        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        content = unpacker.decompress(file.read(MAX_UNPACKED), MAX_UNPACKED)
        if unpacker.unconsumed_tail:
            raise UserError(
                f"{self.path}: unpacks to more than {MAX_UNPACKED:,} bytes; export it again."
            )
        plain = FileMetaDataset(meta)
        plain.TransferSyntaxUID = ExplicitVRLittleEndian
        stream = io.BytesIO()
        stream.write(b"\0" * 128 + b"DICM")
        write_file_meta_info(stream, plain, enforce_standard=False)
        stream.write(content)
        return stream


class _Counted:
    """A file whose reads are counted."""

    def __init__(self, file: IO[bytes], guard: _Guard) -> None:
        self._read, self._guard = file.read, guard
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        content = self._read(size)
        self._guard.count(content)
        return content
