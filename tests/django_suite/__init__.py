"""Django's own tests of its PostgreSQL backend and of transactions, run in green mode."""
