"""An encoder, and what training asks of it."""

from __future__ import annotations

from operator import attrgetter
from typing import ClassVar, TypeAlias

from torch import nn

Head: TypeAlias = nn.Module | nn.Parameter


class Tower(nn.Module):
    """An encoder as training sees it: a stem, layers upon it, and what comes after the last.

    An image tower of a peer gives regions ``[B, N, dim]`` and the whole ``[B, dim]`` of normalised
    images; a text tower ``[T, dim]``, or several vectors a sentence, of token ids and mask
    ``[T, L]``.

    Attributes:
        layer_lists: dotted places of the lists of layers, the lowest first.
        after_layers: of what comes after the last layer, as a last norm.
        into_space: of the maps into the shared space, which train even where the encoder does not.
    """

    layer_lists: tuple[str, ...] = ()
    after_layers: tuple[str, ...] = ()
    into_space: tuple[str, ...] = ()
    stride: int = 0
    first_centre: float = 0.0
    by_words: ClassVar[bool] = False
    """Whether a text tower takes the words' places beside ids and mask (`word_places`)."""

    @property
    def layers(self) -> list[nn.Module]:
        """Blocks or stages, the lowest first; what is neither here nor in `above` is the stem."""
        return [layer for place in self.layer_lists for layer in attrgetter(place)(self)]

    @property
    def above(self) -> list[nn.Module]:
        """After the last layer, as a last norm; what maps into the space is in `heads`."""
        modules = [attrgetter(place)(self) for place in self.after_layers]
        return [module for module in modules if module is not None]

    @property
    def heads(self) -> list[Head]:
        return [attrgetter(place)(self) for place in self.into_space]
