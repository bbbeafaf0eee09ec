#!/bin/sh
# Installs the npm package PACKAGE, pinned in FOLDER's package.json and its lock file, into FOLDER/node_modules.
# usage: npm.sh FOLDER PACKAGE      prints what was installed; 3 and one sentence on stderr when it cannot be had
set -eu
cd "$1"
package=$2
cannot() { echo "$1" >&2; exit 3; }
# Loading it finds out, too, whether a native package has a binary for this Node.js.
loads() { node -e "require('$package')" 2>/dev/null; }
installed() { node -p "require('./node_modules/$package/package.json').version" 2>/dev/null || true; }

command -v node >/dev/null && command -v npm >/dev/null || cannot "Node.js with npm is not installed."
version=$(node -p "require('./package.json').dependencies['$package']")
if [ "$(installed)" != "$version" ]; then
  npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2 || cannot "npm cannot install $package $version."
fi
loads || cannot "$package $version does not load in Node.js $(node -v)."
echo "$package $version, Node.js $(node -v)"
