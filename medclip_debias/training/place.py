"""Which process of a run this is.

Started by torchrun (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``) or by Slurm's srun alone
(``SLURM_PROCID``, ``SLURM_STEP_NUM_TASKS``, ``SLURM_LOCALID``); without either there is one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from medclip_debias.errors import EXIT_CODE, UserError


@dataclass(frozen=True)
class Place:
    """This process among all of a run, and on its machine."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @classmethod
    def from_environment(cls) -> Place:
        """Read torchrun's variables, or else Slurm's.

        Raises:
            UserError: they contradict each other.
        """
        env = os.environ
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        if "RANK" not in env and whole_number("SLURM_STEP_NUM_TASKS", "1") > 1:
            names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
        elif "RANK" not in env or "WORLD_SIZE" not in env:
            return cls()
        rank, world, local = (whole_number(name) for name in names)
        if not 0 <= rank < world:
            raise UserError(
                f"{names[0]} is {rank}, but {names[1]} is {world}; start the processes with "
                "torchrun or srun."
            )
        return cls(rank, world, local)


def whole_number(name: str, default: str = "0") -> int:
    """The number in an environment variable.

    Raises:
        UserError: it holds something else.
    """
    text = os.environ.get(name, default)
    try:
        return int(text)
    except ValueError:
        raise UserError(
            f"The environment variable {name} must be a whole number, but is '{text}'; start the "
            "processes with torchrun or srun."
        ) from None


@contextmanager
def one_error_a_machine(place: Place) -> Iterator[None]:
    """Let one process of each machine report an error that comes before the processes meet.

    A setting that is wrong is wrong in all of them, but a file may be missing on one machine only.
    An error inside `medclip_debias.training.processes.together` is reported by one process of the
    whole run.
    """
    try:
        yield
    except UserError:
        if place.local:
            raise SystemExit(EXIT_CODE) from None
        raise
