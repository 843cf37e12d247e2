"""The page in a browser: what is seen and clicked agrees with what the server says."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from medclip_debias.grounding.regions import threshold_regions
from medclip_debias.viewer.answers import Answers
from tests.helpers.coco import write_coco
from tests.viewer.conftest import TOKEN, served

LEFT, RIGHT = "Left lung.", "Right lung."
WINDOW = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, phantom_tree):
    """A DICOM file of the phantom, and a PNG."""
    place = tmp_path_factory.mktemp("radiographs")
    shutil.copy(next(phantom_tree.rglob("*.dcm")), place / "one.dcm")
    rows, columns = np.mgrid[:300, :240]
    grey = (120 + 60 * np.sin(rows / 40) + columns / 5).astype(np.uint8)
    Image.fromarray(grey).save(place / "two.png")
    return place


@pytest.fixture(scope="module")
def answers(model_folder, index_folder, make_model, folder, tmp_path_factory):
    """Two models side by side, an index, a folder of radiographs, a true box on the PNG."""
    place = tmp_path_factory.mktemp("other")
    make_model(72, 64, (0.5, 99.5), seed=8).save(place / "model")
    box = ("Left lung", [20, 30, 60, 90])
    boxes = write_coco(place / "boxes.json", ("two.png", [box], (240, 300)))
    beside = {"beside": place / "model", "boxes": boxes}
    return Answers.open(model_folder, index_folder, folder, "cpu", **beside)


@pytest.fixture(scope="module")
def seen(answers, folder):
    """The sentence that is seen best on one.dcm: a part of its map is coloured."""
    image = answers.read(folder / "one.dcm")
    texts = answers.models[0].finder.prompt_sets[0].texts
    return max(texts, key=lambda text: answers.look(image, text)[0]["highest"])


@pytest.fixture(scope="module")
def address(answers, tmp_path_factory):
    with served(answers, tmp_path_factory.mktemp("work")) as site:
        yield f"{site.url}/?token={TOKEN}"


@pytest.fixture(scope="module")
def tab(chromium):
    """A tab of the browser, which would take longer to make for each test than the page."""
    context = chromium.new_context(viewport=WINDOW)
    tab = context.new_page()
    tab.set_default_timeout(30_000)
    tab.wrong, tab.asked = [], []
    tab.on("pageerror", lambda error: tab.wrong.append(str(error)))
    tab.on("request", lambda request: tab.asked.append(request.url))
    yield tab
    context.close()


@pytest.fixture
def page(tab, address):
    """The page, just opened; what goes wrong in its scripts fails the test."""
    tab.context.clear_cookies()
    tab.set_viewport_size(WINDOW)
    tab.goto(address)
    tab.wait_for_selector("body[data-ready]")
    until(tab, shows("one.dcm"))
    yield tab
    assert tab.wrong == []


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


def test_images_go_on_and_back_and_one_that_cannot_be_read_leaves_nothing(page):
    first = painted(page, 0)
    assert first != 0
    current = page.locator("#strip button[aria-current=true]")
    assert current.get_attribute("aria-label") == "one.dcm"
    page.keyboard.press(",")  # there is none before it
    page.keyboard.press(".")
    until(page, shows("two.png"))
    assert current.get_attribute("aria-label") == "two.png"
    assert painted(page, 0) != first
    page.keyboard.press(",")
    until(page, shows("one.dcm"))
    assert painted(page, 0) == first
    add(page, LEFT, 1)
    letter = {"name": "letter.png", "mimeType": "", "buffer": b"Dear patient"}
    page.set_input_files("#file", files=[letter])
    page.wait_for_selector("#status.wrong")
    assert page.text_content("#status").startswith("letter.png: this is not a DICOM")
    assert current.count() == 0
    assert page.locator("#findings-lists li, #list li").count() == 0
    assert [painted(page, layer) for layer in range(3)] == [0, 0, 0]


def test_thumbnails_of_a_large_folder_are_made_as_they_scroll_into_view(
    chromium, model_folder, tmp_path
):
    count, folder = 400, tmp_path / "many"
    folder.mkdir()
    for number in range(count):
        grey = np.repeat([[number % 250], [number % 250 + 5]], 24, axis=0).astype(np.uint8)
        Image.fromarray(np.tile(grey, 40)).save(folder / f"{number:03}.png")
    many = Answers.open(model_folder, images=folder, device="cpu")
    last = "#strip button[aria-label='399.png']"
    with served(many, tmp_path / "work") as site:
        tab = chromium.new_context(viewport=WINDOW).new_page()
        asked = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(f"{site.url}/?token={TOKEN}")
        tab.wait_for_selector("body[data-ready]")
        until(tab, "document.querySelectorAll('#strip img').length >= 12")
        tab.evaluate("document.querySelector('#strip').scrollLeft = 1e9")
        until(tab, f'document.querySelector("{last} img")?.complete')
        assert tab.locator("#strip button").count() < 25
        assert sum("/api/thumbnail/" in url for url in asked) < 60
        tab.locator(last).click()
        until(tab, "document.querySelector('#which').textContent.endsWith(' of 400')")
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
    for x, y in ((120, 150), (60, 222), (2, 150)):
        for number, words in enumerate(hover(page, x, y)):
            scores = ", ".join(
                f"{n}: {one[y, x]:.3f}" if np.isfinite(one[y, x]) else f"{n}: not seen"
                for n, one in enumerate(maps[number], start=1)
            )
            assert words == f"x {x}, y {y}, grey {grey[y, x]}; score {scores}"


def test_a_window_shows_the_grey_levels_that_it_says_without_the_server(page, folder):
    """One pixel to one, by hand: value 150 in a window of 100 about 140 has the grey level 153."""
    opened(page, "two.png")
    page.asked.clear()
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
    assert page.asked == []


def test_boxes_are_those_that_the_server_cuts_from_the_same_map(page, answers, folder):
    """The page's own script, on the same grids, against scipy's labels on the full maps."""
    image = answers.read(folder / "two.png")
    model, encoded = answers.models[0], image.encoded[0]
    (found,) = model.ground(encoded, image.shape, [LEFT])
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


def test_findings_and_true_boxes_are_the_images_own_and_a_click_shows_where(page, answers, folder):
    opened(page, "two.png")
    image = answers.read(folder / "two.png")
    lists = page.locator("#findings-lists ol")
    for number, model in enumerate(answers.models):
        wanted = model.findings(image.encoded[number])
        words = lists.nth(number).locator("button").all_text_contents()
        assert [one["name"] in text for one, text in zip(wanted, words, strict=True)] == [True] * 5
        assert all("uncalibrated" in text for text in words)
    assert page.locator("#phrases button").all_text_contents() == ["Left lung (1 true box)"]
    with_box = painted(page, 2)
    page.click("#truth")
    assert painted(page, 2) != with_box
    lists.first.locator("button").first.click()
    page.wait_for_selector("#list li.alone")
    sentence = answers.models[0].findings(image.encoded[0])[0]["sentence"]
    assert page.locator("#list .words").all_text_contents()[0].startswith(f"1: {sentence}")
    opened(page, "one.dcm")
    assert not page.locator("#truth").is_visible()


def test_the_keyboard_does_what_the_mouse_does(page):
    opened(page, "two.png")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "sentence"
    page.keyboard.type(LEFT + " /?ib")  # words, not keys
    page.keyboard.press("Enter")
    page.wait_for_selector("#list li")
    page.locator(".view").first.focus()
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Alt+Shift+ArrowDown")
    words = page.text_content("#spoken")
    assert words.startswith("x 122, y 151, grey ")
    assert words.count("score 1: ") == 2
    before = painted(page, 0)
    page.keyboard.press("+")
    assert painted(page, 0) != before
    page.keyboard.press("0")
    assert painted(page, 0) == before
    page.keyboard.press("i")
    assert page.get_attribute("#invert", "aria-pressed") == "true"
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()


def test_exports_hold_what_the_page_says(page, answers, folder, seen):
    page.set_input_files("#file", folder / "one.dcm")
    until(page, shows("one.dcm"))
    add(page, seen, 1)
    add(page, RIGHT, 2)
    page.locator("#threshold").fill("0.45")  # which switches boxes on
    got = {}
    for label in ("JSON", "PNG"):
        with page.expect_download() as download:
            page.get_by_role("button", name=label, exact=True).click(timeout=10_000)
        got[label] = Path(download.value.path())
    image = answers.read(folder / "one.dcm")
    content = json.loads(got["JSON"].read_text())
    assert content["findings"] == answers.models[0].findings(image.encoded[0])
    assert content["image"]["SOPInstanceUID"] == image.source.header.SOPInstanceUID
    rows = content["sentences"]
    assert [row["text"] for row in rows] == [seen, RIGHT]
    scores = page.locator("#list .score").all_text_contents()
    assert [text.split(" | ")[0] for text in scores] == [f"{row['score']:.3f}" for row in rows]
    threshold = float(page.text_content("#threshold-said").split(" and ")[0])
    assert rows[0]["boxes"]
    assert all(box["peak"] >= threshold - 1e-3 for row in rows for box in row["boxes"])
    with Image.open(got["PNG"]) as picture:
        assert picture.width == max(image.shape[1], 600)


def test_the_method_of_the_maps_is_chosen_on_the_page(page, answers, folder):
    opened(page, "two.png")
    add(page, LEFT, 1)
    similar = painted(page, 1)
    page.locator(".method select").first.select_option("gradcam")
    until(page, "document.querySelector('.bar').textContent.includes(' gradcam; coloured from')")
    assert painted(page, 1) != similar
    image = answers.read(folder / "two.png")
    shown = answers.models[0].ground(image.encoded[0], image.shape, [LEFT], "gradcam")[0].heatmap
    assert f"score 1: {shown[150, 120]:.3f}" in hover(page, 120, 150)[0]
    opened(page, "one.dcm")  # the choice stays with the next image
    assert " gradcam; coloured from" in page.locator(".bar").first.text_content()
    assert " cosine; coloured from" in page.locator(".bar").last.text_content()


def test_a_search_result_opens_with_its_map_and_axe_finds_nothing_serious(
    page, chromium, address, serious
):
    """At the entrance and on the page; on a phone, nothing lies beside it."""
    entrance = chromium.new_context().new_page()
    entrance.goto(address.split("?")[0])
    assert serious(entrance) == []
    entrance.context.close()
    searched = "Opacity in the left lower lobe with a long description of its size and place."
    page.fill("#query", searched)
    page.click("#query-form button")
    page.wait_for_selector("#hits li:nth-child(10)")
    page.locator("#hits button").first.click()
    page.wait_for_selector("#list li")
    assert searched in page.locator("#list .words").text_content()
    assert page.locator("#list input").is_checked()
    assert serious(page) == []
    page.set_viewport_size({"width": 375, "height": 700})
    wide = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide[0] <= wide[1] == 375
    page.click("#similar")
    until(page, "document.querySelector('#hits').textContent.includes('1: 1.000')")
