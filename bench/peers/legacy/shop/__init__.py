"""A Django project: orders by the ORM, sessions and the admin, all in Postgres."""
