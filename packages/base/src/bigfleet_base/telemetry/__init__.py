"""The metric catalogue and structured logs."""

from bigfleet_base.telemetry import catalogue
from bigfleet_base.telemetry.catalogue import Role
from bigfleet_base.telemetry.logs import LEVELS, Form, Level, Log, Logs
from bigfleet_base.telemetry.metrics import CONTENT_TYPE, Counter, Gauge, Histogram, Metrics

__all__ = [
    "CONTENT_TYPE",
    "LEVELS",
    "Counter",
    "Form",
    "Gauge",
    "Histogram",
    "Level",
    "Log",
    "Logs",
    "Metrics",
    "Role",
    "catalogue",
]
