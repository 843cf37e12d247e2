"""YAML read with limits: on size, on depth, and on what aliases expand to.

A few lines of anchors and aliases can stand for more values than a machine holds, and nested
brackets for more calls than Python allows. Settings of honest files are far below all limits.
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.composer import Composer

MAX_CHARACTERS = 1 << 20
MAX_DEPTH = 64
MAX_VALUES = 200_000
"""Values, and characters by the hundred, after every alias stands for what it names."""
_LONGEST_NUMBER = 100


class RefusedError(ValueError):
    """The text is YAML and is not read: it is too large, too deep, or has a key twice."""


def parse_yaml(text: str) -> Any:
    """Return the values of one YAML document, of plain types alone.

    Raises:
        RefusedError: with the reason, which quotes nothing but a key.
        yaml.YAMLError: it is not YAML.
        ValueError: a value is none, such as the 31st of April.
    """
    if len(text) > MAX_CHARACTERS:
        raise RefusedError(f"is longer than {MAX_CHARACTERS:,} characters; make it shorter.")
    return yaml.load(text, Loader=_Loader)


class _Loader(Composer, yaml.CSafeLoader):
    """Counts while it composes, and refuses a key that comes twice, which YAML's own drops.

    libyaml reads the text, in a quarter of the time; nodes are composed here.
    """

    def __init__(self, stream: str) -> None:
        yaml.CSafeLoader.__init__(self, stream)
        Composer.__init__(self)
        self._level = 0
        self._sizes: dict[int, tuple[int, int]] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As the base, but within the limits."""
        self._level += 1
        if self._level > MAX_DEPTH:
            raise RefusedError("is nested without end; remove the alias or the brackets.")
        alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self._level -= 1
        if node is not None and id(node) not in self._sizes:
            if alias:  # of a node that is not complete: it is inside itself
                raise RefusedError("is nested without end; remove the alias or the brackets.")
            self._sizes[id(node)] = self._measured(node)
        return node

    def _measured(self, node: Any) -> tuple[int, int]:
        """Size and depth of a node with every alias in it expanded; all of its parts are known."""
        if isinstance(node, yaml.ScalarNode):
            return 1 + len(node.value) // 100, 1
        parts = node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        known = [self._sizes[id(part)] for part in parts]
        size = 1 + sum(size for size, _ in known)
        depth = 1 + max((depth for _, depth in known), default=0)
        if size > MAX_VALUES:
            raise RefusedError("expands to more values than are read; remove its aliases.")
        if depth > MAX_DEPTH:
            raise RefusedError("is nested without end; remove the alias or the brackets.")
        return size, depth

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """As the base, but every key once."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge"):
                if (key.tag, key.value) in seen:
                    line = key.start_mark.line + 1
                    raise RefusedError(
                        f"line {line}: the key '{key.value}' is already there above; keep one."
                    )
                seen.add((key.tag, key.value))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_scalar(self, node: Any) -> Any:
        """As the base, but no number of thousands of digits, which would take hours to read."""
        number = node.tag.endswith((":int", ":float"))
        if number and len(node.value) > _LONGEST_NUMBER:
            raise RefusedError(f"line {node.start_mark.line + 1}: the number is too long.")
        return super().construct_scalar(node)


# YAML 1.1 takes numbers such as 1e-5, without a point, for text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)
