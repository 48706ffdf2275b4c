"""Run-time values that travel into a kernel together."""

# mypy: ignore-errors
from dataclasses import fields

import cutlass
from cutlass.base_dsl.utils.mlir_value_tree import extract_mlir_attributes


class Packed:
    """A base for dataclasses of run-time values: the DSL takes them apart at a boundary and puts them together again."""

    def __extract_mlir_values__(self):
        return [value for field in fields(self) for value in cutlass.extract_mlir_values(getattr(self, field.name))]

    def __extract_mlir_attributes__(self):
        return [value for field in fields(self) for value in extract_mlir_attributes(getattr(self, field.name))]

    def __new_from_mlir_values__(self, values):
        values, parts = list(values), {}
        for field in fields(self):
            old = getattr(self, field.name)
            count = len(cutlass.extract_mlir_values(old))
            parts[field.name] = cutlass.new_from_mlir_values(old, values[:count])
            values = values[count:]
        return type(self)(**parts)
