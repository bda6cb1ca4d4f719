"""`otelgpu compare A B`: how two pages of metrics differ; for whoever replaces dcgm-exporter and runs both for a while.

Rule 1: one way: fetch -> page -> difference -> told; command.py connects them.
Rule 2: loaded by this command alone.
"""
