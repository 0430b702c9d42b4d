#!/bin/bash
# First process of the etcd container. At the first start it makes the certificates by which etcd and the coordinator know each other;
# whoever else is on the network, such as a sandbox, gets nowhere. Then it becomes etcd.
set -euo pipefail
server=/var/lib/etcd/pki client=/etc/etcd/client # the second is a volume that the coordinator reads

# issue FOLDER NAME USAGE SUBJECT-NAMES: a key and a certificate of the CA in the current folder.
issue() {
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$2" -keyout "$1/$2.key" -out "$2.csr"
  openssl x509 -req -in "$2.csr" -CA ca.crt -CAkey ca.key -days 3650 -out "$1/$2.crt" -extfile <(
    printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=%s\nsubjectAltName=%s\n' "$3" "$4")
}

# identities makes all of it anew: the key of the CA is not kept, so that nothing else can be issued by it.
identities() (
  umask 077
  mkdir -p "$server" "$client"
  rm -f "$server"/* "$client"/*
  cd "$(mktemp -d)"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=etcd CA" -keyout ca.key -out ca.crt
  issue "$server" server serverAuth DNS:etcd,DNS:localhost,IP:127.0.0.1
  issue "$client" client clientAuth DNS:coordinator
  cp ca.crt "$client/"
  cp ca.crt "$server/" # the last: what is complete has it
  rm -rf "$PWD"
)

cmp -s "$server/ca.crt" "$client/ca.crt" || { echo "making the certificates of etcd and its client"; identities 2>&1; }
exec etcd --name=etcd --data-dir=/var/lib/etcd/data \
  --listen-client-urls=https://0.0.0.0:2379 --advertise-client-urls=https://etcd:2379 \
  --cert-file="$server/server.crt" --key-file="$server/server.key" --client-cert-auth --trusted-ca-file="$server/ca.crt" \
  --listen-peer-urls=http://127.0.0.1:2380 --initial-advertise-peer-urls=http://127.0.0.1:2380 --initial-cluster=etcd=http://127.0.0.1:2380 \
  --auto-compaction-mode=periodic --auto-compaction-retention=1h --quota-backend-bytes=2147483648
