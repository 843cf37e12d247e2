"""Prompt sets: for each class, what a sentence says when it is present and when it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

from medclip_debias.config import Settings, validate
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.settings_files import load_yaml

Prompt = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def composed(value: Any) -> Any:
    """Every combination of a mapping's lists, joined in the order they are written.

    An empty text leaves its place out. What is no mapping of lists is left as it is.

    >>> composed({"severity": ["", "mild"], "subtype": ["pulmonary edema"]})
    ['pulmonary edema', 'mild pulmonary edema']
    """
    if not isinstance(value, Mapping):
        return value
    if not all(isinstance(part, list | tuple) and part for part in value.values()):
        raise ValueError("each part of a composed prompt must be a list of texts")
    texts = (" ".join(" ".join(map(str, words)).split()) for words in product(*value.values()))
    return list(dict.fromkeys(texts))


Prompts = Annotated[tuple[Prompt, ...], BeforeValidator(composed), Field(min_length=1)]


class Sides(Settings):
    """Prompts of one class; several on a side are averaged after scoring.

    A side is a list of prompts, or a mapping of lists (severity, subtype, location) whose every
    combination is a prompt.
    """

    positive: Prompts
    negative: Prompts


class PromptSet(Settings):
    """A named prompt set; classes are named as the label columns they are judged by."""

    name: str = Field(min_length=1)
    classes: dict[str, Sides] = Field(min_length=1)

    @property
    def texts(self) -> list[str]:
        """Every distinct prompt, in order of first use."""
        sides = [side for c in self.classes.values() for side in (c.positive, c.negative)]
        return list(dict.fromkeys(text for side in sides for text in side))

    def only(self, classes: Sequence[str] | None) -> PromptSet:
        """The same set with some of its classes; None for all."""
        if classes is None:
            return self
        for name in classes:
            if name not in self.classes:
                raise UserError(
                    f"The prompt set '{self.name}' has no prompts for the class '{name}'"
                    f"{did_you_mean(name, self.classes)}; it has: {', '.join(self.classes)}."
                )
        return PromptSet(name=self.name, classes={name: self.classes[name] for name in classes})


def load_prompts(source: Path | str | Mapping[str, Any] = "chex5") -> PromptSet:
    """Read a prompt set.

    Args:
        source: name of a set that comes with the package, path of a YAML file, or the
            content of one as a mapping (as a model folder keeps it).
    """
    if isinstance(source, Mapping):
        return validate(PromptSet, source, "the model's prompt set")
    path = Path(source)
    if isinstance(source, str) and source in packaged_sets():
        path = Path(__file__).with_name(f"{source}.yaml")
    return validate(PromptSet, load_yaml(path), str(source))


def sets_of(own: Mapping[str, Any]) -> list[PromptSet]:
    """The prompt sets that a model keeps, in their order; the packaged one where it has none."""
    found = [load_prompts(content) for content in own.values() if isinstance(content, Mapping)]
    return found or [load_prompts()]


def packaged_sets() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.yaml")))


def default_prompts() -> dict[str, Any]:
    """The packaged prompt sets by name, as a model folder keeps them."""
    return {name: load_prompts(name).model_dump(mode="json") for name in ("chex5",)}
