"""One file on a machine and a build: numerics, a sanitizer's pass and ten times, for an issue (`gemmill verify --report`)."""
