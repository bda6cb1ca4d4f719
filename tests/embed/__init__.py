"""otelgpu inside other people's processes."""
