"""Have pretix make its tables, and an event with ten tickets and a token for its API."""

import os
from datetime import UTC, datetime

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "pretix.settings"
django.setup()

from django.core.management import call_command  # noqa: E402
from django_scopes import scopes_disabled  # noqa: E402
from pretix.base.models import Organizer, Team  # noqa: E402

TICKETS = 10


def main() -> None:
    """Make them; the token is the one in PRETIX_TOKEN."""
    call_command("migrate", verbosity=0)
    with scopes_disabled():
        organizer = Organizer.objects.create(name="Bench", slug="bench")
        event = organizer.events.create(
            name="Fair",
            slug="fair",
            currency="EUR",
            date_from=datetime(2030, 1, 1, tzinfo=UTC),
            live=True,
            plugins="",
        )
        for each in range(TICKETS):
            item = event.items.create(name=f"Ticket {each}", default_price=20, active=True)
            event.quotas.create(name=f"Quota {each}", size=100).items.add(item)
        team = Team.objects.create(
            organizer=organizer,
            name="bench",
            all_events=True,
            all_event_permissions=True,
            all_organizer_permissions=True,
        )
        team.tokens.create(name="bench", token=os.environ["PRETIX_TOKEN"])


if __name__ == "__main__":
    main()
