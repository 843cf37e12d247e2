"""Lists of different lengths, from many of which one batch takes elements at random."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Ragged:
    """Lists of integers end to end, so that a batch of them is drawn without a loop.

    Attributes:
        counts: ``[lists]`` length of each list.
        starts: ``[lists]`` place of its first element in ``values``.
        values: all lists, one behind the other.
    """

    def __init__(self, lists: list[NDArray[np.int64]]) -> None:
        self.counts = np.array([len(one) for one in lists])
        self.starts = np.cumsum(self.counts) - self.counts
        self.values = np.concatenate(lists)

    def one(self, members: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """One element of each list named in ``members``."""
        places = (rng.random(len(members)) * self.counts[members]).astype(np.int64)
        return self.values[self.starts[members] + places]

    def some(
        self,
        members: NDArray[np.int64],
        count: int,
        rng: np.random.Generator,
        first: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Up to ``count`` elements of each list, without repeats, and whose they are.

        Args:
            members: numbers of the lists.
            count: most elements of a list.
            rng: random numbers.
            first: ``[len(values)]``, of which elements one comes first, where a list has any.
        """
        counts = self.counts[members]
        owners = np.repeat(np.arange(len(members)), counts)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        places = self.starts[members][owners] + within
        # Shuffle each list by random keys and keep its first places.
        keys = rng.random(len(owners))
        if first is not None:  # the smallest key among them; nothing changes where it is already
            best = np.full(len(members), np.inf)
            np.minimum.at(best, owners[first[places]], keys[first[places]])
            keys = np.where(first[places] & (keys == best[owners]), -1.0, keys)
        order = np.lexsort((keys, owners))
        chosen = order[within < count]
        return self.values[places[chosen]], owners[chosen]
