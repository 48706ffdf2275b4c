// Block-scaled codes on Hopper, small M, K a multiple of 128: the computation of skinny_mm.cuh, with prefetched loads.
//
// A warp loads its operands some steps ahead, by cp.async into stages of its own: no register waits for memory, and no warp for another.
// Rows begin at multiples of 16 bytes. A step is 128 columns, of which each of the four lanes of a row has 32.
#pragma once

#include "blockscaled/few_rows/skinny_mm.cuh"
#include "blockscaled/shared/shared_pieces.cuh"

namespace gemmill::blockscaled {

// `bytes` of them, or zeros.
template <int bytes>
__device__ void copy_ahead(uint32_t to, void const* from, bool inside) {
  int const size = inside ? bytes : 0;
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(size) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(bytes), "r"(size) : "memory");
  }
}

// `A` is a piece too, or Plain: numbers of 16 bits as they are. The rest after the last product is SkinnyMm's.
template <class A, class B, class Output_, int tile_m, int warps, int stages, Factors factors, int ctas>
struct SkinnyCpAsyncMm : SkinnyMm<A, B, typename B::X, Output_, tile_m, warps, factors, ctas> {
  using Base = SkinnyMm<A, B, typename B::X, Output_, tile_m, warps, factors, ctas>;
  using typename Base::Params, typename Base::Sums, typename Base::X;
  using Base::kEights, Base::kPitch, Base::kRows, Base::kStep;

  static constexpr bool kCodes = !std::is_same_v<A, Plain>;  // whether A has scales too
  static constexpr int kRowsBytes = B::kCodeBytes + B::kScaleBytes;  // of eight rows of B
  static constexpr int kPartBytes = 32 * 16 + 16;  // of 16 bytes of each lane of numbers of A, and a step of banks
  static constexpr int kTokenBytes = kCodes ? kRowsBytes : 4 * kPartBytes;  // of eight rows of A
  static constexpr int kStageBytes = (8 * kRowsBytes + kEights * kTokenBytes + 127) / 128 * 128;
  static constexpr int kRingBytes = warps * stages * kStageBytes;
  static constexpr int kSharedBytes = kRingBytes > Base::kSharedBytes ? kRingBytes : Base::kSharedBytes;

  static_assert(stages >= 2, "a stage is filled while another is read");
  static_assert(!kCodes || (std::is_same_v<A, B> && !B::kBehind), "both operands agree on a lane's columns");

  // A lane's loads: codes of its first row, and scales; rows are `stride` bytes apart, eight at a time. Eight lanes load codes of 128
  // bytes to a step, so that a request has whole lines; four load fewer.
  struct Source {
    char const* codes;
    char const* scales;
    int64_t stride;
  };
  struct Sources {
    Source a, b;
    int rows_of_a, rows_of_b;  // of a tile, perhaps more
  };
  static constexpr int kLanes = B::kCodeBytes == 1024 ? 8 : 4;  // of a row of codes

  __device__ static void run(Params const& params, char* shared) {
    int const rank = cute::block_rank_in_cluster(), splits = cute::cluster_shape().x;
    unsigned const tile = blockIdx.x / static_cast<unsigned>(splits);
    unsigned const tiles_m = (static_cast<unsigned>(params.m) - 1) / tile_m + 1;  // neighbours share weights
    int const m0 = static_cast<int>(tile % tiles_m) * tile_m, n0 = static_cast<int>(tile / tiles_m) * kRows;
    int const steps = params.k / kStep;
    int const first = static_cast<int>(int64_t{steps} * rank / splits), end = static_cast<int>(int64_t{steps} * (rank + 1) / splits);
    int const warp = threadIdx.x / 32;

    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();
    Sources const from = sources(params, m0, n0);
    uint32_t const own = cute::cast_smem_ptr_to_uint(shared) + warp * stages * kStageBytes, last = own + (stages - 1) * kStageBytes;
    int next = first + warp;
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < stages - 1; ++s, next += warps) ask(from, own + s * kStageBytes, next, next < end);
    Sums sums{};
    uint32_t now = own, free = last;
    for (int step = first + warp; step < end; step += warps, next += warps) {
      asm volatile("cp.async.wait_group %0;" ::"n"(stages - 2) : "memory");
      __syncwarp();
      ask(from, free, next, next < end);
      multiply(sums, now);
      free = now;
      now = now == last ? own : now + kStageBytes;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();  // sums lie where stages were
    auto* const buffer = reinterpret_cast<float*>(shared);
    put_sums<kPitch>(sums, buffer + warp * tile_m * kPitch);
    Base::store(params, buffer, rank, splits, n0, m0);
  }

  __device__ static Sources sources(Params const& params, int m0, int n0) {
    int const row = threadIdx.x % 32 / 4;
    Sources x;
    x.b = source_of_codes(params.b, params.b_sf, params.ldb, n0, params.k);
    if constexpr (kCodes) {
      x.a = source_of_codes(params.a, params.a_sf, params.lda, m0, params.k);
    } else {
      x.a = Source{params.a + ((m0 + row) * params.lda + threadIdx.x % 4 * 8) * 2, nullptr, 16 * params.lda};
    }
    x.rows_of_a = params.m - m0, x.rows_of_b = params.n - n0;
    return x;
  }

  // Of swizzled scales: a tile begins at a multiple of 64 rows, so all its rows are in one atom of 128.
  __device__ static Source source_of_codes(char const* data, uint8_t const* sf, int64_t stride, int row0, int k) {
    int const lane = threadIdx.x % 32, place = lane % 4, row = row0 + lane / 4;
    Source x;
    x.stride = 8 * stride;
    x.codes = data + (row0 + lane / kLanes) * stride + lane % kLanes * (B::kCodeBytes == 768 ? 24 : 16);
    constexpr int kPlaces = 128 / B::kGroup / 4;  // of lanes whose scales lie in one word: 2 of nvfp4
    if constexpr (B::kBehind) {
      x.scales = data + row * stride + int64_t{k} * B::kCodeBits / 8 + (kPlaces == 2 ? place / 2 * 4 : 0);
    } else {
      int64_t const atoms = (k / B::kGroup + 3) / 4;
      int64_t const atom = row / 128 * atoms + (kPlaces == 2 ? place / 2 : 0);
      x.scales = reinterpret_cast<char const*>(sf) + atom * 512 + row % 32 * 16 + row % 128 / 32 * 4;
    }
    return x;
  }

  // Eight rows: from row 8 i of a tile on, of which `rows` are left.
  __device__ static void ask_codes(Source const& from, uint32_t to, int i, int step, int rows) {
    int const lane = threadIdx.x % 32;
    char const* const codes = from.codes + i * from.stride;
    bool const inside = 8 * i + lane / 4 < rows;
    if constexpr (B::kCodeBytes == 512) {
      copy_ahead<16>(to + lane * 16, codes + step * 64, inside);
    } else if constexpr (B::kCodeBytes == 1024) {
      uint32_t const at = to + lane % 8 / 4 * 512 + (lane / 8 * 4 + lane % 4) * 16;  // where lane 4 row + place reads
      copy_ahead<16>(at, codes + step * 128, 8 * i + lane / 8 < rows);
      copy_ahead<16>(at + 256, codes + from.stride / 2 + step * 128, 8 * i + 4 + lane / 8 < rows);
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < 3; ++j) copy_ahead<8>(to + 256 * j + lane * 8, codes + step * 96 + 8 * j, inside);
    }
    constexpr int kOfStep = 128 / B::kGroup;  // bytes of scales
    char const* const scales =
        B::kBehind ? from.scales + i * from.stride + step * kOfStep : from.scales + (i % 4 * 128 + i / 4 * 4) + step * (kOfStep / 4 * 512);
    copy_ahead<4>(to + B::kCodeBytes + lane * 4, scales, inside);
  }

  // A stage, in a group of copies of its own, which is empty past the last.
  __device__ static void ask(Sources const& from, uint32_t stage, int step, bool more) {
    if (more) {
      if (from.rows_of_b >= kRows) {  // the compiler need not ask
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 8; ++i) ask_codes(from.b, stage + i * kRowsBytes, i, step, kRows);
      } else {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 8; ++i) ask_codes(from.b, stage + i * kRowsBytes, i, step, from.rows_of_b);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int e = 0; e < kEights; ++e) ask_rows(from.a, stage + 8 * kRowsBytes + e * kTokenBytes, e, step, from.rows_of_a);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  // For numbers four lanes copy 64 bytes of a row at a time, to the lanes that multiply them.
  __device__ static void ask_rows(Source const& from, uint32_t to, int e, int step, int rows) {
    if constexpr (kCodes) {
      ask_codes(from, to, e, step, rows);
    } else {
      int const lane = threadIdx.x % 32, q = lane % 4;
      bool const inside = 8 * e + lane / 4 < rows;
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < 4; ++j) {
        int const place = B::kSixteens ? 2 * (j % 2) + q / 2 : j, part = B::kSixteens ? j / 2 * 2 + q % 2 : q;
        copy_ahead<16>(to + part * kPartBytes + (lane / 4 * 4 + place) * 16, from.codes + e * from.stride + step * 256 + j * 64, inside);
      }
    }
  }

  __device__ static void multiply(Sums& sums, uint32_t stage) {
    int const lane = threadIdx.x % 32;
    uint32_t rows[kEights][16];
    CUTLASS_PRAGMA_UNROLL
    for (int e = 0; e < kEights; ++e) load_row(rows[e], stage + 8 * kRowsBytes + e * kTokenBytes);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      B upper, lower;
      uint32_t const at = stage + 2 * i * kRowsBytes;
      upper.load(at, at + B::kCodeBytes, lane);
      lower.load(at + kRowsBytes, at + kRowsBytes + B::kCodeBytes, lane);
      multiply_eight<0>(sums[i], upper, lower, rows);
      multiply_eight<1>(sums[i], upper, lower, rows);
      multiply_eight<2>(sums[i], upper, lower, rows);
      multiply_eight<3>(sums[i], upper, lower, rows);
    }
  }

  __device__ static void load_row(uint32_t (&x)[16], uint32_t at) {
    int const lane = threadIdx.x % 32;
    if constexpr (kCodes) {
      A piece;
      piece.load(at, at + A::kCodeBytes, lane);
      put_eight<0>(piece, x), put_eight<1>(piece, x), put_eight<2>(piece, x), put_eight<3>(piece, x);
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        uint4 const part = load_shared_16(at + i * kPartBytes + lane * 16);
        x[4 * i] = part.x, x[4 * i + 1] = part.y, x[4 * i + 2] = part.z, x[4 * i + 3] = part.w;
      }
    }
  }
  template <int eight>
  __device__ static void put_eight(A const& piece, uint32_t (&x)[16]) {
    uint32_t pairs[4];
    piece.template eight<eight>(pairs);
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < 4; ++j) x[4 * eight + j] = pairs[j];
  }

  // Two steps of the tensor core, 16 columns each, of 16 rows of B.
  template <int eight>
  __device__ static void multiply_eight(float (&sums)[kEights][4], B const& upper, B const& lower, uint32_t const (&rows)[kEights][16]) {
    uint32_t u[4], l[4];
    upper.template eight<eight>(u);
    lower.template eight<eight>(l);
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step < 2; ++step) {
      uint32_t const a[4] = {u[2 * step], l[2 * step], u[2 * step + 1], l[2 * step + 1]};
      CUTLASS_PRAGMA_UNROLL
      for (int e = 0; e < kEights; ++e) multiply_warp<X>(sums[e], a, rows[e][4 * eight + 2 * step], rows[e][4 * eight + 2 * step + 1]);
    }
  }
};

}  // namespace gemmill::blockscaled
