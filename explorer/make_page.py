#!/usr/bin/env python3
"""Makes the explorer's page: make_page.py MODULE.js DATA VERSION OUTPUT.html. Its marks, /*NAME*/, stand
for the style, the scripts, the module and the catalog; the last two are compressed."""
import base64
import gzip
import json
import pathlib
import sys


def packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def main(module: pathlib.Path, data: pathlib.Path, version: str, output: pathlib.Path) -> None:
    here = pathlib.Path(__file__).parent
    folders = ("engines", "hardware", "models", "platforms", "validation")
    catalog = {
        str(path.relative_to(data)): path.read_text(encoding="utf-8")
        for folder in folders
        for path in sorted((data / folder).glob("*.[jc]s*"))
    }
    parts = {
        "STYLE": (here / "explorer.css").read_text(encoding="utf-8"),
        "VERSION": version,
        "MODULE": packed(module.with_suffix(".wasm").read_bytes()),
        "CATALOG": packed(json.dumps(catalog, separators=(",", ":")).encode()),
        "LOADER": module.read_text(encoding="utf-8").replace("</script", "<\\/script"),
        "SCRIPT": "".join((here / name).read_text(encoding="utf-8") for name in ("views.js", "explorer.js")),
    }
    page = (here / "explorer.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        mark = f"/*{name}*/"
        if page.count(mark) != 1:
            sys.exit(f"explorer.html: expected {mark} once")
        page = page.replace(mark, text)
    output.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3], pathlib.Path(sys.argv[4]))
