"""The page in a browser: what is seen and clicked agrees with what the server says."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from medclip_debias.viewer.answers import Answers
from tests.helpers.coco import write_coco
from tests.viewer.conftest import TOKEN, served

LEFT, RIGHT = "Left lung.", "Right lung."
WINDOW = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, phantom_tree):
    """A DICOM file of the phantom, and a PNG with a true box."""
    place = tmp_path_factory.mktemp("radiographs")
    shutil.copy(next(phantom_tree.rglob("*.dcm")), place / "one.dcm")
    rows, columns = np.mgrid[:300, :240]
    Image.fromarray((120 + 60 * np.sin(rows / 40) + columns / 5).astype(np.uint8)).save(
        place / "two.png"
    )
    return place


@pytest.fixture(scope="module")
def boxes(folder):
    box = ("Left lung", [20, 30, 60, 90])
    return write_coco(folder.parent / "boxes.json", ("two.png", [box], (240, 300)))


@pytest.fixture(scope="module")
def answers(model_folder, index_folder, make_model, folder, boxes, tmp_path_factory):
    """Two models side by side, an index, a folder of radiographs, true boxes."""
    other = tmp_path_factory.mktemp("other") / "model"
    make_model(72, 64, (0.5, 99.5), seed=8).save(other)
    return Answers.open(model_folder, index_folder, folder, "cpu", beside=other, boxes=boxes)


@pytest.fixture(scope="module")
def seen(answers, folder):
    """A sentence with a part of its map on one.dcm above the reference of absent findings."""

    def highest(text):
        return answers.look(image, text)[0]["highest"]

    image = answers.read(folder / "one.dcm")
    texts = answers.models[0].finder.prompt_sets[0].texts
    found = max(texts, key=highest)
    assert highest(found) > answers.models[0].absent(image.encoded[0], "similarity").reference
    return found


@pytest.fixture(scope="module")
def address(answers, tmp_path_factory):
    with served(answers, tmp_path_factory.mktemp("work")) as site:
        yield f"{site.url}/?token={TOKEN}"


@pytest.fixture(scope="module")
def tab(chromium):
    """A tab of the browser, which would take longer to make for each test than the page."""
    context = chromium.new_context(viewport=WINDOW)
    yield context.new_page()
    context.close()


@pytest.fixture
def page(tab, address):
    """The page, just opened; what goes wrong in its scripts fails the test."""
    tab.context.clear_cookies()
    tab.set_viewport_size(WINDOW)
    tab.set_default_timeout(30_000)
    wrong, asked = [], []
    listeners = {
        "pageerror": lambda error: wrong.append(str(error)),
        "request": lambda request: asked.append(request.url),
    }
    for event, listener in listeners.items():
        tab.on(event, listener)
    tab.asked = asked
    tab.goto(address)
    tab.wait_for_selector("body[data-ready]")
    until(tab, shows("one.dcm"))
    yield tab
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    assert wrong == []


def until(page, script):
    """Wait until a script is true; Playwright's own waiting needs eval, which the page forbids."""
    deadline = time.monotonic() + 30
    while not page.evaluate(script):
        assert time.monotonic() < deadline, f"{script}: {page.text_content('body')[:300]}"
        page.wait_for_timeout(20)


def shows(name):
    """A script that is true once an image is shown."""
    return f"document.querySelector('#status').textContent.startsWith('{name}: ')"


def opened(page, name):
    if not page.evaluate(shows(name)):
        page.locator(f"#strip button[aria-label='{name}']").click()
        until(page, shows(name))


def add(page, text, count):
    page.fill("#sentence", text)
    page.click("#add button")
    until(page, f"document.querySelectorAll('#list li').length === {count}")


def drawn(page):
    """Wait for the frame that shows what was done: the next, or the one after a change of size."""
    page.evaluate(
        """async () => { for (let k = 0; k < 3; k++)
        await new Promise((next) => requestAnimationFrame(next)); }"""
    )


def painted(page, layer):
    """Sum of a canvas's bytes: another one where something else is seen."""
    drawn(page)
    return page.evaluate(
        """layer => { const c = document.querySelectorAll('.view')[0].children[layer];
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        let s = 0; for (let k = 0; k < d.length; k++) s = (s * 31 + d[k]) >>> 0; return s; }""",
        layer,
    )


def hover(page, x, y):
    """Point at a pixel of the image in the first pane; what is read there."""
    place = page.locator(".view").first.bounding_box()
    shown = page.evaluate("document.querySelector('#status').textContent")
    wide, high = (int(part) for part in shown.split(": ")[1].split(" pixels")[0].split(" x "))
    scale = min(place["width"] / wide, place["height"] / high)
    left = place["x"] + place["width"] / 2 - wide / 2 * scale
    top = place["y"] + place["height"] / 2 - high / 2 * scale
    page.mouse.move(left + (x + 0.5) * scale, top + (y + 0.5) * scale)
    until(page, f"document.querySelector('.readout').textContent.startsWith('x {x}, y {y},')")
    return [one.text_content() for one in page.locator(".readout").all()]


def test_the_page_opens_on_the_first_image_and_keys_go_on_and_back(page):
    first = painted(page, 0)
    assert first != 0
    assert not page.locator("#empty").is_visible()
    current = page.locator("#strip button[aria-current=true]")
    assert current.get_attribute("aria-label") == "one.dcm"
    assert page.text_content("#which") == "image 1 of 2"
    page.keyboard.press(",")  # there is none before it
    page.keyboard.press(".")
    until(page, shows("two.png"))
    assert current.get_attribute("aria-label") == "two.png"
    assert painted(page, 0) != first
    page.keyboard.press(",")
    until(page, shows("one.dcm"))
    assert painted(page, 0) == first
    page.set_input_files("#file", files=[{"name": "a.png", "mimeType": "", "buffer": b"x"}])
    page.wait_for_selector("#status.wrong")
    assert current.count() == 0


def test_thumbnails_of_a_large_folder_are_made_as_they_scroll_into_view(
    chromium, model_folder, tmp_path
):
    count, folder = 2_345, tmp_path / "many"
    folder.mkdir()
    for number in range(count):
        grey = np.full((48, 40), number % 250, np.uint8)
        grey[:24] += 5
        Image.fromarray(grey).save(folder / f"{number:05d}.png")
    many = Answers.open(model_folder, images=folder, device="cpu")
    with served(many, tmp_path / "work") as site:
        tab = chromium.new_context(viewport=WINDOW).new_page()
        asked = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(f"{site.url}/?token={TOKEN}")
        tab.wait_for_selector("body[data-ready]")
        until(tab, "document.querySelector('#status').textContent.startsWith('00000.png: ')")
        until(tab, "document.querySelectorAll('#strip img').length >= 12")
        tab.evaluate("document.querySelector('#strip').scrollLeft = 1e9")
        until(
            tab, "document.querySelector('#strip button[aria-label=\"02344.png\"] img')?.complete"
        )
        small = tab.evaluate(
            "(i => [i.naturalWidth, i.naturalHeight])(document.querySelector('#strip img'))"
        )
        assert small == [40, 48]
        assert tab.locator("#strip button").count() < 25
        assert sum("/api/thumbnail/" in url for url in asked) < 60
        tab.locator("#strip button[aria-label='02344.png']").click()
        until(tab, "document.querySelector('#which').textContent === 'image 2,345 of 2,345'")
        tab.context.close()


def test_the_cursor_reads_the_servers_scores_and_the_files_values(page, answers, folder):
    opened(page, "two.png")
    add(page, LEFT, 1)
    add(page, RIGHT, 2)
    image = answers.read(folder / "two.png")
    grey = np.asarray(Image.open(folder / "two.png"))
    maps = [
        [one.heatmap for one in model.ground(encoded, image.shape, [LEFT, RIGHT])]
        for model, encoded in zip(answers.models, image.encoded, strict=True)
    ]
    for x, y in ((120, 150), (60, 222), (205, 71), (2, 150)):
        for number, words in enumerate(hover(page, x, y)):
            scores = ", ".join(
                f"{n}: {one[y, x]:.3f}" if np.isfinite(one[y, x]) else f"{n}: not seen"
                for n, one in enumerate(maps[number], start=1)
            )
            assert words == f"x {x}, y {y}, grey {grey[y, x]}; score {scores}"


def test_window_opacity_and_switches_change_the_picture_without_the_server(page, seen):
    opened(page, "one.dcm")
    add(page, seen, 1)
    page.asked.clear()
    before = painted(page, 0), painted(page, 1)
    page.locator("#width").fill("60")
    assert painted(page, 0) != before[0]
    assert painted(page, 1) == before[1] != 0
    page.locator("#opacity").fill("0.2")
    assert page.evaluate("document.querySelectorAll('.view canvas')[1].style.opacity") == "0.2"
    page.click("#reset")
    assert painted(page, 0) == before[0]
    page.locator("#list input").uncheck()
    assert painted(page, 1) == 0
    assert page.asked == []


def test_a_window_shows_the_grey_levels_that_it_says(page, folder):
    """One pixel to one, by hand: value 150 in a window of 100 about 140 has the grey level 153."""
    opened(page, "two.png")
    for name, value in (("width", "100"), ("centre", "140")):
        page.locator(f"#{name}").fill(value)
    page.click("#full")
    drawn(page)
    grey = np.asarray(Image.open(folder / "two.png")).astype(float)
    levels = page.evaluate(
        """() => { const c = document.querySelector('.view canvas'), w = c.width, h = c.height;
        const d = c.getContext('2d').getImageData(Math.round(w / 2 - 120), Math.round(h / 2 - 150),
        240, 300).data; return Array.from({length: 72000}, (_, k) => d[4 * k]); }"""
    )
    expected = np.clip((grey - 90) / 100, 0, 1) * 255
    np.testing.assert_allclose(np.reshape(levels, (300, 240)), expected, atol=1)
    page.keyboard.press("i")
    assert page.get_attribute("#invert", "aria-pressed") == "true"


def test_boxes_are_those_that_the_server_cuts_from_the_same_map(page, answers, folder):
    """The page's own script, on the same grids, against scipy's labels on the full maps."""
    from medclip_debias.grounding.regions import threshold_regions

    image = answers.read(folder / "two.png")
    model, encoded = answers.models[0], image.encoded[0]
    for sentence in (LEFT, RIGHT):
        (found,) = model.ground(encoded, image.shape, [sentence])
        low, high = float(np.nanmin(found.heatmap)), float(np.nanmax(found.heatmap))
        for share in (0.3, 0.6, 0.9):
            threshold = low + share * (high - low)
            theirs = page.evaluate(
                """async ([grid, geometry, threshold]) => {
                const { ScoreMap } = await import(new URL("assets/map.js", location.href));
                return new ScoreMap(grid, geometry).regions(240, 300, threshold); }""",
                [found.grid.ravel().tolist(), model.geometry(image.shape), threshold],
            )
            ours = threshold_regions(found.heatmap, threshold)
            assert sorted(one["box"] for one in theirs) == sorted(list(r.box) for r in ours)
            means = [one["mean"] for one in theirs]
            assert means == pytest.approx([r.mean for r in ours], abs=1e-5)


def test_findings_come_first_and_a_click_shows_where(page, answers, folder):
    opened(page, "two.png")
    image = answers.read(folder / "two.png")
    lists = page.locator("#findings-lists ol")
    assert lists.count() == 2
    for number, model in enumerate(answers.models):
        wanted = model.findings(image.encoded[number])
        words = lists.nth(number).locator("button").all_text_contents()
        assert [one["name"] in text for one, text in zip(wanted, words, strict=True)] == [True] * 5
        assert all("uncalibrated" in text for text in words)
    lists.first.locator("button").first.click()
    page.wait_for_selector("#list li.alone")
    sentence = answers.models[0].findings(image.encoded[0])[0]["sentence"]
    assert page.locator("#list .words").all_text_contents()[0].startswith(f"1: {sentence}")


def test_true_boxes_are_shown_where_the_image_has_them(page):
    opened(page, "two.png")
    assert page.locator("#phrases button").all_text_contents() == ["Left lung (1 true box)"]
    with_box = painted(page, 2)
    page.click("#truth")
    assert painted(page, 2) != with_box
    page.locator("#phrases button").click()
    page.wait_for_selector("#list li")
    opened(page, "one.dcm")
    assert not page.locator("#truth").is_visible()


def test_the_keyboard_does_what_the_mouse_does(page):
    opened(page, "two.png")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "sentence"
    page.keyboard.type(LEFT + " /?ib")  # words, not keys
    page.keyboard.press("Enter")
    page.wait_for_selector("#list li")
    assert page.get_attribute("#invert", "aria-pressed") == "false"
    page.locator(".view").first.focus()
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Alt+Shift+ArrowDown")
    words = page.text_content("#spoken")
    assert words.startswith("x 122, y 151, grey ")
    assert words.count("score 1: ") == 2
    before = painted(page, 0)
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    assert painted(page, 0) != before
    page.keyboard.press("0")
    assert painted(page, 0) == before
    page.keyboard.press("m")
    assert page.get_attribute("#maps", "aria-pressed") == "false"
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()


def test_exports_hold_what_the_page_says(page, answers, folder, seen, tmp_path):
    pydicom = pytest.importorskip("pydicom")
    pytest.importorskip("highdicom")
    opened(page, "two.png")
    page.set_input_files("#file", folder / "one.dcm")
    until(page, shows("one.dcm"))
    texts = [seen, RIGHT]
    for count, text in enumerate(texts, start=1):
        add(page, text, count)
    page.locator("#threshold").fill("0.45")  # which switches boxes on
    got = {}
    for label in ("JSON", "DICOM SEG", "PNG"):
        with page.expect_download() as download:
            page.get_by_role("button", name=label, exact=True).click(timeout=10_000)
        got[label] = Path(tmp_path / download.value.suggested_filename)
        download.value.save_as(got[label])
    image = answers.read(folder / "one.dcm")
    model, encoded = answers.models[0], image.encoded[0]
    threshold = float(page.text_content("#threshold-said").split(" and ")[0])
    content = json.loads(got["JSON"].read_text())
    assert content["findings"] == model.findings(encoded)
    assert content["image"]["SOPInstanceUID"] == pydicom.dcmread(folder / "one.dcm").SOPInstanceUID
    shown = [model.look(encoded, image.shape, text) for text in texts]
    assert [one["score"] for one in content["sentences"]] == pytest.approx(
        [one["score"] for one in shown]
    )
    scores = page.locator("#list .score").all_text_contents()
    assert [text.split(" | ")[0] for text in scores] == [f"{one['score']:.3f}" for one in shown]
    boxes = [box for one in content["sentences"] for box in one["boxes"]]
    assert all(box["peak"] >= threshold - 1e-3 for box in boxes)
    mask = pydicom.dcmread(got["DICOM SEG"])
    assert mask.Modality == "SEG"
    assert len(mask.SegmentSequence) == len(boxes) > 0
    assert (mask.Rows, mask.Columns) == image.shape
    picture = Image.open(got["PNG"])
    assert picture.width == max(image.shape[1], 600)
    assert picture.height > image.shape[0]


def test_the_method_of_the_maps_is_chosen_on_the_page(page, answers, folder):
    opened(page, "two.png")
    add(page, LEFT, 1)
    similar = painted(page, 1)
    choice = page.locator(".method select").first
    assert choice.locator("option").all_text_contents() == ["similarity", "Grad-CAM", "occlusion"]
    choice.select_option("occlusion")
    until(page, "document.querySelector('.bar').textContent.includes(' occlusion; coloured from')")
    assert painted(page, 1) != similar
    image = answers.read(folder / "two.png")
    shown = answers.models[0].ground(image.encoded[0], image.shape, [LEFT], "occlusion")[0].heatmap
    assert f"score 1: {shown[150, 120]:.3f}" in hover(page, 120, 150)[0]
    opened(page, "one.dcm")  # the choice stays with the next image
    assert " occlusion; coloured from" in page.locator(".bar").first.text_content()
    assert " cosine; coloured from" in page.locator(".bar").last.text_content()
    choice.select_option("similarity")
    until(page, "!document.querySelector('.bar').textContent.includes(' occlusion;')")


def test_a_search_result_opens_with_its_map(page):
    searched = "Left effusion."
    page.fill("#query", searched)
    page.click("#query-form button")
    page.wait_for_selector("#hits li:nth-child(10)")
    page.locator("#hits button").first.click()
    page.wait_for_selector("#list li")
    assert searched in page.locator("#list .words").text_content()
    assert page.locator("#list input").is_checked()
    page.click("#similar")
    until(page, "document.querySelector('#hits').textContent.includes('1: 1.000')")


def test_an_image_that_cannot_be_read_leaves_nothing_of_the_one_before(page, tmp_path):
    opened(page, "two.png")
    add(page, LEFT, 1)
    (tmp_path / "letter.png").write_text("Dear patient")
    page.set_input_files("#file", tmp_path / "letter.png")
    page.wait_for_selector("#status.wrong")
    assert page.text_content("#status").startswith("letter.png: this is not a DICOM")
    assert page.locator("#findings-lists li, #list li").count() == 0
    assert [painted(page, layer) for layer in range(3)] == [0, 0, 0]


def test_on_a_phone_nothing_lies_beside_the_page(chromium, address):
    context = chromium.new_context(viewport={"width": 375, "height": 700}, has_touch=True)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    until(page, shows("one.dcm"))
    opened(page, "two.png")
    add(page, "Opacity in the left lower lobe with a long description of its size and place.", 1)
    wide = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide[0] <= wide[1] == 375
    context.close()


def test_axe_finds_nothing_serious(page, chromium, address, serious):
    """The entrance, and the page with an image, maps and search results."""
    entrance = chromium.new_context().new_page()
    entrance.goto(address.split("?")[0])
    for seen, name in [(entrance, "entrance"), (page, "open")]:
        if name == "open":
            opened(page, "two.png")
            add(page, LEFT, 1)
            page.fill("#query", LEFT)
            page.click("#query-form button")
            page.wait_for_selector("#hits li:nth-child(10)")
        assert serious(seen) == [], name
    entrance.context.close()
