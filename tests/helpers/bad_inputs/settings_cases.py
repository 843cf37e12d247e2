"""Settings files, prompts and options: YAML by hand, and YAML of somebody who means harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from bad_inputs.case import case
from bad_inputs.world import World

AREA = "settings of a run"


def _text(text: str) -> Callable[[World], list[str]]:
    return lambda world: ["train", str(world.config(text))]


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefghi")
)
for what, text in {
    "an empty file": "",
    "a list": "- a\n- b\n",
    "a tab as indentation": "train:\n\tsteps: 3\n",
    "a bracket that is not closed": "train: [1, 2\n",
    "a key twice": "out: a\nout: b\n",
    "an object of Python (!!python/object)": "out: !!python/object/apply:os.system ['true']\n",
    "aliases that grow to billions": BOMB,
    "an alias that holds itself": "a: &a [*a]\n",
    "lists 20,000 deep": "a: " + "[" * 20_000 + "]" * 20_000 + "\n",
    "bytes that are no text": "\x00\x01\x02",
    "a start with another width": "prepared: p\nout: o\nmodel: {start_from: m, dim: 3}\n",
    "a start with its own preprocessing": (
        "prepared: p\nout: o\nmodel: {start_from: m}\npreprocessing: {mean: 0.1}\n"
    ),
    "a file that extends itself": "extends: run.yaml\nout: x\n",
    "a file it extends that is not there": "extends: nowhere.yaml\nout: x\n",
    "a preset it extends that is not there": "extends: loss:debiased_0.5\nout: x\n",
    "a preset with a blank after the colon": "extends: [loss: fnc]\nout: x\n",
    "settings it extends that do not come along": "extends: config:phantom/bse\nout: x\n",
    "a path in place of the name of settings": "extends: config:../../owner\nout: x\n",
}.items():
    case(AREA, what, "refused")(_text(text))

for what, words in {
    "a run by a name that is none": ["train", "mimic_cxr/debaised"],
    "a run by the name of a folder": ["train", "mimic_cxr"],
    "a copy of settings that do not come along": ["config", "new", "phantom/bse", "mine.yaml"],
    "a page of documentation that is not there": ["docs", "strat"],
}.items():
    case(AREA, what, "refused")(lambda _, words=words: words)


@case(AREA, "a copy of settings over a file that is there", "refused")
def _copied_over(world: World) -> list[str]:
    return ["config", "new", "phantom/demo", str(world.config("out: mine\n"))]


def _setting(**changes: Any) -> Callable[[World], list[str]]:
    return lambda world: world.train(**changes)


for what, changes in {
    "a misspelt key": {"train_stepps": 3},
    "steps of 0": {"train_steps": 0},
    "steps that are text": {"train_steps": "many"},
    "a learning rate that is no number": {"train_lr": "nan"},
    "more last blocks than there are": {"train_trainable": {"image": {"last_blocks": 99}}},
    "parts that train, of an unknown word": {"train_trainable": {"text": "most"}},
    "adapters where there is nothing to adapt": {"train_trainable": {"image": {"lora": {}}}},
    "an unknown loss": {"loss": {"kind": "infonse"}},
    "the name of a preset as the loss": {"loss": "fnc"},
    "a setting of another loss": {"loss": {"kind": "infonce", "eta": {"kind": "constant"}}},
    "a prepared set that is not there": {"prepared": "nowhere"},
    "a batch larger than the set": {"train_batch_size": 4096},
    "accumulate that does not divide the batch": {"train_accumulate": 3},
    "a GPU where there is none": {"train_device": "cuda"},
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
    "stored features of an encoder that is trained": {"train_features": {"cache": True}},
    "stored features of images that change": {
        "train_features": {"cache": True},
        "train_trainable": {"image": "frozen"},
    },
    "stored sentences of an encoder that is trained": {"train_features": {"text": True}},
    "stored features in a file's place": {
        "train_features": {"cache": True, "augmentations": 2, "folder": "/dev/null"},
        "train_trainable": {"image": "frozen"},
    },
}.items():
    case(AREA, what, "refused")(_setting(**changes))


def _image(**image: Any) -> Callable[[World], list[str]]:
    """A run with this image encoder; ``side`` is the input size."""

    def build(world: World) -> list[str]:
        base = world.base.settings()
        given = dict(image)
        side = given.pop("side", base["preprocessing"]["input_size"])
        preprocessing = base["preprocessing"] | {"input_size": side}
        return world.train(model=base["model"] | {"image": given}, preprocessing=preprocessing)

    return build


for what, image in {
    "an image encoder of an unknown name": {"arch": "resnet19"},
    "a DINOv2 without a folder": {"arch": "dinov2"},
    "a DINOv2 whose folder is not there": {"arch": "dinov2", "weights": "nowhere"},
    "a model of timm that lies on a hub": {"arch": "timm", "name": "hf_hub:someone/model"},
    "a model of timm whose regions have no known place": {"arch": "timm", "name": "resnet18"},
    "an input that the patches do not divide": {"arch": "vit_tiny_scratch", "side": 28},
}.items():
    case(AREA, what, "refused")(_image(**image))

for what, words in {
    "heads that do not divide the dimension": ("aggregator=cross_attention", "heads=7"),
    "an unknown aggregator": ("aggregator=atention",),
    "an aggregator of 0 layers": ("aggregator=cross_attention", "layers=0"),
}.items():
    case(AREA, what, "refused")(
        lambda world, words=words: [*world.train(), *(f"model.similarity.{w}" for w in words)]
    )

for what, name in {"an unknown preset": "fncc", "a path as a preset": "../fnc"}.items():
    case(AREA, what, "refused")(lambda world, name=name: [*world.train(), "--loss", name])


@case(AREA, "an output that is a file", "refused")
def _output_is_a_file(world: World) -> list[str]:
    world.out.write_text("something of the user's")
    return world.train()


@case(AREA, "an output inside a file", "refused")
def _output_in_a_file(world: World) -> list[str]:
    (world.here / "file").write_text("x")
    return world.train(out=str(world.here / "file" / "run"))


PROMPTS = "prompts and options (evaluate)"


def _file(option: str, text: str) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        path = world.here / "words.yaml"
        path.write_text(text, encoding="utf-8")
        return world.evaluate(option, str(path))

    return build


for what, text in {
    "an empty file": "",
    "a class without negative prompts": "name: x\nclasses: {Edema: {positive: [Edema.]}}\n",
    "a prompt that is a number": "name: x\nclasses: {Edema: {positive: [3], negative: [No.]}}\n",
    "an empty prompt": "name: x\nclasses: {Edema: {positive: [''], negative: [No edema.]}}\n",
    "aliases that grow to billions": BOMB,
}.items():
    case(PROMPTS, "prompts: " + what, "refused")(_file("--prompts", text))
GOUT = "name: x\nclasses: {Gout: {positive: [Gout.], negative: [No gout.]}}\n"
case(PROMPTS, "prompts: a class without labels", "refused", "counted", shows="Gout|no labels")(
    _file("--prompts", GOUT)
)
for what, text in {
    "an unknown key": "smothing: 1\n",
    "smoothing below 0": "smoothing: -1\n",
    "a list": "- 1\n",
}.items():
    case(PROMPTS, "options: " + what, "refused")(_file("--options", text))
case(PROMPTS, "an unknown class", "refused")(lambda world: world.evaluate("--classes", "Goutt"))
case(PROMPTS, "an unknown protocol preset", "refused", shows="biovil")(
    lambda world: world.evaluate("--preset", "biovill")
)
case(PROMPTS, "an unknown split", "refused")(lambda world: world.evaluate("--split", "tset"))
case(PROMPTS, "the training split, unasked", "refused")(
    lambda world: world.evaluate("--split", "train")
)

# ----------------------------------------------------------------------------------- boxes

BOXES = "boxes (COCO)"


def _boxes(change: Callable[[dict[str, Any]], None]) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        content = _coco(world)
        change(content)
        path = world.here / "boxes.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        return world.evaluate("--phrases", str(path))

    return build


def _coco(world: World) -> dict[str, Any]:
    """Boxes on four test images of the prepared set."""
    from medclip_debias.data.store import PreparedSet

    images = PreparedSet.open(world.base.prepared).images
    chosen = images[images["split"] == "test"].head(4)
    return {
        "images": [
            {
                "id": number,
                "file_name": f"{row.image_id}.jpg",
                "width": int(row.width),
                "height": int(row.height),
            }
            for number, row in enumerate(chosen.itertuples())
        ],
        "annotations": [
            {
                "id": n,
                "image_id": n,
                "category_id": 1,
                "bbox": [9, 9, 20, 20],
                "label_text": "Edema.",
            }
            for n in range(len(chosen))
        ],
        "categories": [{"id": 1, "name": "Edema"}],
    }


def _box(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        content["annotations"][0] |= changes

    return change


def _image(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        content["images"][0] |= changes

    return change


def _without(key: str) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        del content[key]

    return change


for what, change in {
    "no annotations": _without("annotations"),
    "no images": _without("images"),
    "a box of three numbers": _box(bbox=[1, 2, 3]),
    "a box of text": _box(bbox=["a", "b", "c", "d"]),
    "a box with an infinite side": _box(bbox=[1, 2, 1e400, 3]),
    "a phrase that is a number": _box(label_text=3),
    "an annotation of an image that is not listed": _box(image_id=99),
    "an id that is a list": _box(category_id=[1]),
}.items():
    case(BOXES, what, "refused")(_boxes(change))
case(BOXES, "an image of width 0, as where the size is not known", "read", "refused")(
    _boxes(_image(width=0))
)
case(BOXES, "a box without area", "counted", shows='"zero_area_boxes": 1')(
    _boxes(_box(bbox=[5, 5, 0, 9]))
)
case(BOXES, "a box outside its image", "counted", shows='"outside_boxes": 1')(
    _boxes(_box(bbox=[9000, 9000, 9, 9]))
)
case(BOXES, "a box over the edge", "counted", shows='"clipped_boxes": 1')(
    _boxes(_box(bbox=[-5, -5, 30, 30]))
)
case(BOXES, "an image of another shape", "refused", "counted", shows='"other_shape": 1')(
    _boxes(_image(width=4000, height=900))
)


def _other_images(content: dict[str, Any]) -> None:
    for row in content["images"]:
        row["file_name"] = "x.jpg"


case(BOXES, "images that are not in the set", "refused", "counted", shows="not in the set")(
    _boxes(_other_images)
)


MAPS = "label maps (evaluate)"
EVERY = "{any: [Edema, {not: Edema}, No Finding, {not: No Finding}]}"  # wherever there is a label
for what, text in {
    "a rule of an unknown word": "classes: {Edema: {anyof: [Edema]}}\n",
    "a rule of a number": "classes: {Edema: 5}\n",
    "a column that YAML takes for no": "classes: {Edema: [No]}\n",
    "two ways to combine at once": "classes: {Edema: {any: [Edema], all: [Pneumonia]}}\n",
    "absent without present": "classes: {Edema: {absent: Edema}}\n",
    "no class": "classes: {}\n",
    "a class with a rule that is left out": "classes: {Edema: Edema}\nleft_out: {so: [Edema]}\n",
    "a column that the set does not have": "classes: {Edema: Oedema}\n",
    "no rule for any class": "classes: {Gout: Edema}\n",
    "images that are present and absent": (
        f"classes: {{Edema: {{present: {EVERY}, absent: {EVERY}}}}}\n"
    ),
    "rules 5,000 deep": "classes: {Edema: " + "{not: " * 5_000 + "Edema" + "}" * 5_000 + "}\n",
    "aliases that grow to billions": BOMB,
}.items():
    case(MAPS, what, "refused")(_file("--label-map", text))

case(MAPS, "the name of an archive that has none", "refused")(
    lambda world: world.evaluate("--label-map", "chestxray15")
)
case(MAPS, "the map of another archive", "refused")(
    lambda world: world.evaluate("--label-map", "siim", "--classes", "Edema")
)
case(MAPS, "classes that it has no rule for", "counted", shows="the label map has no rule for it")(
    _file("--label-map", "classes: {Edema: Edema}\n")
)
case(
    MAPS,
    "contradictions that it leaves blank",
    "counted",
    shows="both present and absent, left blank",
)(
    _file(
        "--label-map",
        f"contradictory: blank\nclasses: {{Pneumonia: {{present: {EVERY}, absent: {EVERY}}}}}\n",
    )
)

FOR = "prepare for a model"


def _damaged_model(world: World) -> list[str]:
    folder = world.model()
    path = folder / "config.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"size"', '"sise"', 1))
    return world.prepare(world.manifest(), "--for", str(folder))


case(FOR, "a folder that is no model", "refused")(
    lambda world: world.prepare(world.manifest(), "--for", str(world.here))
)
case(FOR, "a language model", "refused")(
    lambda world: world.prepare(world.manifest(), "--for", str(world.base.language_model))
)
case(FOR, "another size than the model's", "refused")(
    lambda world: world.prepare(world.manifest(), "--for", str(world.base.run / "model"))
)
case(FOR, "a model whose settings are damaged", "refused")(_damaged_model)
case(FOR, "--all-test beside another split", "refused")(
    lambda world: world.prepare(world.manifest(), "--all-test", "--split-seed", "1")
)
