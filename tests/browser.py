"""Headless Chromium, spoken to through a pair of pipes: pages as people, keyboards and printers get them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from select import POLLIN, poll
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium here (Debian: apt-get install chromium)"
)
FLAGS = (
    "--headless",
    "--no-sandbox",  # tests may run as root, where Chromium's sandbox refuses to
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
DEADLINE_S = 60


class Browser:
    """One page of a running Chromium. `console` and `requests` are what happened since `open`."""

    def __init__(self, reading: FileIO, writing: FileIO) -> None:
        self._reading = reading
        self._answers = poll()  # select knows but 1024 descriptors
        self._answers.register(reading, POLLIN)
        self._writing = writing
        self._rest = b""
        self._calls = 0
        self._session: str | None = None
        self._loaded = False
        self.console: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False, media: str = "screen"
    ) -> None:
        """Opens a file in a window of that size, and waits until it has loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.console.clear()
        self.requests.clear()
        self._loaded = False
        self.call("Page.navigate", url=path.as_uri())
        while not self._loaded:
            self._note(self._receive())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str) -> None:
        """Presses a key and lets it go."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=9 if key == "Tab" else 0,
            )

    def hover(self, x: float, y: float) -> None:
        """Moves the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def accessible(self) -> list[tuple[str, str]]:
        """Role and name of everything that a screen reader is told of."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A PNG of the page, all of it unless only the window is wanted."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self, path: Path) -> None:
        """The page as it prints on A4."""
        data = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)["data"]
        path.write_bytes(base64.b64decode(data))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol."""
        self._calls += 1
        number = self._calls
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._writing.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert self._answers.poll(1000 * DEADLINE_S), "Chromium does not answer"
            read = os.read(self._reading.fileno(), 1 << 20)
            assert read, "Chromium went away"
            self._rest += read
        message, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        method, given = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.console.append(given["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.console.append(f"{given['type']}: {given['args']}")
        elif method == "Log.entryAdded":
            self.console.append(f"{given['entry']['level']}: {given['entry']['text']}")


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Chromium with a fresh profile; ends with the block."""
    assert CHROMIUM
    commands_out, commands_in = os.pipe()
    events_out, events_in = os.pipe()
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    # The protocol speaks through descriptors 3 and 4; a shell puts the pipes there.
    shell = f'exec "$@" 3<&{commands_out} 4>&{events_in}'
    process = subprocess.Popen(
        ["/bin/bash", "-c", shell, "bash", *command],
        pass_fds=(commands_out, events_in),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
    )
    os.close(commands_out)
    os.close(events_in)
    with FileIO(events_out) as reading, FileIO(commands_in, "w") as writing:
        try:
            yield Browser(reading, writing)
        finally:
            process.terminate()
            process.wait(DEADLINE_S)
