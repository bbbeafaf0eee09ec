#!/bin/sh
# Builds the crate PACKAGE of FOLDER, whose lock file pins LIBRARY, into FOLDER/build.
# usage: cargo.sh FOLDER PACKAGE LIBRARY     prints what was built; 3 and one sentence on stderr when it cannot be had
set -eu
cd "$1"
package=$2 library=$3
cannot() { echo "$1" >&2; exit 3; }

command -v cargo >/dev/null || cannot "Rust with cargo is not installed."
cargo build -q --release --locked --target-dir build >&2 || cannot "cargo cannot build $package."
version=$(cargo metadata -q --locked --format-version 1 | tr '{' '\n' | grep -o "\"name\":\"$library\",\"version\":\"[^\"]*" | head -1)
echo "$library ${version##*\"}"
