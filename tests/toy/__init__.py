"""A family that nobody wants: pages of numbers packed to 4 bits each. All that gemmill knows of it lies in this folder."""

NAME = "toy"
