"""Networks that are built to be filled from a file: no time goes into numbers that it replaces.

A layer draws its first weights when it is made. For BERT-base and a ResNet-50 that is longer than
all else that loading them takes (docs/performance.md), and the file's weights come next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.overrides import TorchFunctionMode

# The methods that draw, and the functions of torch.nn.init that are seen before they call those.
_DRAWS = frozenset({"normal_", "uniform_", "kaiming_uniform_"})


class _NothingDrawn(TorchFunctionMode):
    """Leaves a tensor as it is where it would be filled with random numbers."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__name__", "") in _DRAWS:
            return args[0] if args else given["tensor"]
        return func(*args, **given)


@contextmanager
def unfilled() -> Iterator[None]:
    """What is built inside has weights of no meaning, and draws no random number for them.

    Every tensor that is drawn must be loaded afterwards, from a file that is refused where it
    lacks one (`medclip_debias.models.dual_encoder.load_state`).

    >>> import torch
    >>> from torch import nn
    >>> before = torch.get_rng_state()
    >>> with unfilled():
    ...     layer = nn.Linear(768, 768)
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    with _NothingDrawn():
        yield
