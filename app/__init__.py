"""The service: an HTTP API over Postgres and MongoDB, in blocking code, on the runtime."""
