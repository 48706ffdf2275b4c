// Host code: the plain C boundary between the compiled kernels and the code that calls them.
// Kernels are compiled without torch headers; the extension's binding is compiled without CUTLASS.
#pragma once

#include <cstdint>

extern "C" {

// D[m, n] = epilogue(A[m, k] B[k, n]). A and D are row-major, B is column-major; leading dimensions in elements.
struct gemmill_scaled_mm_args {
  void const* a;
  void const* b;
  void* d;
  float const* a_scales;      // one value, or m where a_scale_per_row
  float const* b_scales;      // one value, or n where b_scale_per_column
  void const* bias;           // n values of D's type, or null for none
  int32_t const* azp_adj;     // n values; null outside the azp epilogues
  int32_t const* azp;         // m values; null where the zero point is already in azp_adj
  void* workspace;            // as many bytes as the variant's workspace function asks for
  int64_t lda, ldb, ldd;
  int32_t m, n, k;
  int32_t a_scale_per_row;
  int32_t b_scale_per_column;
  int32_t raster_order;       // 0 automatic, 1 along M, 2 along N, of the kernel as compiled
  int32_t swizzle;
  int32_t splits;             // slices of K; 0 lets the kernel choose
  int32_t device;
  int32_t sm_count;
  int32_t programmatic_launch;  // whether the kernel may start while its predecessor drains
  int32_t constant_weights;     // whether b may be read before the predecessor has ended
  // Of scales in groups along K, in elements: a_scales are [m, k/g], b_scales [k/g, n/g] (blocks) or [k/g, n] (rows), sizes
  // rounded up.
  int64_t a_scale_stride_m;  // from one row of A to the next
  int64_t a_scale_stride_k;  // from one group along K to the next
  int64_t b_scale_stride_n;  // from one block of columns to the next; for rows, from one column to the next
  int64_t b_scale_stride_k;
};

// Enqueues one GEMM. Returns 0, a cudaError_t, or GEMMILL_CANNOT_IMPLEMENT; never throws, never synchronises.
typedef int32_t (*gemmill_scaled_mm_launch)(gemmill_scaled_mm_args const*, void* stream);
// Bytes of workspace that the same arguments need.
typedef int64_t (*gemmill_scaled_mm_workspace)(gemmill_scaled_mm_args const*);

enum { GEMMILL_CANNOT_IMPLEMENT = -1 };

// One compiled kernel of an extension; several variants may launch it with different settings.
struct gemmill_kernel {
  char const* symbol;
  gemmill_scaled_mm_launch launch;
  gemmill_scaled_mm_workspace workspace;
};

}  // extern "C"
