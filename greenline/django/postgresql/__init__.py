"""Django's PostgreSQL backend on pooled connections; Django imports ``base`` by its name."""
