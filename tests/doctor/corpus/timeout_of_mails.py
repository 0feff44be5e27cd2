from django.core.mail import send_mail

DATABASES = {}
EMAIL_HOST = "mail.example.org"
EMAIL_TIMEOUT = 5


def register(request):
    send_mail("hello", "text", "a@example.org", ["b@example.org"])  # not: GL213
