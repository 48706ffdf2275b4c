#!/usr/bin/env python3
"""Loads every page of the docs in Chromium, at 1280 and 420 pixels, light and dark, and keeps a picture of each.

    tools/site_in_browser.py --out /var/tmp/pages                  builds the site, then looks
    tools/site_in_browser.py --site .gemmill/site --out /var/tmp/pages --only 'index*' --only 'notes/*'

Reports a page's console errors, files that it did not get, elements that stick out to its right, and text whose
contrast with its background is less than 4.5 (3 for large text), as WCAG 2.1 asks. Exits with 1 where it reports anything.
Chromium is spoken to through a pipe (its DevTools protocol). Nothing is installed, and nothing comes from a network.
"""

import argparse
import base64
import contextlib
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, product
from pathlib import Path
from threading import Thread
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WIDTHS = (1280, 420)
SCHEMES = ("light", "dark")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HEIGHT, TALLEST = 900, 6000
"""Pixels of the window, and of a picture at most."""
LOOK = Path(__file__).with_suffix(".js")
"""The check of each page: a function that returns sentences."""


class Browser:
    """One headless Chromium, and one page in it."""

    def __init__(self, program: str, profile: Path) -> None:
        (read, self._out), (self._in, write) = os.pipe(), os.pipe()
        self._numbers, self._left, self._loaded = count(1), b"", False
        self.told: list[str] = []
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        # The protocol's pipes are descriptors 3 and 4 of the browser.
        command = [program, *flags, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash", *command],
            pass_fds=(read, write),
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    _session = None

    def ask(self, method: str, **parameters: Any) -> Any:
        """The answer to a command; keeps events that arrive meanwhile."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": parameters}
        command |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(command).encode() + b"\0")
        while (message := self._message()).get("id") != number:
            self._hear(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']['message']}")
        return message["result"]

    def _go(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self._loaded = False
        self.ask("Page.navigate", url=url)
        while not self._loaded:
            self._hear(self._message())

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended: start it by hand with --headless=new to see why")
            self._left += part
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)

    def _hear(self, message: dict[str, Any]) -> None:
        told, method = message.get("params", {}), message.get("method")
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.told.append(f"script: {told['exceptionDetails']['text']}")
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.told.append(f"console: {told['entry']['text']} {told['entry'].get('url', '')}")
        elif method == "Network.loadingFailed" and not told.get("canceled"):
            self.told.append(f"not loaded: {told['errorText']}")

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(RuntimeError, OSError):
            self.ask("Browser.close")
        self._process.wait(timeout=30)

    def look(self, origin: str, page: str, width: int, scheme: str, picture: Path) -> list[str]:
        """Sentences on a page at a width and in a scheme, as a first visit shows it. Its picture is written."""
        self._go("about:blank")  # a page that is left writes down its own scheme
        self.told = []
        self.ask("Storage.clearDataForOrigin", origin=origin, storageTypes="local_storage")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._go(f"{origin}/{page}")
        answer = self.ask(
            "Runtime.evaluate", expression=f"({LOOK.read_text()})()", awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{LOOK.name}: {answer['exceptionDetails']['exception']['description']}")
        found = answer["result"]["value"]
        clip = {"x": 0, "y": 0, "width": width, "height": min(found["height"], TALLEST), "scale": 1}
        shot = self.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(base64.b64decode(shot["data"]))
        scheme_shown = [] if found["scheme"] == scheme else [f"it is shown {found['scheme']}, {scheme} was asked for"]
        return [*self.told, *scheme_shown, *found["told"]]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log no requests."""


@contextlib.contextmanager
def served(site: Path) -> Iterator[str]:
    """The origin at which this machine's browser finds the site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def pages(site: Path, only: Sequence[str]) -> Iterator[str]:
    """The wanted pages of a site, by their paths in it."""
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        if name != "404.html" and any(fnmatch.fnmatch(name, pattern) for pattern in only or ["*"]):
            yield name


def built(folder: Path) -> Path:
    """The site, built anew."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


def main() -> int:
    """Look at the pages. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the pictures")
    parser.add_argument("--site", type=Path, help="a site that is built already")
    parser.add_argument(
        "--only", action="append", metavar="PATTERN", help="pages by their paths in the site; repeatable"
    )
    options = parser.parse_args()
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        parser.error(f"no browser: install one of {', '.join(BROWSERS)}")
    wrong = seen = 0
    with tempfile.TemporaryDirectory(prefix="gemmill-browser-") as folder:
        site = (options.site or built(Path(folder) / "site")).resolve()
        with served(site) as origin, closing(Browser(program, Path(folder) / "profile")) as browser:
            for name, width, scheme in product(pages(site, options.only), WIDTHS, SCHEMES):
                picture = options.out / f"{name.removesuffix('.html').replace('/', '-')}-{width}-{scheme}.png"
                seen += 1
                for sentence in browser.look(origin, name, width, scheme, picture):
                    wrong += 1
                    print(f"{name}, {width} pixels, {scheme}: {sentence}", flush=True)
    print(f"{seen} pictures in {options.out}, {wrong} faults")
    return 1 if wrong or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
