"""The collections of MongoDB, with the indexes that their repositories declare."""

from app.store.indexes import Declared
from app.store.messages import Messages
from app.store.products import Products
from app.store.states import States

DECLARED: Declared = {one.name: one.indexes for one in (States, Messages, Products)}
