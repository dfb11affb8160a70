#!/bin/sh
# Runs once, in an empty database: creates the role of the servers, which can only read and write rows.
set -eu
psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d "$POSTGRES_DB" \
  -v password="$(cat /run/secrets/server_password)" <<'SQL'
CREATE ROLE foveal_server LOGIN PASSWORD :'password';
SQL
