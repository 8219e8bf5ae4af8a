#!/bin/sh
# Run once, when a node's volume is made: nodes take one another for who they say, on the network that only they are in.
# They connect to each other as whoever acts, and the role that requests act as has no password.
set -eu
sed -i "1i host all all $NODES_SUBNET trust" "$PGDATA/pg_hba.conf"
