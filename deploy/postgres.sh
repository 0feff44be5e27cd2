#!/bin/sh
# Run once, when compose.yml's Postgres makes its data: the service gets a role that owns its
# database and is no superuser, since what Postgres reserves for superusers is not the service's.
# The superuser has no password afterwards: `docker compose exec postgres psql -U postgres`.
set -eu
psql --set=ON_ERROR_STOP=1 --set=password="$POSTGRES_PASSWORD" --username=postgres <<'SQL'
CREATE ROLE greenline LOGIN PASSWORD :'password';
CREATE DATABASE greenline OWNER greenline;
ALTER ROLE postgres PASSWORD NULL;
SQL
