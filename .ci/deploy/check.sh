#!/usr/bin/env bash
# Checks the files of `deploy/` as far as that goes without a container engine, a Kubernetes and a running systemd.
# Usage: check.sh BINARY FOLDER
set -euo pipefail

readonly KUBERNETES_VALIDATE=1.37.0 # brings the schemas of Kubernetes with it
binary=$(realpath "$1")
folder=$2
here=$(cd "$(dirname "$0")" && pwd)
deploy=$(cd "$here/../../deploy" && pwd)
mkdir -p "$folder"

go run -C "$here/check" . "$deploy/compose/compose.yaml" "$deploy/Dockerfile"

python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "kubernetes-validate==$KUBERNETES_VALIDATE"
"$folder/venv/bin/kubernetes-validate" --strict "$deploy/kubernetes/towline.yaml"

# The configurations in these files are those of a node.
"$here/../../deploy/container/keys.sh" "$folder/keys" localhost 2>/dev/null
mkdir -p "$folder/etc"
"$folder/venv/bin/python" - "$deploy/kubernetes/towline.yaml" >"$folder/etc/kubernetes.yaml" <<'PYTHON'
import sys, yaml
objects = yaml.safe_load_all(open(sys.argv[1]))
print(next(one for one in objects if one["kind"] == "ConfigMap")["data"]["towline.yaml"])
PYTHON
cp "$deploy/container/towline.yaml" "$folder/etc/container.yaml"
for file in kubernetes container; do
  sed -i "s|/run/towline|$folder/keys|g" "$folder/etc/$file.yaml"
  TOWLINE_NODE__NAME=a TOWLINE_NODE__ADVERTISE_PEER=a:7421 TOWLINE_NODE__PUBLIC_URL=https://localhost:7420 \
    TOWLINE_SECRETS_DIR="$folder/keys/secrets" "$binary" validate "$folder/etc/$file.yaml"
done

sed "s|/usr/local/bin/towline|$binary|" "$deploy/systemd/towline.service" >"$folder/towline.service"
systemd-analyze verify "$folder/towline.service"

"$here/cluster.sh" "$binary" "$folder/cluster"
