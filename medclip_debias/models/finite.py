"""What a model gives, as an array, or one sentence when it gives no numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from medclip_debias.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


class NotFiniteError(UserError):
    """A model gave NaN or infinity. No metric comes from such values: NaN ranks first, or last."""


def finite(values: Tensor, what: str) -> NDArray[np.float32]:
    """Float32 on the CPU."""
    array: NDArray[np.float32] = values.float().cpu().numpy()
    count = int(array.size - np.count_nonzero(np.isfinite(array)))
    if count:
        raise NotFiniteError(
            f"{what}: {count} of {array.size} values that the model gave are NaN or infinite; its "
            "weights are damaged or its training failed, so take another checkpoint or train again."
        )
    return array
