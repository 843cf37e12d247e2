"""A model and a prepared set that holds images as it expects them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from medclip_debias.config import Preprocessing
from medclip_debias.errors import UserError

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.interface import ImageTextModel


def differences(preprocessing: Preprocessing, data: PreparedSet) -> list[str]:
    """How a set was prepared otherwise than a model expects, as ``size 512 instead of 224``."""
    wanted, actual = preprocessing.prepare, data.settings
    return [
        f"{name} {getattr(actual, name)} instead of {getattr(wanted, name)}"
        for name in type(wanted).model_fields
        if getattr(wanted, name) != getattr(actual, name)
    ]


def check_preparation(preprocessing: Preprocessing, data: PreparedSet) -> None:
    """Refuse a set that was prepared otherwise than the model's images were."""
    differ = differences(preprocessing, data)
    if not differ:
        return
    wanted = preprocessing.prepare
    raise UserError(
        f"{data.folder}: was prepared otherwise than the model expects ({', '.join(differ)}); "
        "prepare it again with the model's settings: medclip-debias prepare SOURCE OUT "
        f"{wanted.command_line()}."
    )


def model_and_set(
    model_folder: Path, prepared: Path, device: str
) -> tuple[ImageTextModel, PreparedSet]:
    """Open a model and a set whose images are as it expects them."""
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.load import load_model

    data = PreparedSet.open(Path(prepared))
    model = load_model(Path(model_folder), device)
    check_preparation(model.preprocessing, data)
    return model, data
