"""Settings files, prompts and options: YAML by hand, and YAML of somebody who means harm."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from bad_inputs.case import Counted, case, cases
from bad_inputs.world import World

AREA = "settings of a run"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefghi")
)
# What else is no settings file: tests/test_settings_files.py.
cases(
    AREA,
    lambda world, text: ["train", str(world.config(text))],
    {
        "an empty file": "",
        "an object of Python (!!python/object)": "out: !!python/object/apply:os.system ['true']\n",
        "aliases that grow to billions": BOMB,
        "a start with its own preprocessing": (
            "prepared: p\nout: o\nmodel: {start_from: m}\npreprocessing: {mean: 0.1}\n"
        ),
        "a preset it extends that is not there": "extends: loss:debiased_0.5\nout: x\n",
        "a preset with a blank after the colon": "extends: [loss: fnc]\nout: x\n",
        "settings it extends that do not come along": "extends: config:phantom/bse\nout: x\n",
    },
)
cases(
    AREA,
    lambda _, *words: list(words),
    {"a run by a name that is none": ("train", "mimic_cxr/debaised")},
)

FROZEN = {"train_trainable": {"image": "frozen"}}
cases(
    AREA,
    World.train,
    {
        "more last blocks than there are": {"train_trainable": {"image": {"last_blocks": 99}}},
        "parts that train, of an unknown word": {"train_trainable": {"text": "most"}},
        "adapters where there is nothing to adapt": {"train_trainable": {"image": {"lora": {}}}},
        "an unknown loss": {"loss": {"kind": "infonse"}},
        "the name of a preset as the loss": {"loss": "fnc"},
        "a prepared set that is not there": {"prepared": "nowhere"},
        "a batch larger than the set": {"train_batch_size": 4096},
        "accumulate that does not divide the batch": {"train_accumulate": 3},
        "a device of an unknown name": {"train_device": "tpu9"},
        "a crop larger than the stored image": {
            "preprocessing": {"prepare": {"size": 48}, "input_size": 64}
        },
        "another size than the set was prepared at": {
            "preprocessing": {"prepare": {"size": 64}, "input_size": 32}
        },
        "the language model's scores, which were never computed": {
            "loss": {"kind": "debiased", "eta": {"kind": "language_model"}}
        },
        "stored features in a file's place": FROZEN
        | {"train_features": {"cache": True, "augmentations": 2, "folder": "/dev/null"}},
    },
)


def _image(world: World, side: int | None = None, **image: Any) -> list[str]:
    """A run with this image encoder; ``side`` is the input size."""
    base = world.base.settings()
    preprocessing = base["preprocessing"] | ({} if side is None else {"input_size": side})
    return world.train(model=base["model"] | {"image": image}, preprocessing=preprocessing)


cases(
    AREA,
    _image,
    {
        "a DINOv2 without a folder": {"arch": "dinov2"},
        "a DINOv2 whose folder is not there": {"arch": "dinov2", "weights": "nowhere"},
        "a model of timm that lies on a hub": {"arch": "timm", "name": "hf_hub:someone/model"},
        "an input that the patches do not divide": {"arch": "vit_tiny_scratch", "side": 28},
    },
)


@case(AREA, "an output that is a file")
def _output_is_a_file(world: World) -> list[str]:
    world.file("out", "something of the user's")
    return world.train()


def _in_the_way(world: World, name: str, *words: str) -> list[str]:
    """A verb that is to write where something of the user's lies."""
    world.file(name, "something of the user's")
    run = world.base.run
    places = {"MODEL": run / "model", "SET": world.base.prepared, "OUT": world.out, "RUN": run}
    return [str(places.get(word, word)) for word in words]


BUNDLE = ("--format", "monai-bundle")
cases(
    "outputs",
    _in_the_way,
    {
        "export: a folder of other things": ("out/notes.txt", "export", "MODEL", "OUT", *BUNDLE),
        "index: a folder of other things": (
            *("out/notes.txt", "index", "MODEL", "SET", "--out", "OUT", "--overwrite"),
        ),
        "import-model: a folder of other things": (
            *("out/notes.txt", "import-model", "rad_dino", "SET", "--out", "OUT"),
        ),
        "demo: a folder of other things": (
            *("out/notes.txt", "demo", "--quick", "--fresh", "--out", "OUT"),
        ),
        "evaluate: a file": ("out", "evaluate", "MODEL", "SET", "--out", "OUT"),
        "compare: a file": ("out", "compare", "RUN", "RUN", "--out", "OUT"),
    },
)


# ------------------------------------------------------------------------- prompts and options

PROMPTS = "prompts and options (evaluate)"


def _file(option: str) -> Callable[[World, str], list[str]]:
    return lambda world, text: world.evaluate(option, str(world.file("words.yaml", text)))


cases(
    PROMPTS,
    _file("--prompts"),
    {
        "prompts: a class without negative prompts": (
            "name: x\nclasses: {Edema: {positive: [Edema.]}}\n"
        ),
        "prompts: a class without labels": Counted(
            "no labels", "name: x\nclasses: {Gout: {positive: [Gout.], negative: [No gout.]}}\n"
        ),
    },
)
cases(PROMPTS, _file("--options"), {"options: an unknown key": "smothing: 1\n"})
cases(
    PROMPTS,
    World.evaluate,
    {
        "an unknown class": ("--classes", "Goutt"),
        "an unknown protocol preset": ("--preset", "biovill"),
        "an unknown split": ("--split", "tset"),
        "the training split, unasked": ("--split", "train"),
    },
)

# ----------------------------------------------------------------------------------- boxes


def _boxes(world: World, change: Callable[[dict[str, Any]], object]) -> list[str]:
    """Boxes on four test images of the prepared set, changed."""
    from medclip_debias.data.store import PreparedSet

    images = PreparedSet.open(world.base.prepared).images
    chosen = images[images["split"] == "test"].head(4)
    box = {"category_id": 1, "bbox": [9, 9, 20, 20], "label_text": "Edema."}
    content = {
        "images": [
            {
                **{"id": number, "file_name": f"{row.image_id}.jpg"},
                **{"width": int(row.width), "height": int(row.height)},
            }
            for number, row in enumerate(chosen.itertuples())
        ],
        "annotations": [{"id": n, "image_id": n, **box} for n in range(len(chosen))],
        "categories": [{"id": 1, "name": "Edema"}],
    }
    change(content)
    return world.evaluate("--phrases", str(world.file("boxes.json", content)))


def _box(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["annotations"][0].update(changes)


def _first(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["images"][0].update(changes)


cases(
    "boxes (COCO)",
    _boxes,
    {
        "no annotations": lambda content: content.pop("annotations"),
        "a width that is a word": _first(width="Zebulon"),
        "a box with an infinite side": _box(bbox=[1, 2, 1e400, 3]),
        "an annotation of an image that is not listed": _box(image_id=99),
        "boxes in pixels of larger images of no stated size": lambda content: (
            [image.update(width=0, height=0) for image in content["images"]],
            [box.update(bbox=[9000, 9000, 9, 9]) for box in content["annotations"]],
        ),
        "boxes without area, outside their image, and over its edge": Counted(
            '(?s)(?=.*"zero_area_boxes": 1)(?=.*"outside_boxes": 1).*"clipped_boxes": 1',
            lambda content: [
                box.update(bbox=bbox)
                for box, bbox in zip(
                    content["annotations"],
                    ([5, 5, 0, 9], [9000, 9000, 9, 9], [-5, -5, 30, 30]),
                    strict=False,
                )
            ],
        ),
        "an image of another shape": Counted('"other_shape": 1', _first(width=4000, height=900)),
        "images that are not in the set": Counted(
            "not in the set",
            lambda content: [row.update(file_name="x.jpg") for row in content["images"]],
        ),
    },
)

# ------------------------------------------------------------------------------- label maps

MAPS = "label maps (evaluate)"
EVERY = "{any: [Edema, {not: Edema}, No Finding, {not: No Finding}]}"  # wherever there is a label
BOTH = f"{{present: {EVERY}, absent: {EVERY}}}"
# What else is no label map: tests/data/label_maps/test_label_maps.py.
cases(
    MAPS,
    _file("--label-map"),
    {
        "a column that the set does not have": "classes: {Edema: Oedema}\n",
        "no rule for any class": "classes: {Gout: Edema}\n",
        "images that are present and absent": f"classes: {{Edema: {BOTH}}}\n",
        "contradictions that it leaves blank, and classes without a rule": Counted(
            "(?s)(?=.*both present and absent, left blank).*the label map has no rule for it",
            f"contradictory: blank\nclasses: {{Pneumonia: {BOTH}}}\n",
        ),
    },
)
cases(MAPS, World.evaluate, {"the name of no archive": ("--label-map", "chestxray15")})

# ------------------------------------------------------------------------ prepare for a model


cases(
    "prepare for a model",
    lambda world, words: world.prepare(world.manifest(), *words(world)),
    {
        "a folder that is no model": lambda world: ("--for", str(world.here)),
        "a language model": lambda world: ("--for", str(world.base.language_model)),
        "another size than the model's": lambda world: ("--for", str(world.base.run / "model")),
        "--all-test beside another split": lambda _: ("--all-test", "--split-seed", "1"),
    },
)
