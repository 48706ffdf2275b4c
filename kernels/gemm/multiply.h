// GEMMs that another family's op is made of.
#pragma once

#include "extension/family.h"
#include "gemm/grouped_args.h"

namespace gemmill::moe {

// Types of operands and result, by torch's numbers, and the kind of scales: 0 for those of channels or none, 1 for those of 1 x 128 and
// 128 x 128, 2 for those of 1 x 32 and 32 x 32.
struct Multiplied {
  int32_t dtype, out_dtype, groups;
  int64_t rows = 0;  // that the host expects, where they are fewer than the call has room for
};

// Enqueues the chosen variant for rows in order, without alpha and bias, on the stream of `of`. All operands begin at multiples of 16
// bytes, and so do their rows. Throws std::runtime_error where the build has none.
void multiply(gemmill_grouped_mm_args const& args, Multiplied const& what, Chosen const& of);

}  // namespace gemmill::moe

namespace gemmill {

// Scales in groups of 1 x 128 and 128 x 128, of 1 x 32 and 32 x 32, or of 1 x 32 of both, in place of those of rows and columns. Mirrors
// the places in gemmill.vocab.SCALE_GROUPS.
enum ProductGroups : int32_t { kNoGroups = -1, kBlocksOf128 = 0, kBlocksOf32 = 4, kRowsOf32 = 5 };

// D[m, n] = a_scales b_scales (A B) in bf16, of codes. Fields are those of gemmill_scaled_mm_args.
struct Product {
  int32_t dtype;  // of A and B, by torch's number
  ProductGroups groups;
  void const *a, *b;
  void* d;
  Operand const &a_scales, &b_scales;
  int64_t lda, ldb, ldd;
  int32_t m, n, k;
};

// Enqueues the chosen variant on the stream of `of`, as the function above does.
void multiply(Product const& what, Chosen const& of);

}  // namespace gemmill
