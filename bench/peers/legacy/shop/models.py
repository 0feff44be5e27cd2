"""Customers and their orders."""

from django.db import models


class Customer(models.Model):
    """A customer."""

    name = models.CharField(max_length=80)

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    """An order of a customer."""

    number = models.CharField(max_length=20, db_index=True)
    customer = models.ForeignKey(Customer, on_delete=models.CASCADE)
    total = models.IntegerField()
    placed_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.number


class Line(models.Model):
    """A line of an order."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)
    product = models.CharField(max_length=80)
    count = models.IntegerField()
