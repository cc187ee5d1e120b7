"""The sandbox-side agent driver: what runs beside the token."""

__version__ = "0.1.0"
