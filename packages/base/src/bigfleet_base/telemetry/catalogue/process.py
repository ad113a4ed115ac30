"""Series of every process."""

from bigfleet_base.telemetry.series import CounterSeries, GaugeSeries, Label, declared

TASKS = GaugeSeries("bigfleet_process_tasks", "asyncio tasks alive; a rising count is a leak")

# No values and so not made in advance: a process without a certificate must not show one that ended in 1970.
CERTIFICATE_EXPIRY = GaugeSeries(
    "bigfleet_tls_certificate_expiry_timestamp_seconds",
    "Unix time at which the certificate in use ends",
    (Label("role"),),
)

SERIES = declared(globals())

_GENERATION = Label("generation", ("0", "1", "2"))

RUNTIME = (
    GaugeSeries("process_virtual_memory_bytes", "Virtual memory size"),
    GaugeSeries("process_resident_memory_bytes", "Resident memory size"),
    GaugeSeries("process_start_time_seconds", "Unix time at which the process started"),
    CounterSeries("process_cpu_seconds_total", "CPU time used, user and system"),
    GaugeSeries("process_open_fds", "File descriptors open"),
    GaugeSeries("process_max_fds", "File descriptors allowed"),
    CounterSeries("python_gc_objects_collected_total", "Objects freed by the collector", (_GENERATION,)),
    CounterSeries("python_gc_objects_uncollectable_total", "Objects the collector gave up", (_GENERATION,)),
    CounterSeries("python_gc_collections_total", "Runs of the collector", (_GENERATION,)),
    GaugeSeries(
        "python_info",
        "The interpreter",
        tuple(map(Label, ("implementation", "major", "minor", "patchlevel", "version"))),
    ),
)
"""What prometheus_client's own collectors export; listed so that dashboards can be checked against it."""
