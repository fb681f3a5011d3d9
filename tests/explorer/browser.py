"""Drives headless Chromium over its debugging pipe, with nothing but the standard library."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile


def find_browser() -> "str | None":
    return next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


class Browser:
    def __init__(self, browser: str):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, from_us = os.pipe()
        to_us, from_browser = os.pipe()

        def pipes():  # the browser reads from 3 and writes to 4
            read, write = os.dup(to_browser), os.dup(from_browser)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={self.profile.name}", "--remote-debugging-pipe"],
            preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.write, self.read = from_us, to_us
        self.buffer, self.last, self.session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")

    def call(self, method: str, **params) -> dict:
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self.write, content):]
        while True:
            reply = self.receive()
            if reply.get("id") == self.last:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                return reply["result"]

    def receive(self) -> dict:
        while b"\0" not in self.buffer:
            more = os.read(self.read, 1 << 16)
            if not more:
                raise RuntimeError("the browser has ended")
            self.buffer += more
        line, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(line)

    def window(self, width: int, height: int, dark: bool = False, scale: float = 1) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, page: pathlib.Path, address: str = "") -> None:
        """Opens the explorer and waits until it shows its forecast."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=page.absolute().as_uri() + address)
        self.evaluate("""new Promise(done => {
          const look = () => globalThis.explorer ? done() : setTimeout(look, 10);
          look();
        })""")

    def evaluate(self, script: str):
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:500])
        return result["result"].get("value")

    def press(self, key: str, **more) -> None:
        codes = {"Tab": 9, "ArrowRight": 39, "Enter": 13}
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=codes[key], **more)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        self.profile.cleanup()
