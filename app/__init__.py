"""The service on the runtime: an API over Postgres and MongoDB in plain blocking code."""
