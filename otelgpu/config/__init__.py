"""The settings: YAML file, environment and flags, every problem at once and with its place."""

from otelgpu.config.given import Flag
from otelgpu.config.lesser import Dcgm, Embed, Log, Mig, Simulated, Suspended
from otelgpu.config.load import load
from otelgpu.config.owning import Jobs, Kubernetes, Limits, Processes
from otelgpu.config.picks import Pick
from otelgpu.config.serving import Server
from otelgpu.config.settings import Config, Otlp, Sampling
from otelgpu.config.values import Address, SourceChoice, parse_address

__all__ = [
    "Address",
    "Config",
    "Dcgm",
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
    "Suspended",
    "load",
    "parse_address",
]
