"""OTLP push, from what the driver says to what a collector takes."""
