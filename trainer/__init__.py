"""The `tocsin` trainer."""
