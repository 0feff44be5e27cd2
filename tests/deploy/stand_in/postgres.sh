#!/bin/sh
# Stands in for the entrypoint of Postgres' image: make the data once, run what is to be run then
# with a server that listens on its socket only, and serve. PGPORT and PGHOST are the test's.
set -eu
if [ "$(id -u)" = 0 ]; then
  chown nobody:nogroup /var/lib/postgresql
  exec setpriv --reuid=nobody --regid=nogroup --clear-groups "$0"
fi
export PGDATA=/var/lib/postgresql/18
if [ ! -e "$PGDATA/PG_VERSION" ]; then
  echo "$POSTGRES_PASSWORD" > /var/lib/postgresql/password
  initdb --username=postgres --pwfile=/var/lib/postgresql/password \
    --auth-local=trust --auth-host=scram-sha-256 --locale=C.UTF-8 --encoding=UTF8
  rm /var/lib/postgresql/password
  pg_ctl start --wait --options="-c listen_addresses= -c unix_socket_directories=$PGHOST"
  for script in /docker-entrypoint-initdb.d/*.sh; do sh "$script"; done
  pg_ctl stop --wait
fi
exec postgres -c listen_addresses=127.0.0.1 -c "unix_socket_directories=$PGHOST"
