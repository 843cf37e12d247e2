"""The pages in the system's Chromium: light, dark and print, wide and on a phone."""

from __future__ import annotations

import pytest

from medclip_debias.reporting.prepared_page import write_prepared_page
from medclip_debias.reporting.report import write_report
from tests.reporting.conftest import write_set
from tests.reporting.test_report import write_run


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A run's report with heatmaps, and a prepared set's page."""
    folder = tmp_path_factory.mktemp("pages")
    report = write_report(write_run(folder / "run"))
    return {"report": report, "prepared": write_prepared_page(write_set(folder / "set"))}


class Tab:
    """A page that was opened once, and what the browser then asked for and said."""

    def __init__(self, browser, address, **options) -> None:
        self.page = browser.new_context(**options).new_page()
        self.said, self.asked = [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)


@pytest.fixture(scope="module")
def tabs():
    return {}


@pytest.fixture
def opened(chromium, pages, tabs):
    """A function that gives a tab with a page in a scheme, opened once for all tests."""

    def there(name, scheme="light"):
        if (name, scheme) not in tabs:
            tabs[name, scheme] = Tab(chromium, pages[name].as_uri(), color_scheme=scheme)
        return tabs[name, scheme]

    return there


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["report", "prepared"])
def test_nothing_is_asked_for_or_complained_of(opened, serious, pages, name, scheme):
    tab = opened(name, scheme)
    assert tab.said == []
    own = [url for url in tab.asked if not url.startswith("data:")]
    assert own == [pages[name].as_uri()]
    assert serious(tab.page) == []


def background(page):
    numbers = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return [int(part) for part in numbers.strip("rgba()").split(",")[:3]]


@pytest.mark.parametrize("name", ["report", "prepared"])
def test_dark_is_dark_and_print_is_light(opened, name):
    page = opened(name, "dark").page
    assert max(background(page)) < 80
    page.emulate_media(media="print")
    try:
        assert min(background(page)) > 230
        ink = page.evaluate("getComputedStyle(document.body).color")
    finally:
        page.emulate_media(media="null")
    assert max(int(part) for part in ink.strip("rgba()").split(",")[:3]) < 120


@pytest.mark.parametrize("name", ["report", "prepared"])
def test_a_phone_scrolls_down_and_not_sideways(opened, name):
    page = opened(name).page
    before = page.viewport_size
    page.set_viewport_size({"width": 375, "height": 700})
    try:
        wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    finally:
        page.set_viewport_size(before)
    assert wide == [375, 375]


@pytest.mark.parametrize("name", ["report", "prepared"])
def test_every_entry_of_the_contents_leads_to_its_heading(opened, name):
    page = opened(name).page
    entries = page.locator("nav a").all()
    assert len(entries) > 2
    for entry in entries:
        entry.click()
        heading = page.locator(entry.get_attribute("href"))
        assert heading.inner_text() == entry.inner_text()
        assert heading.evaluate("e => e.getBoundingClientRect().top < innerHeight")
