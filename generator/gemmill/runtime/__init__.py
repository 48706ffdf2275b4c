"""The part that users import: loading builds, choosing variants, the torch ops."""
