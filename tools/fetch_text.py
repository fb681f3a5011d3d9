#!/usr/bin/env python3
"""Downloads the text that the studies of training read, into text/: seven novels, 5.2 MB.

They come from two Debian packages, which are taken as data (apt-get download and dpkg-deb; neither
root nor R is needed): Jane Austen's six from r-cran-janeaustenr, Moby-Dick from r-cran-tokenizers.
The texts are in the public domain, the packages under the MIT licence. Each paragraph is one line,
in Unicode's NFC. A file of another hash than the studies' is an error.
"""

import hashlib
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unicodedata
import zlib

TEXT = pathlib.Path(__file__).resolve().parent.parent / "text"

# Package: its novels in the package's order, with the SHA-256 of each file that is made.
NOVELS = {
    "r-cran-janeaustenr": {
        "emma": "0c59c31150a5053e59d926b2a6a0e429ee26f1518ff05bb3ff5ad54cf3a003f6",
        "mansfield-park": "5232f8e809704f68067ad20cd7191a58f433beccf73322e1db79af48b8dc1e82",
        "northanger-abbey": "1429610acb1fbbbae9ef1dd28c93f69c40037ca708af5a7e99ab90cbdca9a545",
        "persuasion": "f38b37ad6e7e3ea633c7c624530d80afd06aa54ee74450c2bdd5fd60239e52f1",
        "pride-and-prejudice": "0afca23e40c7bac74ec3291ce1ccb40167d82cea5f15ae1d8a89bc62343a45a6",
        "sense-and-sensibility": "6603fb40144b8ff912a51546d892ec6eebb339933cb6b6fd9eca2177de49a44e",
    },
    "r-cran-tokenizers": {
        "moby-dick": "52fff94cbd82611b9faa9b9b5b2d2198d5c7b9d592da199f830c68d59cdde237",
    },
}


def records(data):
    """The compressed records of an .rdb file: a length of four bytes, then a zlib stream."""
    while data:
        stream = zlib.decompressobj()
        yield stream.decompress(data[4:])
        data = stream.unused_data


def strings(record):
    """A serialised vector of strings: R Internals, section 1.8, in its XDR form."""
    place = 14
    if struct.unpack(">i", record[2:6])[0] >= 3:
        place += 4 + struct.unpack(">i", record[14:18])[0]  # the encoding's name
    count = struct.unpack(">i", record[place + 4 : place + 8])[0]
    place += 8
    found = []
    for _ in range(count):
        length = struct.unpack(">i", record[place + 4 : place + 8])[0]
        found.append(record[place + 8 : place + 8 + length].decode())
        place += 8 + length
    return found


def prose(text):
    """One paragraph a line, without what Project Gutenberg writes around a text."""
    text = unicodedata.normalize("NFC", text.lstrip("\ufeff")).replace("\r", "")
    text = re.split(r"\n\*\*\* ?START OF[^\n]*\n", text)[-1]
    text = re.split(r"\n(?:\*\*\* ?END OF|End of (?:the )?Project)[^\n]*", text)[0]
    paragraphs = (" ".join(p.split()) for p in re.split(r"\n\s*\n", text))
    return "".join(p + "\n" for p in paragraphs if p)


def fetch(package, novels, scratch):
    try:
        subprocess.run(["apt-get", "download", "-qq", package], cwd=scratch, check=True)
        (deb,) = scratch.glob(package + "_*.deb")
        subprocess.run(["dpkg-deb", "-x", deb, scratch / package], check=True)
    except (subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"fetch_text: {package}: {error}; expected Debian's apt-get and its index")
    (path,) = (scratch / package).glob("usr/lib/R/site-library/*/data/Rdata.rdb")
    texts = ["\n".join(strings(r)) for r in records(path.read_bytes())]
    for (name, sha256), text in zip(novels.items(), texts, strict=True):
        data = prose(text).encode()
        found = hashlib.sha256(data).hexdigest()
        if found != sha256:
            sys.exit(f"fetch_text: {name}: sha256 {found}, expected {sha256}")
        partial = TEXT / (name + ".partial")
        partial.write_bytes(data)
        partial.rename(TEXT / (name + ".txt"))
        print(f"fetch_text: text/{name}.txt: {len(data)} bytes", file=sys.stderr)


def is_right(name, sha256):
    path = TEXT / (name + ".txt")
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


TEXT.mkdir(exist_ok=True)
with tempfile.TemporaryDirectory() as scratch:
    for package, novels in NOVELS.items():
        if not all(is_right(*novel) for novel in novels.items()):
            fetch(package, novels, pathlib.Path(scratch))
