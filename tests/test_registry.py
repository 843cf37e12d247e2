"""A registry finds what is in its folder, and names what is not."""

from __future__ import annotations

import doctest
import sys
from typing import Any, ClassVar, Literal

import pytest

from medclip_debias import registry
from medclip_debias.config import Settings
from medclip_debias.errors import UserError
from medclip_debias.registry import Chosen, Registry


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A package of two modules that add themselves to the registry in it."""
    package = tmp_path / "found_by_a_test"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from medclip_debias.registry import Registry\nBIRDS = Registry('bird', __name__)\n"
    )
    for name in ("wren", "finch"):
        (package / f"{name}.py").write_text(
            "from found_by_a_test import BIRDS\n\n"
            f"class Bird:\n    pass\n\nBIRDS.add('{name}', Bird)"
        )
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.startswith("found_by_a_test")]:
        del sys.modules[name]


def test_what_stands_in_the_folder_is_found_in_alphabetical_order(folder):
    from found_by_a_test import BIRDS

    assert list(BIRDS.all()) == ["finch", "wren"]
    assert BIRDS.find("wren", "run.yaml").__module__ == "found_by_a_test.wren"


@pytest.mark.parametrize("kind", ["wrenn", None, 3, ["wren"]])
def test_an_unknown_kind_is_one_sentence_with_the_known_ones(folder, kind):
    from found_by_a_test import BIRDS

    with pytest.raises(UserError) as caught:
        BIRDS.find(kind, "run.yaml", "bird.kind")
    assert f"run.yaml: setting 'bird.kind' is {kind!r}" in str(caught.value)
    assert "known kinds: finch, wren." in str(caught.value)
    if kind == "wrenn":
        assert "did you mean 'wren'" in str(caught.value)


def test_two_of_one_kind_are_refused_and_a_reloaded_one_takes_its_place():
    ours: Registry[Any] = Registry("bird", "nowhere")

    def make():
        class Bird:
            pass

        return Bird

    ours.add("wren", make())
    again = make()
    assert ours.add("wren", again) is again
    assert ours.entries == {"wren": again}
    with pytest.raises(ValueError, match=r"two entries \(bird\) of the kind 'wren'"):
        ours.add("wren", Settings)


class BirdSettings(Settings):
    kind: str = ""


class Bird(Chosen[Any]):
    registry: ClassVar[Registry[Any]] = Registry("bird", "nowhere")


class WrenSettings(BirdSettings):
    kind: Literal["wren"] = "wren"
    eggs: int = 6


class Wren(Bird, Chosen[WrenSettings]):
    pass


class TameWren(Wren):
    pass


class Nameless(Bird, Chosen[BirdSettings]):
    pass


def test_the_kind_comes_from_the_settings_that_a_class_names_in_brackets():
    assert Bird.registry.entries == {"wren": Wren}
    assert Wren.kind == "wren"
    assert Wren.settings_class is WrenSettings
    assert Wren().settings.eggs == 6
    assert Wren(WrenSettings(eggs=2)).settings.eggs == 2


def test_a_subclass_without_settings_of_its_own_is_not_another_entry():
    assert TameWren.settings_class is WrenSettings
    assert Nameless.settings_class is BirdSettings
    assert list(Bird.registry.entries) == ["wren"]


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(registry).failed == 0
