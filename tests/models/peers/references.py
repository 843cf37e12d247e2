"""What the authors' code of several families has in common, from torchvision and transformers."""

from __future__ import annotations

import torch
from torch import nn

from medclip_debias.models.text_encoder import SentenceTokenizer

from .conftest import LAST, THIRD, normalised, prefixed, without

IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
HALF = [0.5], [0.5]
CLEANED = ["no pleural effusions", "left", "left effusion no effusions"]
"""By the code of GLoRIA, CARZero, MGCA and AFLoc; below, how pieces of them form words."""
WORDS = [
    [["no"], ["pleural"], ["effusion", "##s"]],
    [["left"]],
    [["left"], ["effusion"], ["no"], ["effusion", "##s"]],
]


def features(net, x):
    """torchvision's ResNet: the output of its third stage, and of its last."""
    x = net.layer2(net.layer1(net.maxpool(net.relu(net.bn1(net.conv1(x))))))
    third = net.layer3(x)
    return third, net.layer4(third)


def rows_of(maps):
    return maps.flatten(2).transpose(1, 2)


def inside(images, side):
    cut = (images.shape[1] - side) // 2
    return images[:, cut : cut + side, cut : cut + side]


def enlarged(images):
    x = normalised(inside(images, 224), *HALF)
    return nn.Upsample(size=(299, 299), mode="bilinear", align_corners=True)(x)


def ids_of(bert_folder, sentence, length=97):
    return torch.tensor(SentenceTokenizer.load(bert_folder).encode([sentence], length))


def last4(bert, ids):
    return torch.stack(bert(ids, output_hidden_states=True).hidden_states[-4:]).sum(dim=0)[0]


def of_words(states, groups):
    """Tokens ``[L, D]`` added up word by word, [CLS] and [SEP] among them."""
    places = [len(pieces) for pieces in [["[CLS]"], *groups, ["[SEP]"]]]
    return torch.stack([part.sum(dim=0) for part in states.split(places)])


def gloria_state(trunk, bert, name="gloria"):
    width = bert.config.hidden_size
    torch.manual_seed(4)
    local, whole = nn.Conv2d(THIRD, width, 1, bias=False), nn.Linear(LAST, width)
    with torch.no_grad():
        local.weight.mul_(4)  # so that words' attention is far from even
    state = prefixed("text_encoder.model.", bert.state_dict())
    state |= prefixed("img_encoder.model.", without(trunk.state_dict(), "fc."))
    state |= prefixed("img_encoder.local_embedder.", local.state_dict())
    state |= prefixed("img_encoder.global_embedder.", whole.state_dict())
    return local, whole, prefixed(f"{name}.", state)
