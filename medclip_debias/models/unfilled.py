"""Networks that are built to be filled from a file: no time goes into numbers that it replaces.

A layer draws its first weights when it is made. For a BERT of base size and a ResNet that is longer
than all else that loading them takes (docs/results.md), and the file's weights come next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from torch.overrides import TorchFunctionMode

# Of torch.nn.init, and transformers' of the same names in their place: skipped as a whole. A
# tensor's own normal_ is drawn: torch's trunc_normal_ draws by it until every number lies within
# its bounds, which numbers that stay never do.
_SKIPPED = frozenset({"normal_", "uniform_", "kaiming_uniform_"})


def _skipped(func: Callable[..., Any]) -> bool:
    return isinstance(func, FunctionType) and func.__name__ in _SKIPPED


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
        if _skipped(func):
            return args[0] if args else given["tensor"]
        return func(*args, **given)


@contextmanager
def unfilled() -> Iterator[None]:
    """What is built inside has weights of no meaning where layers would draw them.

    Every tensor that is not drawn must be loaded afterwards, from a file that is refused where it
    lacks one (`medclip_debias.models.checkpoint.load_strictly`).

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
