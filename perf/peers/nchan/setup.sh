#!/bin/sh
# Unpacks Debian's nginx and its Nchan module into build/; nothing is installed on the machine.
# Pinned by the upstream version: Debian keeps no revision but its latest, and which one it was is in what this prints.
set -eu
cd "$(dirname "$0")"
nginx=1.22.1 nchan=1:1.3.6
cannot() { echo "$1" >&2; exit 3; }

if ! [ -s build/version ]; then
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || cannot "This is no Debian: no apt-get."
  rm -rf build && mkdir build && cd build
  # The lists of packages may be old or missing, which a failed download says; renewing them needs root.
  apt-get -q download "nginx=$nginx*" "libnginx-mod-nchan=$nchan*" >&2 \
    || { apt-get -q update >&2 && apt-get -q download "nginx=$nginx*" "libnginx-mod-nchan=$nchan*" >&2; } \
    || cannot "apt offers no nginx $nginx with Nchan ${nchan#*:}."
  for package in *.deb; do dpkg-deb -x "$package" .; done
  binaries="usr/sbin/nginx usr/lib/nginx/modules/ngx_nchan_module.so"
  # The folders for temporary files are compiled in, and the module makes its own whatever nginx.conf says. Names of the
  # same length without a slash in front lie in the folder of the run (nginx -p).
  LC_ALL=C sed -i 's|/var/lib/nginx/|nginx-temp-dir-|g' $binaries
  missing=$(ldd $binaries | awk '/not found/ { print $1 }' | tr '\n' ' ')
  [ -z "$missing" ] || cannot "nginx lacks libraries of this machine: $missing"
  { for package in *.deb; do dpkg-deb -W --showformat '${Package} ${Version}, ' "$package"; done; } | sed 's/, $/\n/' > version
  rm -- *.deb
  cd ..
fi
cat build/version
