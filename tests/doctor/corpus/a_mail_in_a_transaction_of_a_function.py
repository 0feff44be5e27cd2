from django.core.mail import send_mail
from django.db import transaction


@transaction.atomic
def register(request):
    request.user.save()
    send_mail("hello", "text", "a@example.org", ["b@example.org"])  # expect: GL214
