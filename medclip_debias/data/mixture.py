"""Which studies of several sets a step learns from: a pure function of seed and step."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from medclip_debias.errors import UserError

# First words of seed sequences; 1 and 2 are those of `medclip_debias.data.loader`.
_ORDER, _PLACES = 3, 4


class Mixture:
    """Draws batches from several sets by their weights.

    A set of share w has floor(B w) or ceil(B w) studies in each batch of B; which of both follows
    from the step by a van der Corput sequence, so that its studies in the first k batches differ
    from k B w by at most 1 + log2(k + 1). Within a set studies are drawn without replacement,
    pass by pass: a pass ends with the last batch that is whole, and the rest is left out.

    Sets of one name in ``batches`` share batches of their own, in which w is the share among them;
    whose batch a step takes follows from it in the same way: of the first k batches those of a
    share g of all weights are k g, up to 1 + log2(k + 1).

    Args:
        sets: the studies of each set, as numbers.
        weights: of each set, 0 or more, and not all 0.
        batch_size: B.
        seed: decides, with the step, everything.
        names: of the sets, for messages.
        batches: whose batches each set has a part in; all share every batch by default.
    """

    def __init__(
        self,
        sets: Sequence[NDArray[np.int64]],
        weights: Sequence[float],
        batch_size: int,
        seed: int,
        names: Sequence[str],
        batches: Sequence[str] | None = None,
    ) -> None:
        self.sets, self.batch_size, self.seed = sets, batch_size, seed
        exact = [Fraction(str(weight)) for weight in weights]
        of_batch: dict[str, Fraction] = {}
        batches = batches or [""] * len(sets)
        for batch, weight in zip(batches, exact, strict=True):
            of_batch[batch] = of_batch.get(batch, Fraction()) + weight
        drawn = [batch for batch, weight in of_batch.items() if weight]
        ends = list(accumulate(of_batch[batch] / sum(exact) for batch in drawn))
        self._ends = np.array([float(end) for end in ends])
        shares = [
            batch_size * weight / of_batch[batch] if weight else Fraction()
            for batch, weight in zip(batches, exact, strict=True)
        ]
        least = np.array([int(share) for share in shares])
        self._least, self._bounds = [], []
        for batch in drawn:
            inside = [name == batch for name in batches]
            parts = [(share % 1) * one for share, one in zip(shares, inside, strict=True)]
            self._least.append(least * inside)
            self._bounds.append(np.array([0, *map(float, accumulate(parts))]))
        for name, studies, share in zip(names, sets, shares, strict=True):
            if -(-share // 1) > len(studies):
                raise UserError(
                    f"a batch takes up to {-(-share // 1)} studies of {name}, which has"
                    f" {len(studies)} to train on; lower its weight or train.batch_size."
                )
        self._taken = np.zeros((1, len(sets)), dtype=np.int64)
        self._passes = [[0] for _ in sets]
        self._orders: dict[int, tuple[int, NDArray[np.int64]]] = {}

    def counts(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Studies of each set in the batches of ``steps``: ``[steps, sets]``."""
        places = _van_der_corput(steps)
        counts = np.zeros((len(steps), len(self.sets)), dtype=np.int64)
        begin = 0.0
        for least, bounds, end in zip(self._least, self._bounds, self._ends, strict=True):
            chosen = (places >= begin) & (places < end)
            # Systematic sampling: a set has one more where its interval holds a whole number +
            # offset.
            offsets = (places[chosen, None] - begin) / (end - begin)
            passed = np.ceil(bounds - offsets).astype(np.int64)
            counts[chosen] = least + np.diff(passed, axis=1)
            begin = end
        return counts

    def members(self, step: int) -> NDArray[np.int64]:
        """Studies of the batch of ``step``, in random order: ``[B]``."""
        self._extend(step + 1)
        chosen = [self._of_set(number, step) for number in range(len(self.sets))]
        rng = np.random.default_rng([_PLACES, self.seed, step])
        return rng.permutation(np.concatenate(chosen))

    def _of_set(self, number: int, step: int) -> NDArray[np.int64]:
        """Studies of one set in the batch of ``step``."""
        studies, taken, passes = self.sets[number], self._taken[:, number], self._passes[number]
        while taken[step + 1] - taken[passes[-1]] > len(studies):
            whole = np.searchsorted(taken, taken[passes[-1]] + len(studies), side="right")
            passes.append(int(whole) - 1)
        which = int(np.searchsorted(passes, step, side="right")) - 1
        if self._orders.get(number, (-1, studies))[0] != which:  # kept: it costs more than a batch
            rng = np.random.default_rng([_ORDER, self.seed, number, which])
            self._orders[number] = which, rng.permutation(studies)
        begin = taken[passes[which]]
        return self._orders[number][1][taken[step] - begin : taken[step + 1] - begin]

    def _extend(self, steps: int) -> None:
        """Know how many studies each set gave before each of so many steps."""
        known = len(self._taken) - 1
        if steps <= known:
            return
        more = self.counts(np.arange(known, max(steps, 2 * known, 1024)))
        more = self._taken[-1] + np.cumsum(more, axis=0)
        self._taken = np.concatenate([self._taken, more])


def _van_der_corput(steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """The binary digits of each step, mirrored at the point: in [0, 1)."""
    values = np.zeros(len(steps))
    digits = np.asarray(steps, dtype=np.int64).copy()
    scale = 0.5
    while digits.any():
        values += scale * (digits & 1)
        digits >>= 1
        scale /= 2
    return values
