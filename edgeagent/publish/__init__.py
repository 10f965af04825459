"""Delivery to the broker: a durable spool, one small window, and a fresh connection each time."""
