from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from tests.web.browser import NewScreen, Screen, chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def new_screen(browser: Browser) -> Iterator[NewScreen]:
    """Opens pages, and says in the end whether anything went wrong on one of them."""
    opened: list[Screen] = []

    def open_screen(width: int = 1300, height: int = 900, scheme: str = "light") -> Screen:
        opened.append(Screen(browser, width, height, scheme))
        return opened[-1]

    yield open_screen
    for screen in opened:
        screen.close()
