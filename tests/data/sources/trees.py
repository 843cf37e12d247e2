"""Small trees of archives: their tables and images."""

import numpy as np
from PIL import Image


def write_table(path, header, *rows):
    """Write a table; a row is a line, or its cells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (row if isinstance(row, str) else ",".join(row) for row in (header, *rows))
    path.write_text("\n".join([*lines, ""]))
    return path


def write_image(path, level=0, shape=(20, 20), dtype=np.uint8):
    """Write a grey image; another ``level`` is another image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    step = 1 if dtype == np.uint8 else 100
    grey = (np.arange(np.prod(shape)).reshape(shape) * step + level).astype(dtype)
    Image.fromarray(grey).save(path)
    return path
