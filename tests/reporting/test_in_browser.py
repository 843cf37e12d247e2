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


@pytest.fixture
def opened(chromium, pages):
    """A function that opens a page in a context of its own; messages of the browser are kept."""
    contexts = []

    def there(name, **options):
        contexts.append(chromium.new_context(**options))
        page = contexts[-1].new_page()
        page.said = []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.asked = []
        page.goto(pages[name].as_uri())
        return page

    yield there
    for context in contexts:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["report", "prepared"])
def test_nothing_is_asked_for_or_complained_of(opened, serious, pages, name, scheme):
    page = opened(name, color_scheme=scheme)
    assert page.said == []
    own = [url for url in page.asked if not url.startswith("data:")]
    assert own == [pages[name].as_uri()]
    assert serious(page) == []


def background(page):
    numbers = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return [int(part) for part in numbers.strip("rgba()").split(",")[:3]]


@pytest.mark.parametrize("name", ["report", "prepared"])
def test_dark_is_dark_and_print_is_light(opened, name):
    page = opened(name, color_scheme="dark")
    assert max(background(page)) < 80
    page.emulate_media(media="print")
    assert min(background(page)) > 230
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert max(int(part) for part in ink.strip("rgba()").split(",")[:3]) < 120


@pytest.mark.parametrize("name", ["report", "prepared"])
def test_a_phone_scrolls_down_and_not_sideways(opened, name):
    page = opened(name, viewport={"width": 375, "height": 700})
    wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide == [375, 375]


@pytest.mark.parametrize("name", ["report", "prepared"])
def test_every_entry_of_the_contents_leads_to_its_heading(opened, name):
    page = opened(name)
    entries = page.locator("nav a").all()
    assert len(entries) > 2
    for entry in entries:
        entry.click()
        heading = page.locator(entry.get_attribute("href"))
        assert heading.inner_text() == entry.inner_text()
        assert heading.evaluate("e => e.getBoundingClientRect().top < innerHeight")
