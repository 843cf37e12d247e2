"""The pages in the system's Chromium: light, dark and print, wide and on a phone."""

from __future__ import annotations

import pytest

from medclip_debias.reporting import plots
from medclip_debias.reporting.prepared_page import write_prepared_page
from medclip_debias.reporting.report import write_report
from tests.reporting.conftest import write_set
from tests.reporting.test_report import write_run


@pytest.fixture(scope="module")
def pages(tmp_path_factory, undrawn):
    """A run's report with heatmaps, and a prepared set's page, with their plots."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plots, "drawn_as", undrawn)
        report = write_report(write_run(folder / "run"))
        return {"report": report, "prepared": write_prepared_page(write_set(folder / "set"))}


@pytest.fixture(scope="module")
def opened(chromium, pages):
    """A function that gives a page in a scheme, and what the browser then asked for and said."""
    tabs = {}

    def there(name, scheme):
        if (name, scheme) not in tabs:
            page = chromium.new_context(color_scheme=scheme).new_page()
            said, asked = [], []
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("request", lambda request: asked.append(request.url))
            page.goto(pages[name].as_uri())
            tabs[name, scheme] = page, said, asked
        return tabs[name, scheme]

    return there


@pytest.mark.parametrize(("name", "scheme"), [("report", "light"), ("prepared", "dark")])
def test_nothing_is_asked_for_or_complained_of(opened, serious, pages, name, scheme):
    page, said, asked = opened(name, scheme)
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [pages[name].as_uri()]
    assert serious(page) == []


def background(page):
    numbers = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return [int(part) for part in numbers.strip("rgba()").split(",")[:3]]


def test_dark_is_dark_and_print_is_light(opened):
    page, *_ = opened("prepared", "dark")
    assert max(background(page)) < 80
    page.emulate_media(media="print")
    assert min(background(page)) > 230
    page.emulate_media(media="null")


def test_a_phone_scrolls_down_and_not_sideways_and_the_contents_lead_to_their_headings(opened):
    page, *_ = opened("report", "light")
    before = page.viewport_size
    page.set_viewport_size({"width": 375, "height": 700})
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [375, 375]
    page.set_viewport_size(before)
    entries = page.locator("nav a").all()
    assert len(entries) > 2
    for entry in entries[:2]:
        entry.click()
        heading = page.locator(entry.get_attribute("href"))
        assert heading.inner_text() == entry.inner_text()
        assert heading.evaluate("e => e.getBoundingClientRect().top < innerHeight")


def test_a_heatmap_is_seen_large_when_it_is_chosen(opened):
    page, *_ = opened("report", "light")
    page.set_viewport_size({"width": 1200, "height": 900})
    picture = page.locator(".pictures figure").first
    small = picture.locator("img").bounding_box()
    picture.click()
    large = picture.locator("img").bounding_box()
    assert large["width"] > 1100 > 300 > small["width"]
