"""A registry finds what is in its folder, and names what is not."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator, SerializeAsAny

from medclip_debias.config import Settings, validate
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


@pytest.mark.parametrize("kind", ["wrenn", ["wren"]])
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


class WrenSettings(Settings):
    kind: str = "wren"
    eggs: int = 6


BIRDS: Registry[type[Chosen]] = Registry("bird", __name__)


@BIRDS.register("wren", WrenSettings, formula="small", paper="Bewick (1797)")
class Wren(Chosen):
    pass


class NestSettings(Settings):
    owner: Annotated[SerializeAsAny[Settings], BeforeValidator(BIRDS.choice)] = WrenSettings()
    guests: Annotated[tuple[Settings, ...], BeforeValidator(BIRDS.choices)] = ()


def test_a_registered_class_has_its_kind_and_its_settings():
    assert (Wren.kind, Wren.settings_class, Wren.formula) == ("wren", WrenSettings, "small")
    assert Wren().settings.eggs == 6
    assert Wren(WrenSettings(eggs=2)).settings.eggs == 2
    assert BIRDS.settings({"kind": "wren", "eggs": 3}, "run.yaml") == WrenSettings(eggs=3)


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"owner": 3}, "nest.owner.kind"),
        ({"owner": {"kind": "wren", "eggz": 1}}, "nest.owner.eggz"),
        ({"guests": [{"kind": "wren"}, {}]}, "nest.guests.1.kind"),
        ({"guests": {"kind": "wren"}}, "nest.guests"),
    ],
)
def test_a_wrong_choice_in_other_settings_is_named_by_its_place(content, key):
    with pytest.raises(UserError, match=f"run.yaml: .*'{key}'"):
        validate(NestSettings, content, "run.yaml", "nest.")
