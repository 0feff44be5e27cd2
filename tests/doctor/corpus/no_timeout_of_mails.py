from django.core.mail import EmailMessage, send_mail

DATABASES = {}
EMAIL_HOST = "mail.example.org"


def register(request):
    send_mail("hello", "text", "a@example.org", ["b@example.org"])  # expect: GL213
    message = EmailMessage("hello", "text", "a@example.org", ["b@example.org"])
    message.send()  # expect: GL213
