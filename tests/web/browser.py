"""Debian's Chromium for tests, with everything refused that is not asked of the machine itself."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, Response, Route, sync_playwright

CHROMIUM = shutil.which("chromium") or ""
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE_MS = 30_000
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="needs Chromium (apt-get install chromium)")


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Screen:
    """A page, and what went wrong on it: errors, violations of its policy, and requests to others."""

    def __init__(self, browser: Browser, width: int = 1300, height: int = 900, scheme: str = "light") -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
        )
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.problems: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Complaints of the console that a test brings about."""
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("console", self._on_console)
        self.page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        self.page.on("response", self._on_response)
        self.page.route("**/*", self._route)

    def _on_console(self, message: object) -> None:
        text = str(getattr(message, "text", ""))
        if getattr(message, "type", "") in ("error", "warning") and not any(
            one in text for one in self.expected
        ):
            self.problems.append(f"console: {text}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400 and not any(one in str(response.status) for one in self.expected):
            self.problems.append(f"answer {response.status}: {response.request.method} {response.url}")

    def _route(self, route: Route, request: Request) -> None:
        if urlsplit(request.url).hostname == "127.0.0.1":
            route.continue_()
        else:
            self.problems.append(f"request: {request.url}")
            route.abort()

    def open(self, url: str) -> Page:
        self.page.goto(url)
        return self.page

    def shot(self, file: Path) -> None:
        self.page.screenshot(path=file, full_page=True)
        assert file.stat().st_size > 10_000

    def is_too_wide(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))

    def until(self, script: str) -> None:
        """Until an expression is true on the page; Playwright's own waiting is refused by the policy."""
        end = time.monotonic() + PATIENCE_MS / 1000
        while not self.page.evaluate(f"window.roamcastScene && ({script})"):
            assert time.monotonic() < end, script
            self.page.wait_for_timeout(20)

    def close(self) -> None:
        self.context.close()
        assert not self.problems, self.problems


NewScreen = Callable[..., Screen]
