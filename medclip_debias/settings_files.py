"""Files of settings: YAML that inherits other files, and ``key=value`` words over it.

``extends: other.yaml`` (relative to the file) inherits another file, a list several of them, the
later over the earlier. What has a name instead of a file, as the presets of the loss
(``loss:NAME``), is given to the reader as `Named`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from medclip_debias.errors import UserError
from medclip_debias.files import read_text
from medclip_debias.yaml_text import MAX_CHARACTERS, RefusedError, parse_yaml

Named = Mapping[str, Callable[[Mapping[str, Any], str, str], dict[str, Any]]]
"""Word before the colon in ``extends: WORD:NAME`` to a function of what stands before it, the
name, and the file; it returns what stands before with what is named over it."""


def load_yaml(path: Path, named: Named | None = None) -> dict[str, Any]:
    """Read one YAML mapping, following ``extends``.

    Args:
        path: of the file.
        named: what ``extends`` may name beside files.

    Raises:
        UserError: the file is missing, is not YAML, has a key twice, is not a mapping, or extends
            itself, or is larger or deeper than settings are (`medclip_debias.yaml_text`).
    """
    return _load_yaml(Path(path), named, ())


def inherited(
    parents: Any, path: Path, named: Named | None = None, seen: tuple[Path, ...] = ()
) -> dict[str, Any]:
    """What ``extends: PARENTS`` in the file ``path`` inherits; ``seen`` may not be extended."""
    base: dict[str, Any] = {}
    for parent in parents if isinstance(parents, list) else [parents]:
        if not isinstance(parent, str):
            names = ", ".join(["names of files", *(f"{word}:NAME" for word in named or ())])
            raise UserError(f"{path}: 'extends' takes {names} (no blank after a colon).")
        word, colon, name = parent.partition(":")
        if colon and named and word in named:
            base = named[word](base, name, str(path))
        else:
            above = _load_yaml(path.parent / parent, named, (*seen, Path(os.path.realpath(path))))
            base = merge(base, above)
    return base


def _load_yaml(path: Path, named: Named | None, seen: tuple[Path, ...]) -> dict[str, Any]:
    if Path(os.path.realpath(path)) in seen:
        raise UserError(
            f"{path}: 'extends' leads back to a file that it came from; remove one of its links."
        )
    try:
        text = read_text(path, "give the path of a YAML file", limit=4 * MAX_CHARACTERS)
        content = parse_yaml(text)
    except RefusedError as error:
        comma = "," if str(error).startswith("line ") else ":"
        raise UserError(f"{path}{comma} {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{where}: this is not valid YAML.") from error
    except ValueError as error:  # a day that no month has, say
        raise UserError(f"{path}: this is not valid YAML ({error}).") from error
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected 'key: value' lines, found a {type(content).__name__}.")
    parent = content.pop("extends", None)
    if parent is None:
        return content
    return merge(inherited(parent, path, named, seen), content)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings; ``over`` wins. A mapping whose ``kind`` changes is replaced.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            same_kind = value.get("kind", old.get("kind")) == old.get("kind")
            result[key] = merge(old, value) if same_kind else value
        else:
            result[key] = value
    return result


def apply_overrides(content: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply ``key.path=value`` words; values are read as YAML.

    >>> apply_overrides({"train": {"lr": 1}}, ["train.lr=1e-5"])
    {'train': {'lr': 1e-05}}

    Raises:
        UserError: a word is no such setting, or its value is not YAML.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    result = dict(content)
    for word in overrides:
        key, equals, _ = word.partition("=")
        if not equals or not all(key.split(".")):
            raise UserError(
                f"'{word}' is not a setting; write it as key=value, as in train.lr=1e-5."
            )
        try:
            nested: Any = OmegaConf.to_container(OmegaConf.from_dotlist([word]))
        except (OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError):
            raise UserError(
                f"the value of the setting '{key}' is not valid YAML; quote it, as in "
                f"{key}='\"...\"'."
            ) from None
        result = merge(result, nested)
    return result
