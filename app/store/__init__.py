"""One repository for each resource, on Postgres or on MongoDB."""
