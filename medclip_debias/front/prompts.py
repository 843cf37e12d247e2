"""What `Model.zero_shot` is asked: classes with two sides, or sentences that exclude each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from medclip_debias.config import validate
from medclip_debias.data.prompts import PromptSet, load_prompts, packaged_sets
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.models.sentences import sentence_list

Sentences: TypeAlias = str | Sequence[str]
PromptsLike: TypeAlias = (
    str | Path | PromptSet | Mapping[str, tuple[Sentences, Sentences]] | Sequence[str] | None
)

DEFAULT = "chex5"


def asked_classes(prompts: PromptsLike, own: Mapping[str, Any]) -> PromptSet | list[str]:
    """The classes of ``prompts``, or its sentences where it is a list of them."""
    if isinstance(prompts, PromptSet):
        return prompts
    if prompts is None or isinstance(prompts, str):
        return _named(DEFAULT if prompts is None else prompts, own)
    if isinstance(prompts, Path):
        return load_prompts(prompts)
    if isinstance(prompts, Mapping):
        sides = {str(name): _sides(str(name), value) for name, value in prompts.items()}
        return validate(PromptSet, {"name": "prompts", "classes": sides}, "prompts")
    return _sentences(prompts)


def _named(name: str, own: Mapping[str, Any]) -> PromptSet:
    content = own.get(name)
    if isinstance(content, Mapping):
        return load_prompts(content)
    if name in packaged_sets():
        return load_prompts(name)
    if name.endswith((".yaml", ".yml")):
        return load_prompts(Path(name))
    names = list(dict.fromkeys((*own, *packaged_sets())))
    raise UserError(
        f"there is no prompt set of this name{did_you_mean(name, names)}; known: "
        f"{', '.join(names)}, or a YAML file. A sentence goes into a list with others, or into"
        " {class: (positive, negative)}."
    )


def _sides(name: str, value: Any) -> dict[str, Any]:
    """One class as a prompt file has it."""
    if isinstance(value, Mapping):
        return {side: [part] if isinstance(part, str) else part for side, part in value.items()}
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise UserError(
            f"prompts: the class '{name}' needs two sides, (positive, negative), as in"
            " ('Pleural effusion.', 'No pleural effusion.')."
        )
    return dict(zip(("positive", "negative"), map(sentence_list, value), strict=True))


def _sentences(prompts: Any) -> list[str]:
    sentences = [text.strip() for text in sentence_list(prompts)]
    if len(set(sentences)) < len(sentences):
        raise UserError("prompts: a sentence is given twice; give each once.")
    if len(sentences) < 2:
        raise UserError(
            "prompts: of a single sentence the probability is always 1; give its opposite too, as"
            " {class: (positive, negative)}, or ask for `scores`."
        )
    if not all(sentences):
        raise UserError("prompts: a sentence is empty; write what to look for.")
    return sentences
