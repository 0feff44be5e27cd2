"""The order page, the admin, and a view that sleeps in Postgres."""

from django.contrib import admin
from django.urls import path

from . import views

urlpatterns = [
    path("", views.index),
    path("orders/<int:order_id>", views.order),
    path("sleep", views.sleep),
    path("admin/", admin.site.urls),
]
