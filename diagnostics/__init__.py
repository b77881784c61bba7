"""The `tocsin` diagnostics."""
