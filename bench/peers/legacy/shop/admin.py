"""The admin's list of orders."""

from django.contrib import admin

from .models import Order


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    """Orders with their customers, a filter and a search."""

    list_display = ("number", "customer", "total", "placed_at")
    list_select_related = ("customer",)
    search_fields = ("number",)
    list_per_page = 20
