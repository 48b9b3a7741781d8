"""A headless Chromium for tests, spoken to over its DevTools pipe: one start serves many pages."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 60  # seconds for one answer
SPECIAL_KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, " ": 32}


class Chromium:
    """One tab. `asked` are the addresses that the open page wanted to load, itself not included."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        command = [
            *(PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"),
        ]
        # It reads orders at 3 and writes answers to 4.
        shell = ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", *command]
        self._process = subprocess.Popen(
            shell, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session = ""
        self._loaded = 0
        self.asked: list[str] = []
        pages = self._call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in pages if target["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def open(self, page: Path) -> None:
        """Load a file and wait until it is there with all that it loads."""
        self.asked = []
        before = self._loaded
        self._call("Page.navigate", url=page.as_uri())
        while self._loaded == before:
            self._event()
        self.asked = [address for address in self.asked if address != page.as_uri()]

    def js(self, expression: str) -> Any:
        """The value of an expression in the page, which need not allow scripts."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def settle(self) -> None:
        """Wait until every picture is loaded, also one that nobody has scrolled to."""
        self.js(
            "Promise.all([...document.images].map((image) => new Promise((done) => {"
            "image.onload = image.onerror = done; image.loading = 'eager'; if (image.complete) done(); })))"
        )

    def press(self, *keys: str) -> None:
        """Press keys, as a person does."""
        for key in keys:
            text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
            code = SPECIAL_KEYS.get(key) or ord(key.upper())
            for kind in ("keyDown", "keyUp"):
                more = text if kind == "keyDown" else {}
                self._call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    def screen(self, width: int, height: int, *, phone: bool = False, dark: bool = False) -> None:
        """Another screen, and what its user prefers."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, target: Path, *, whole: bool = False) -> None:
        """What is on the screen, or the whole page, as PNG."""
        found = self._call("Page.captureScreenshot", captureBeyondViewport=whole)
        target.write_bytes(base64.b64decode(found["data"]))

    # -- the pipe: JSON, each ended by a zero byte --

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        order = {"id": number, "method": method, "params": params}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._out, json.dumps(order).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            answer = self._event()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                return dict(answer["result"])
        raise TimeoutError(f"no answer to {method}")

    def _event(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], PATIENCE)[0], "the browser is silent"
            piece = os.read(self._in, 1 << 16)
            assert piece, "the browser has ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        event: dict[str, Any] = json.loads(line)
        if event.get("method") == "Network.requestWillBeSent":
            self.asked.append(event["params"]["request"]["url"])
        elif event.get("method") == "Page.loadEventFired":
            self._loaded += 1
        return event
