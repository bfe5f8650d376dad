#!/usr/bin/env bash
# Builds Jaeger from its Go module, once: the binary is kept in a cache folder, and its path is printed. The build takes
# minutes. The module has no web UI in it; its query API is what is asked here.
set -euo pipefail

readonly VERSION=v1.76.0 # the last one under this module path: Jaeger 2.13
cache=${TOWLINE_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/towline-ci}
binary=$cache/jaeger-$VERSION

if [ ! -x "$binary" ]; then
  mkdir -p "$cache"
  module=$(mktemp -d "${TMPDIR:-/tmp}/towline-jaeger.XXXXXX")
  trap 'rm -rf "$module"' EXIT
  (
    cd "$module"
    go mod init scratch
    go get -tool "github.com/jaegertracing/jaeger/cmd/jaeger@$VERSION"
    nice -n 10 go build -trimpath -ldflags "-s -w" -o built github.com/jaegertracing/jaeger/cmd/jaeger
  ) >&2
  mv "$module/built" "$binary"
fi
printf '%s\n' "$binary"
