#!/bin/sh
# Makes what the nodes of a cluster of containers share, once: an authority and a certificate for the names given, and a token each
# for the operator and for who reads the metrics. For trying it out: a company has its own authority.
# Usage: keys.sh FOLDER NAME…
set -eu

folder=$1
shift
if [ -e "$folder/secrets/METRICS_TOKEN" ]; then exit 0; fi
umask 077
mkdir -p "$folder/tls" "$folder/secrets"
names=""
for name in "$@"; do names="$names${names:+,}DNS:$name"; done
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj "/CN=towline try-out authority" \
  -keyout "$folder/tls/ca.key" -out "$folder/tls/ca.crt"
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" \
  -addext "subjectAltName=$names,IP:127.0.0.1" -keyout "$folder/tls/tls.key" -out "$folder/tls/tls.csr"
openssl x509 -req -in "$folder/tls/tls.csr" -CA "$folder/tls/ca.crt" -CAkey "$folder/tls/ca.key" -days 365 -copy_extensions copy \
  -out "$folder/tls/tls.crt"
openssl rand -hex 32 >"$folder/secrets/OPERATOR_TOKEN"
openssl rand -hex 32 >"$folder/secrets/METRICS_TOKEN"
