#!/bin/sh
# Make the secrets that docker-compose.yml reads, each in a file of its own; those that are there stay.
#   sh deploy/secrets.sh [folder]
set -eu
folder=${1:-secrets}
mkdir -p "$folder"
chmod 700 "$folder" # nobody else on this machine; the files themselves are read by the containers' own users
for name in api_key postgres_password; do
  if ! [ -s "$folder/$name" ]; then
    secret=$(openssl rand -hex 32) # in an argument its failure would not end the script
    printf 'pal_%s\n' "$secret" >"$folder/$name"
  fi
  chmod 644 "$folder/$name"
done
