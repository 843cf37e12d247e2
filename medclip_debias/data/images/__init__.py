"""Image files: read as radiographs (`read_radiograph`), and brought to a square of grey levels."""

from medclip_debias.data.images.files import MAX_BYTES, read_radiograph
from medclip_debias.data.images.square import prepare_image, to_square

__all__ = ["MAX_BYTES", "prepare_image", "read_radiograph", "to_square"]
