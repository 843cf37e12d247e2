"""What is handed on (`hub card`, `hub push`, `export`): folders and words that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from bad_inputs.case import case
from bad_inputs.world import World

SHARING = "model cards, uploads, exports"


def _words(*words: str) -> Callable[[World], list[str]]:
    """A verb on a copy of the run's model; MODEL and OUT stand for their folders."""

    def build(world: World) -> list[str]:
        places = {"MODEL": str(world.model()), "OUT": str(world.out)}
        return [places.get(word, word) for word in words]

    return build


def _config(
    change: Callable[[dict[str, Any]], object], *words: str
) -> Callable[[World], list[str]]:
    """The same, on a model whose ``config.json`` was changed."""

    def build(world: World) -> list[str]:
        model = world.model()
        path = model / "config.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        change(content)
        path.write_text(json.dumps(content), encoding="utf-8")
        return [str(model) if word == "MODEL" else word for word in words]

    return build


for what, words in {
    "card: no such folder": ("hub", "card", "nowhere"),
    "card: a licence that is none": ("hub", "card", "MODEL", "--licence", "only for us"),
    "card: a data set without its group": ("hub", "card", "MODEL", "--dataset", "openi"),
    "card: results that are not there": ("hub", "card", "MODEL", "--results", "nowhere"),
    "push: a model without its card": ("hub", "push", "MODEL", "group/model"),
    "push: a name that is none": ("hub", "push", "MODEL", "group/model/part"),
    "push: no such folder": ("hub", "push", "nowhere", "group/model"),
    "export: no such format": ("export", "MODEL", "OUT", "--format", "onx"),
    "export: as open_clip": ("export", "MODEL", "OUT", "--format", "open_clip"),
    "export: no such folder": ("export", "nowhere", "OUT"),
}.items():
    case(SHARING, what, "refused")(_words(*words))
for what, change in {
    "no architecture": lambda c: c.pop("architecture"),
    "a provenance that is a list": lambda c: c.update(provenance=["Quackenbush"]),
    "the model_type of another": lambda c: c.update(model_type="clip"),
}.items():
    case(SHARING, f"card: {what}", "refused")(_config(change, "hub", "card", "MODEL"))


@case(SHARING, "card: results of another model", "refused")
def _of_another(world: World) -> list[str]:
    path = world.here / "results.json"
    content = json.loads((world.base.run / "results.json").read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | {"model_hash": "0" * 16}), encoding="utf-8")
    return ["hub", "card", str(world.model()), "--results", str(path)]


@case(SHARING, "push: another's folder of a peer", "refused")
def _peer(world: World) -> list[str]:
    model = world.model()
    (model / "peer.yaml").write_text("kind: chexzero\n", encoding="utf-8")
    return ["hub", "push", str(model), "group/model"]


@case(SHARING, "push: a patient's file in the model's folder", "counted", shows="stay here: a.dcm")
def _stays(world: World) -> list[str]:
    model = world.model()
    (model / "a.dcm").write_bytes(b"Quackenbush")
    (model / "README.md").write_text("# A model\n", encoding="utf-8")
    return ["hub", "push", str(model), "group/model"]
