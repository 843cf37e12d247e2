"""Prompt sets: for each class, what a sentence says when it is present and when it is not."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from medclip_debias.config import Settings, load_yaml, validate

Prompt = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Sides(Settings):
    """Prompts of one class; several on a side are averaged after scoring."""

    positive: tuple[Prompt, ...] = Field(min_length=1)
    negative: tuple[Prompt, ...] = Field(min_length=1)


class PromptSet(Settings):
    """A named prompt set; classes are named as the label columns they are judged by."""

    name: str = Field(min_length=1)
    classes: dict[str, Sides] = Field(min_length=1)

    @property
    def texts(self) -> list[str]:
        """Every distinct prompt, in order of first use."""
        sides = [side for c in self.classes.values() for side in (c.positive, c.negative)]
        return list(dict.fromkeys(text for side in sides for text in side))


def load_prompts(source: Path | str | Mapping[str, Any] = "chex5") -> PromptSet:
    """Read a prompt set.

    Args:
        source: name of a set that comes with the package, path of a YAML file, or the
            content of one as a mapping (as a model folder keeps it).

    Raises:
        UserError: there is no such file, or a class lacks its prompts.
    """
    if isinstance(source, Mapping):
        return validate(PromptSet, source, "the model's prompt set")
    packaged = files(__package__) / f"{source}.yaml"
    if isinstance(source, str) and packaged.is_file():
        with as_file(packaged) as path:
            return validate(PromptSet, load_yaml(path), str(source))
    return validate(PromptSet, load_yaml(Path(source)), str(source))


def default_prompts() -> dict[str, Any]:
    """The packaged prompt sets by name, as a model folder keeps them."""
    return {name: load_prompts(name).model_dump(mode="json") for name in ("chex5",)}
