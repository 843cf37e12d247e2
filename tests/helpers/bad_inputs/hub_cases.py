"""What is handed on (`hub card`, `hub push`, `export`): folders and words that are none."""

from __future__ import annotations

import json

from bad_inputs.case import case, cases
from bad_inputs.world import World

SHARING = "model cards, uploads, exports"


def _words(world: World, *words: str) -> list[str]:
    """A verb on a copy of the run's model; MODEL and OUT stand for their folders."""
    places = {"MODEL": str(world.model()), "OUT": str(world.out)}
    return [places.get(word, word) for word in words]


def _card(world: World, **config: object) -> list[str]:
    """The card of a model whose ``config.json`` was changed; None takes a key out."""
    model = world.model()
    path = model / "config.json"
    content = json.loads(path.read_text(encoding="utf-8")) | config
    path.write_text(json.dumps({key: v for key, v in content.items() if v is not None}))
    return ["hub", "card", str(model)]


def _push(world: World, **files: str) -> list[str]:
    model = world.model()
    for name, content in files.items():
        world.file(f"model/{name}", content)
    return ["hub", "push", str(model), "group/model"]


cases(
    SHARING,
    _words,
    {
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
    },
)
cases(
    SHARING,
    _card,
    {
        "card: no architecture": {"architecture": None},
        "card: a provenance that is a list": {"provenance": ["Quackenbush"]},
        "card: the model_type of another": {"model_type": "clip"},
    },
)
cases(SHARING, _push, {"push: another's folder of a peer": {"peer.yaml": "kind: chexzero\n"}})
cases(
    SHARING,
    _push,
    {
        "push: a patient's file in the model's folder": {
            **{"a.dcm": "Quackenbush", "README.md": "# A model\n"}
        }
    },
    "counted",
    shows="stay here: a.dcm",
)


@case(SHARING, "card: results of another model")
def _of_another(world: World) -> list[str]:
    path = world.file("results.json", world.base.results | {"model_hash": "0" * 16})
    return ["hub", "card", str(world.model()), "--results", str(path)]
