#!/usr/bin/env python3
"""Makes the pictures of docs/explorer.md: explorer_pictures.py PAGE.html FOLDER. Exits with 77 where there
is no Chromium."""
import base64
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests" / "explorer"))
from browser import Browser, find_browser  # noqa: E402

ONE = "#0.model=llama-3.1-8b&0.engine=vllm&0.prompt-len=8192&x=prompt-len&y=ttft_s"
TWO = ("#0.model=llama-3-70b&0.engine=vllm&0.prompt-len=8192&0.tp=2&0.batch=16"
       "&1.model=llama-3-70b&1.engine=vllm&1.prompt-len=8192&1.tp=2&1.batch=16&1.weight-dtype=fp8&1.cache-dtype=fp8"
       "&active=1&x=batch&y=tpot_s")
KEEP = ("#0.model=llama-3.1-8b&0.prompt-len=32768"
        "&0.method=specprefill%3Aspeculator%3Dllama-3.2-1b%2Ckeep%3D0.2&x=keep&y=ttft_s")


def main() -> int:
    page, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    executable = find_browser()
    if executable is None:
        print("explorer_pictures.py: no chromium", file=sys.stderr)
        return 77
    folder.mkdir(parents=True, exist_ok=True)
    browser = Browser(executable)
    try:
        for name, address, width, height, dark, scroll in (
                ("light", ONE, 1280, 1000, False, None), ("dark", TWO, 1280, 1000, True, None),
                ("roofline", ONE, 1280, 640, False, "h-roofline"), ("phone", KEEP, 390, 844, False, None),
                ("phone-curves", KEEP, 390, 844, True, "h-curves")):
            browser.window(width, height, dark, scale=1 if width > 600 else 2)
            browser.open(page, address)
            if scroll:
                browser.evaluate(f"document.getElementById('{scroll}').scrollIntoView()")
            browser.evaluate("new Promise(done => setTimeout(done, 300))")
            shot = browser.call("Page.captureScreenshot", format="png")
            (folder / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
    finally:
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
