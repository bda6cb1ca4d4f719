"""The way out: what a snapshot looks like to Prometheus and to OTLP."""
