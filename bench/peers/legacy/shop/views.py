"""The views."""

from django.db import connection
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render

from .models import Order

SLEEP_S = 0.2


def index(request):
    """Answer that the application runs."""
    return HttpResponse("ok")


def order(request, order_id):
    """Answer an order's page: six reads, with the session and its user, and the session's write."""
    found = get_object_or_404(Order.objects.select_related("customer"), pk=order_id)
    others = Order.objects.filter(customer=found.customer).exclude(pk=found.pk)
    request.session["seen"] = request.session.get("seen", 0) + 1
    context = {
        "order": found,
        "lines": found.line_set.order_by("id"),
        "count": others.count(),
        "others": others.order_by("-id")[:10],
        "seen": request.session["seen"],
    }
    return render(request, "order.html", context)


def sleep(request):
    """Sleep in Postgres."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_sleep(%s)", [SLEEP_S])
    return HttpResponse("slept")
