"""A headless Chromium, driven over the WebDriver protocol (https://www.w3.org/TR/webdriver2) by Debian's chromedriver.

The protocol is JSON over HTTP, so that nothing but the standard library is needed.
"""

import base64
import http.client
import json
import pathlib
import re
import shutil
import subprocess
import tempfile

from testing.waiting import PATIENCE_S, until


class Browser:
    """One window. Ends with `close`."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="page-browser-")
        self._log = open(pathlib.Path(self._folder) / "chromedriver.log", "w+b")
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT
        )
        self._session = ""
        try:
            self._port = until(self._announced_port, "chromedriver listens", self._log_text)
            self._session = self._begin()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        try:
            if self._session:
                self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait()
            self._log.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _log_text(self) -> str:
        return pathlib.Path(self._log.name).read_text(errors="replace")

    def _announced_port(self) -> int:
        match = re.search(r"started successfully on port (\d+)", self._log_text())
        return int(match.group(1)) if match else 0

    def _begin(self) -> str:
        # Chromium's sandbox does not start as root, and containers often have a small /dev/shm.
        arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"]
        arguments.append("--user-data-dir=" + self._folder + "/profile")
        wanted = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}}
        wanted["goog:loggingPrefs"] = {"browser": "ALL"}
        return self._request("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def _call(self, method: str, path: str, body: dict | None = None):
        return self._request(method, "/session/" + self._session + path, body)

    def _request(self, method: str, path: str, body: dict | None = None):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            text = json.dumps(body or {}) if method == "POST" else None
            connection.request(method, path, text, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise AssertionError("%s %s: %s" % (method, path, value["message"]))
        return value

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments):
        """What the body of a function, run in the page, returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def devtools(self, command: str, **parameters):
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def console(self) -> list[str]:
        """What the page has written to its console since it was last asked, errors of its scripts among it."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, scheme: str) -> None:
        """`scheme` is light or dark."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, selector: str, key: str) -> None:
        """Sends keys to the element; WebDriver's own code points stand for Enter and the like."""
        element = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", "/element/%s/value" % next(iter(element.values())), {"text": key})

    def click(self, selector: str) -> None:
        element = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", "/element/%s/click" % next(iter(element.values())))

    def screenshot(self, path: pathlib.Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))
