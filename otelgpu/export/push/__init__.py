"""OTLP push: from a collection to bytes, and from bytes to a collector."""
