"""What a study is: an experiment that has a name, a source and a run of a few minutes."""

from __future__ import annotations

import shlex
from abc import abstractmethod
from typing import Any, ClassVar

from medclip_debias.config import Settings
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.experiments.experiment import Experiment, Files
from medclip_debias.experiments.page import changed
from medclip_debias.registry import Registry

TRAININGS_MOVE = """**Other machines.** A cell is a training. On another kind of processor it
moves about as far as to another seed: by .022 in AUC (standard deviation) after 300 steps (seeds:
.023), measured on [ten cells](index.md#other-machines) of another page, not on this one's.
Intervals over seeds hold that in; a single cell does not repeat there. On the same kind of
processor it repeats bit for bit."""

STUDIES: Registry[type[Study]] = Registry("study", "studies")


class Study(Experiment):
    """Base of every study; a subclass is found by its ``name``, as on the command line."""

    kind: ClassVar[str] = "study"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            STUDIES.add(cls.name, cls)

    @classmethod
    @abstractmethod
    def quick(cls) -> Settings:
        """Settings of a run of at most three minutes on two cores."""

    def command(self) -> str:
        """The verb ``study`` with the settings that are not the defaults."""
        words = shlex.join(["medclip-debias", "study", self.name, *changed(self)])
        return f"{words} --out runs/studies/{self.name}"

    def files(self) -> Files:
        """As in docs/studies, where the page is published."""
        return Files(f"{self.name}.svg", f"{self.name}.json", f"{self.name}.yaml", "`--config`")


def find_study(name: str) -> type[Study]:
    """The study called ``name``.

    Raises:
        UserError: there is none.
    """
    known = STUDIES.all()
    if name not in known:
        hint = did_you_mean(name, list(known))
        raise UserError(f"there is no study '{name}'{hint}; known: {', '.join(known)}.")
    return known[name]
