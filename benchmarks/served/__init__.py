"""A serving engine with gemmill and without it: models, the process of one engine, and how two engines' outputs agree."""
