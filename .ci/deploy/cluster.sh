#!/usr/bin/env bash
# What the containers of `deploy/` do, as processes: three nodes run start.sh with the configuration, the keys and the environment of the
# containers, on free ports. Then the founder loses its disk: it must ask the cluster to come in again, and found no other.
# Usage: cluster.sh BINARY FOLDER
set -euo pipefail

readonly binary=$1 folder=$2 WAIT_SECONDS=60
here=$(cd "$(dirname "$0")/../../deploy" && pwd)
declare -A pid=() http=() peer=()
cleanup() { for node in "${!pid[@]}"; do kill "${pid[$node]}" 2>/dev/null || true; done; wait; }
trap cleanup EXIT

mkdir -p "$folder/bin" "$folder/etc"
ln -sf "$(realpath "$binary")" "$folder/bin/towline"
export PATH="$folder/bin:$PATH"
"$here/container/keys.sh" "$folder/keys" localhost a b c 2>"$folder/keys.log"
sed "s|/run/towline|$folder/keys|g" "$here/container/towline.yaml" >"$folder/etc/towline.yaml"

ports=($(python3 -c '
import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]
print(*(one.getsockname()[1] for one in held))'))
for index in 0 1 2; do
  node=$(echo a b c | cut -d' ' -f$((index + 1)))
  http[$node]=${ports[$index]} peer[$node]=${ports[$((index + 3))]}
done

export TOWLINE_CONFIG="$folder/etc/towline.yaml" TOWLINE_FOUNDER=a TOWLINE_CLUSTER__NAME=mesh
export TOWLINE_ACCESS_TOKEN_FILE="$folder/keys/secrets/OPERATOR_TOKEN" TOWLINE_SECRETS_DIR="$folder/keys/secrets"
export TOWLINE_CA_FILE="$folder/keys/tls/ca.crt"
start() {
  local node=$1 join=$2 others="" other
  for other in a b c; do if [ "$other" != "$node" ]; then others="$others,https://localhost:${http[$other]}"; fi; done
  TOWLINE_NODE__NAME=$node TOWLINE_NODE__DATA="$folder/$node" TOWLINE_NODE__ADVERTISE_PEER="localhost:${peer[$node]}" \
    TOWLINE_NODE__LISTEN__HTTP="127.0.0.1:${http[$node]}" TOWLINE_NODE__LISTEN__PEER="127.0.0.1:${peer[$node]}" \
    TOWLINE_NODE__PUBLIC_URL="https://localhost:${http[$node]}" TOWLINE_SERVER=${others#,} TOWLINE_JOIN="localhost:${peer[$join]}" \
    "$here/container/start.sh" >>"$folder/$node.log" 2>&1 &
  pid[$node]=$!
}
# Waits until a node says of the cluster what the expression in Python, over `status`, asks for.
until_status() {
  local node=$1 wanted=$2 deadline=$((SECONDS + WAIT_SECONDS))
  until towline cluster status --server "https://localhost:${http[$node]}" -o json 2>/dev/null \
    | python3 -c "import json, sys; status = json.load(sys.stdin); sys.exit(not ($wanted))" 2>/dev/null; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      echo "after $WAIT_SECONDS s the status at $node is not: $wanted"
      tail -n 20 "$folder"/[abc].log
      return 1
    fi
    sleep 0.5
  done
}

start a b; start b a; start c a
until_status c 'sum(member["voting"] and member["health"] == "Up" for member in status["members"]) == 3'
towline send helper "Good morning." --server "https://localhost:${http[b]}" -o json >"$folder/sent.json"
kill -KILL "${pid[a]}"
wait "${pid[a]}" 2>/dev/null || true
rm -rf "${folder:?}/a"
start a b
until_status b 'sum(member["health"] == "Up" for member in status["members"]) == 2'
deadline=$((SECONDS + WAIT_SECONDS))
until ! kill -0 "${pid[a]}" 2>/dev/null; do
  [ "$SECONDS" -lt "$deadline" ] || { echo "node a neither joined nor ended:"; tail -n 5 "$folder/a.log"; exit 1; }
  sleep 0.5
done
unset 'pid[a]'
if [ -e "$folder/a/identity.json" ]; then echo "node a, whose disk was lost, founded another cluster"; exit 1; fi
tail -n 1 "$folder/a.log" | grep "is taken by node" || { echo "node a ended for another reason:"; tail -n 5 "$folder/a.log"; exit 1; }
echo "three nodes as in the containers, and one that lost its disk founds no second cluster"
