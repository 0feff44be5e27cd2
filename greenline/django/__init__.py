"""
Django on the host's connection budget.

``ENGINE = "greenline.django.postgresql"`` in ``DATABASES`` is the public face.
"""
