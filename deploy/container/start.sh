#!/bin/sh
# Runs one node of a cluster of containers. A node whose data folder is empty asks the members for a join token and joins; only the
# founder founds a cluster, and only where no member answers. A node that was in the cluster starts as it was.
#
#   TOWLINE_NODE__NAME                      its name
#   TOWLINE_FOUNDER                         the name of the node that founds the cluster
#   TOWLINE_SERVER                          URLs of the other nodes, separated by commas; with TOWLINE_ACCESS_TOKEN_FILE and TOWLINE_CA_FILE
#   TOWLINE_JOIN                            the peer address of a member
#   TOWLINE_CONFIG, TOWLINE_NODE__DATA      if not /etc/towline/towline.yaml and /var/lib/towline
set -eu

config=${TOWLINE_CONFIG:-/etc/towline/towline.yaml}
export TOWLINE_NODE__DATA="${TOWLINE_NODE__DATA:-/var/lib/towline}"
readonly UNREACHABLE=3 ATTEMPTS=5 PAUSE_SECONDS=2

if [ -e "$TOWLINE_NODE__DATA/identity.json" ]; then exec towline node -c "$config"; fi

attempt=0
while :; do
  code=0
  token=$(towline cluster join-token) || code=$?
  if [ "$code" -eq 0 ]; then break; fi
  attempt=$((attempt + 1))
  # A member that refuses or has no quorum is a cluster: founding another one beside it would hide it.
  if [ "$TOWLINE_NODE__NAME" = "$TOWLINE_FOUNDER" ] && [ "$code" -eq "$UNREACHABLE" ] && [ "$attempt" -ge "$ATTEMPTS" ]; then
    towline init --name "$TOWLINE_CLUSTER__NAME" --dir "$(dirname "$config")" -c "$(basename "$config")"
    exec towline node -c "$config"
  fi
  sleep "$PAUSE_SECONDS"
done
TOWLINE_TOKEN=$token exec towline node -c "$config" --join "$TOWLINE_JOIN"
