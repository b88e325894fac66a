"""The version of what is released. th/python/tensorhub/__init__.py says it too, and make_wheel.py compares the two."""

VERSION = "0.1.0"
