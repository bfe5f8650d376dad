#!/usr/bin/env bash
# Takes promtool out of the package of the distribution, once: it is kept in a cache folder, and its path is printed. Nothing is
# installed, so no Prometheus starts.
set -euo pipefail

cache=${TOWLINE_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/towline-ci}
binary=$cache/promtool

if command -v promtool >/dev/null; then
  command -v promtool
  exit
fi
if [ ! -x "$binary" ]; then
  mkdir -p "$cache"
  folder=$(mktemp -d "${TMPDIR:-/tmp}/towline-promtool.XXXXXX")
  trap 'rm -rf "$folder"' EXIT
  (
    cd "$folder"
    # The client drops its rights for a download, and has to be able to write here.
    chmod 0777 .
    apt-get update -q
    apt-get download -q prometheus
    dpkg-deb -x prometheus_*.deb .
  ) >&2
  mv "$folder/usr/bin/promtool" "$binary"
fi
printf '%s\n' "$binary"
