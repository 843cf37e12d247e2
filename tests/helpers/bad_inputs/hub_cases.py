"""What is handed on (`hub card`, `hub push`, `export`): folders and words that are none."""

from __future__ import annotations

from bad_inputs.case import Counted, case, cases
from bad_inputs.world import World

SHARING = "model cards, uploads, exports"


def _words(world: World, *words: str) -> list[str]:
    """A verb on a copy of the run's model; MODEL and OUT stand for their folders."""
    places = {"MODEL": str(world.model()), "OUT": str(world.out)}
    return [places.get(word, word) for word in words]


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
        "export: no such format": ("export", "MODEL", "OUT", "--format", "onx"),
        "export: as open_clip": ("export", "MODEL", "OUT", "--format", "open_clip"),
    },
)
cases(
    SHARING,
    lambda world, **config: ["hub", "card", str(world.model(**config))],
    {"card: a provenance that is a list": {"provenance": ["Quackenbush"]}},
)
cases(
    SHARING,
    _push,
    {
        "push: another's folder of a peer": {"peer.yaml": "kind: chexzero\n"},
        "push: a patient's file in the model's folder": Counted(
            "stay here: a.dcm", {"a.dcm": "Quackenbush", "README.md": "# A model\n"}
        ),
    },
)


@case(SHARING, "card: results of another model")
def _of_another(world: World) -> list[str]:
    path = world.file("results.json", world.base.results | {"model_hash": "0" * 16})
    return ["hub", "card", str(world.model()), "--results", str(path)]
