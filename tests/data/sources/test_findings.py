"""Class names become the project's findings and plain sentences, one phrase an image and name."""

import pytest

from medclip_debias.data.sources.findings import (
    Marks,
    finding_name,
    finding_sentence,
)


@pytest.mark.parametrize(
    ("written", "name", "sentence"),
    [
        ("Pneumothorax", "Pneumothorax", "Pneumothorax."),
        ("Effusion", "Pleural Effusion", "Pleural effusion."),
        ("Infiltrate", "Infiltration", "Infiltration."),
        ("Pleural_Thickening", "Pleural Thickening", "Pleural thickening."),
        ("Airspace Opacity", "Lung Opacity", "Lung opacity."),
        (" Diffuse  Nodule ", "Diffuse Nodule", "Diffuse nodule."),
    ],
)
def test_a_class_is_spelt_as_the_project_does_and_said_as_a_sentence(written, name, sentence):
    assert finding_name(written) == name
    assert finding_name(name) == name
    assert finding_sentence(name) == sentence


def test_boxes_of_one_name_in_one_image_are_one_phrase():
    marks = Marks(lambda *step: None)
    marks.add("a", "Mass", [(1.0, 2.0, 3.0, 4.0)])
    marks.add("b", "Mass", [(5.0, 6.0, 7.0, 8.0)])
    marks.add("a", "Nodule", [(0.0, 0.0, 1.0, 1.0)])
    marks.add("a", "Mass", [(2.0, 2.0, 2.0, 2.0)])
    a, b, c = marks.phrases({"a": (10, 20)}, {"b": "test"})
    assert (a.phrase_id, a.category, a.text, a.annotated_size) == ("a/1", "Mass", "Mass.", (10, 20))
    assert a.boxes == ((1.0, 2.0, 3.0, 4.0), (2.0, 2.0, 2.0, 2.0))
    assert (b.phrase_id, b.mask, b.annotated_size, b.split) == ("b/1", None, None, "test")
    assert (c.phrase_id, c.category, c.split) == ("a/2", "Nodule", "")
