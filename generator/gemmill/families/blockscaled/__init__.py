"""GEMMs whose weights, or both operands, are in a block-scaled format."""

NAME = "blockscaled"
