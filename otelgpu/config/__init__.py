"""The settings: YAML file, environment and flags, every problem at once and with its place."""

from otelgpu.config.given import Flag
from otelgpu.config.load import load
from otelgpu.config.owning import Jobs, Kubernetes, Limits, Processes
from otelgpu.config.settings import Config, Embed, Log, Mig, Otlp, Sampling, Server, Simulated
from otelgpu.config.values import Address, Pick, SourceChoice, parse_address

__all__ = [
    "Address",
    "Config",
    "Embed",
    "Flag",
    "Jobs",
    "Kubernetes",
    "Limits",
    "Log",
    "Mig",
    "Otlp",
    "Pick",
    "Processes",
    "Sampling",
    "Server",
    "Simulated",
    "SourceChoice",
    "load",
    "parse_address",
]
