"""psycopg2's own test suite, run in green mode."""
