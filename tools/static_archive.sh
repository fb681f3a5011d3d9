#!/usr/bin/env bash
# Puts the static program of a build, with data, manual page, completion scripts, README and the
# licences of what is linked into it, into FOLDER/kvcast-VERSION-linux-x86_64.tar.gz; prints its name.
# usage: static_archive.sh BUILD_DIR FOLDER [EXPLORER.html]
set -euo pipefail
build=$(realpath "$1")
folder=$(realpath "$2")
page=${3:-}
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
name=kvcast-$version-linux-$(uname -m)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/$name
cmake --install "$build" --component program --strip --prefix "$root" >/dev/null
[[ ! -s $page ]] || cp "$page" "$root/share/kvcast/explorer.html"
mkdir "$root/licences"
for package in libfmt-dev libonig-dev libsoxr-dev libutf8proc-dev libsentencepiece-dev libeigen3-dev \
  libboost-dev nlohmann-json3-dev libcli11-dev libc6-dev gcc; do
  [[ ! -s /usr/share/doc/$package/copyright ]] || cp "/usr/share/doc/$package/copyright" "$root/licences/$package"
done
for file in LICENSE CITATION.cff CHANGELOG.md; do
  [[ ! -s $file ]] || cp "$file" "$root"
done
cat >"$root/README" <<END
kvcast $version for Linux on $(uname -m): one static program, no other packages needed.

  bin/kvcast                     what to type first
  bin/kvcast estimate --help     one command

Call it where it lies, or put a link to it into a folder of your PATH:
  ln -s "\$PWD/bin/kvcast" ~/.local/bin/kvcast
It finds its catalog, share/kvcast/data, from its own place: move the whole folder.
Manual page: share/man/man1/kvcast.1. Completion scripts: below share/ too.

Not in this build: MPI (runs and sweeps under mpirun; threads work) and oneDNN (the program's own
loops stand in). Plots need gnuplot. The Debian package and a build from source have all of it.

Vector instructions are chosen when it runs: any x86-64 processor will do, AVX2, AVX-512 and AMX
make runs faster. licences/ has the terms of the libraries in it. kvcast's sources and this build
are public: ./run package links the program anew, also with changed libraries.
END
time=$(git log -1 --format=%ct 2>/dev/null || date +%s)
tar --create --gzip --file "$folder/$name.tar.gz" --directory "$scratch" --sort=name --owner=0 \
  --group=0 --numeric-owner --mtime="@$time" "$name"
echo "$folder/$name.tar.gz"
