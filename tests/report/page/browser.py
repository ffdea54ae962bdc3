"""A real browser without a window, driven over WebDriver's plain HTTP."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

PROGRAMS = ("chromium", "chromedriver")
_WAIT_SECONDS = 60.0
_TRIES = 5


def missing() -> str | None:
    """Why there is no browser to test with."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{' and '.join(absent)} missing: apt-get install chromium chromium-driver" if absent else None


class Browser:
    """One session; `show` opens a file in a window of some size and colour scheme."""

    def __init__(self, address: str, profile: Path) -> None:
        self._address = address
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        arguments += ["--disable-extensions", "--disable-background-networking", f"--user-data-dir={profile}"]
        asked = {
            "goog:chromeOptions": {"binary": shutil.which("chromium"), "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": asked}})
        self._session = f"/session/{session['sessionId']}"

    def show(self, page: Path, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._go("about:blank")
        for kind in ("browser", "performance"):
            self._log(kind)  # what belongs to the page before
        self._go(page.absolute().as_uri())

    def _go(self, address: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._call("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def complaints(self) -> list[str]:
        """Return the browser console's messages since the page opened."""
        return [entry["message"] for entry in self._log("browser")]

    def requested(self) -> list[str]:
        """Every address asked for since the page opened."""
        events = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def picture(self, whole: bool = False) -> bytes:
        """A PNG of what is seen, or of the whole page."""
        return b64decode(self.devtools("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def close(self) -> None:
        self._call("DELETE", self._session)

    def _log(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call("POST", f"{self._session}/se/log", {"type": kind})
        return found

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._address + path, data, {"Content-Type": "application/json"}, method=method)
        with urlopen(request, timeout=_WAIT_SECONDS) as answer:
            return json.load(answer)["value"]


def _started() -> tuple[subprocess.Popen[str], str]:
    """Start a driver and return it with its port; again if another program takes the port that it has just chosen."""
    said = ""
    for _ in range(_TRIES):
        driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert driver.stdout is not None
        for line in driver.stdout:
            if found := re.search(r"successfully on port (\d+)", line):
                return driver, found[1]
            said += line
        driver.wait()
    raise RuntimeError(f"chromedriver ended {_TRIES} times before it listened. It said:\n{said}")


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """A browser that keeps its things in `folder` and ends with the block."""
    driver, port = _started()
    try:
        browser = Browser(f"http://127.0.0.1:{port}", folder / "profile")
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait()
