"""An encoder of lossless JPEG, the form of most archives, which no library at hand writes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def lossless_jpeg(picture: NDArray[np.integer], bits: int) -> bytes:
    """JPEG, process 14, predictor 1 (ITU-T T.81, annex H), of a picture ``[H, W]``."""
    values = picture.astype(np.int64)
    height, width = values.shape
    predicted = np.empty_like(values)
    predicted[:, 1:] = values[:, :-1]
    predicted[1:, 0] = values[:-1, 0]
    predicted[0, 0] = 1 << (bits - 1)
    text = []
    for difference in ((values - predicted + 32768) % 65536 - 32768).ravel().tolist():
        size = abs(difference).bit_length()
        text.append(f"{size:05b}")  # the Huffman table below gives every size a code of 5 bits
        if 0 < size < 16:
            text.append(f"{difference + (difference < 0) * ((1 << size) - 1):0{size}b}")
    joined = "".join(text)
    joined += "1" * (-len(joined) % 8)
    stream = int(joined, 2).to_bytes(len(joined) // 8, "big").replace(b"\xff", b"\xff\x00")
    table = b"\0" + bytes([0, 0, 0, 0, 17] + [0] * 11) + bytes(range(17))

    def segment(marker: int, body: bytes) -> bytes:
        return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body

    sides = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    frame = segment(0xC3, bytes([bits]) + sides + b"\x01\x01\x11\x00")
    scan = segment(0xDA, b"\x01\x01\x00\x01\x00\x00")
    return b"\xff\xd8" + frame + segment(0xC4, table) + scan + stream + b"\xff\xd9"
