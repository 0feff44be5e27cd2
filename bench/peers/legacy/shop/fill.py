"""Make the tables, orders, and for each client of a bench a user and a session of hers."""

import os
from datetime import timedelta

import django

CLIENTS = 1000
# As Django's session keys are: eight characters or more.
SESSION_KEY, NAME = "benchsession{:04}", "bench{:04}"


def main() -> None:
    """Migrate and fill."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "bench.peers.legacy.shop.settings"
    django.setup()
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY
    from django.contrib.auth import SESSION_KEY as USER
    from django.contrib.auth.models import User
    from django.contrib.sessions.backends.db import SessionStore
    from django.contrib.sessions.models import Session
    from django.core.management import call_command
    from django.utils import timezone

    from .models import Customer, Line, Order

    call_command("migrate", run_syncdb=True, verbosity=0)
    users = User.objects.bulk_create(
        User(username=NAME.format(n), password="!", is_staff=True, is_superuser=True)  # noqa: S106
        for n in range(CLIENTS)
    )
    customers = Customer.objects.bulk_create(Customer(name=f"Customer {n}") for n in range(50))
    orders = Order.objects.bulk_create(
        Order(number=f"N-{n:04}", customer=customers[n % 50], total=n) for n in range(1000)
    )
    Line.objects.bulk_create(
        Line(order=order, product=f"Product {n}", count=n) for order in orders for n in range(5)
    )

    def content(user):
        return {
            USER: str(user.pk),
            BACKEND_SESSION_KEY: "django.contrib.auth.backends.ModelBackend",
            HASH_SESSION_KEY: user.get_session_auth_hash(),
        }

    Session.objects.bulk_create(
        Session(
            session_key=SESSION_KEY.format(n),
            session_data=SessionStore().encode(content(user)),
            expire_date=timezone.now() + timedelta(days=30),
        )
        for n, user in enumerate(users)
    )


if __name__ == "__main__":
    main()
