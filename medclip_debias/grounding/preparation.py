"""The one check that a prepared set holds images as a model expects them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medclip_debias.config import Preprocessing
from medclip_debias.errors import UserError

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet


def check_preparation(preprocessing: Preprocessing, data: PreparedSet) -> None:
    """Refuse a set that was prepared otherwise than the model's images were.

    Args:
        preprocessing: the model's.
        data: the set that it is to see.

    Raises:
        UserError: names every setting that differs, and the command that mends it.
    """
    wanted, found = preprocessing.prepare, data.settings
    if wanted == found:
        return
    differ = [
        f"{name} {getattr(found, name)} instead of {getattr(wanted, name)}"
        for name in type(wanted).model_fields
        if getattr(wanted, name) != getattr(found, name)
    ]
    raise UserError(
        f"{data.folder}: was prepared otherwise than the model expects ({', '.join(differ)}); "
        "prepare it again with the model's settings: medclip-debias prepare SOURCE OUT "
        f"{wanted.command_line()}."
    )
