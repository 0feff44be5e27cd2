"""The local Postgres and MongoDB that ``make serve``, the tests and the benches start."""
