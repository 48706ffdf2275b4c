// Block-scaled quantisation, plain or after an activation of a row: codes of 4, 6 or 8 bits and a scale of one byte for each group of 16
// or 32. A thread holds runs of 16 consecutive elements, so a group is one lane's or two neighbours'. Scales are swizzled, in tiles of
// 128 rows x 4 with zeros as padding, or plain. Rows sorted by expert have tiles of their expert's own.
#pragma once

#include "coding/activation.cuh"
#include "quant/block_code.cuh"
#include "quant/gelu_table.cuh"
#include "quant/launch.cuh"
#include "coding/memory.cuh"
#include "coding/reduce.cuh"

namespace gemmill::quant {

inline constexpr int kBlockQuantThreads = 128;

// Rows that a thread takes of large tensors, where instructions count and the GPU launches no more than one CTA in 1.2 ns. Where a run
// has few instructions, or they are not in pairs, two rows lose (H200, 2026-11-22).
template <class In, class Format, class Activation>
constexpr int most_rows() {
  bool const is_nvfp4 = std::is_same_v<Format, NvFp4> || std::is_same_v<Format, VllmNvFp4>, is_paired = std::is_same_v<typename RunOf<Format, In>::Type, PairedRun<In>>;
  if (std::is_same_v<Activation, Identity>) return is_nvfp4 || is_paired ? 2 : 1;
  return std::is_same_v<Activation, Modulate> || (is_nvfp4 && std::is_same_v<Activation, Silu>) ? 2 : 1;
}

inline constexpr int kTileRows = 128, kTileScales = 4;

// Whether a table gives GELU where there is much to do.
template <class In, class Activation>
inline constexpr bool kIsTabulated = false;
template <class In, class Gelu>
inline constexpr bool kIsTabulated<In, Only<Gelu>> = kHasTable<In, Gelu>;

struct BlockQuantParams {
  void const* in;
  uint8_t* out;
  uint8_t* scales;
  float const* global_scale;
  void const* mod_scale;
  void const* mod_shift;
  int32_t const* expert_offsets;
  int32_t const* scale_offsets;
  int64_t hidden, in_stride, out_stride, scale_stride;  // the last of plain scales
  int64_t mod_scale_stride, mod_shift_stride;
  int64_t first_row, scale_rows;         // experts: of the slice; of all scales
  uint32_t rows, groups, padded_groups;  // groups of a row, and those groups plus the ones with zeros as codes and scales
  uint32_t tiles, experts;               // tiles along a row, 0: scales are plain
  uint32_t all_runs, ctas_of_runs, ctas_of_padding;  // the latter pad the rows of the last tiles
  FastDivision runs_of_row;
  bool rounds_up, rounds_to_input;
};

// The scales of one matrix, or of one expert's rows.
struct ScalesOf {
  uint8_t* scales;
  uint32_t rows;
};

// Null where they would not lie within the tensor.
__device__ __forceinline__ ScalesOf scales_of(BlockQuantParams const& p, int32_t expert) {
  uint32_t const rows = static_cast<uint32_t>(p.expert_offsets[expert + 1] - p.expert_offsets[expert]);
  int64_t const first = p.scale_offsets[expert], end = first + (int64_t{rows} + kTileRows - 1) / kTileRows * kTileRows;
  bool const inside = first >= 0 && end <= p.scale_rows;
  return {inside ? p.scales + first * p.tiles * kTileScales : nullptr, rows};
}

// The zeros of a row's codes beyond its groups.
template <class Format>
__device__ __forceinline__ void pad_codes(BlockQuantParams const& p, uint8_t* codes) {
  constexpr uint32_t kBytes = Format::kGroup * Format::kBits / 8;
#pragma unroll 1
  for (uint32_t i = p.groups * kBytes; i < p.padded_groups * kBytes; ++i) codes[i] = 0;
}

// The zeros of its scales: up to the end of the last tile, or of the row.
__device__ __forceinline__ void pad_groups(BlockQuantParams const& p, uint8_t* scales, uint32_t row) {
  uint32_t const most = p.tiles == 0 ? p.padded_groups : p.tiles * kTileScales;
#pragma unroll 1
  for (uint32_t group = p.groups; group < most; ++group) scales[p.tiles == 0 ? group : swizzled_offset(row, group, p.tiles)] = 0;
}

// The zeros of rows beyond the last, four scales at once where they may be: a thread has those of a tile that lie in 16 bytes.
__device__ __forceinline__ void pad_rows(ScalesOf of, uint32_t tiles, uint32_t index) {
  uint32_t const tile = index / 32, first = of.rows / kTileRows * kTileRows + index % 32;
  if (tile >= tiles || of.rows % kTileRows == 0) return;
#pragma unroll
  for (uint32_t row = first; row < first + kTileRows; row += 32) {
    if (row < of.rows) continue;
    uint8_t* const scales = of.scales + swizzled_offset(row, tile * kTileScales, tiles);
    if (reinterpret_cast<uintptr_t>(of.scales) % kTileScales == 0) {
      *reinterpret_cast<uint32_t*>(scales) = 0;
    } else {
      for (int i = 0; i < kTileScales; ++i) scales[i] = 0;
    }
  }
}

// The work of the CTAs behind those of runs: those of one matrix, or of each expert, follow one another.
template <bool kExperts>
__device__ __forceinline__ void pad_last_tiles(BlockQuantParams const& p, uint32_t cta) {
  if constexpr (kExperts) {
    uint32_t const of_expert = p.ctas_of_padding / p.experts;
    ScalesOf const of = scales_of(p, static_cast<int32_t>(cta / of_expert));
    if (of.scales) pad_rows(of, p.tiles, cta % of_expert * blockDim.x + threadIdx.x);
  } else {
    pad_rows({p.scales, p.rows}, p.tiles, cta * blockDim.x + threadIdx.x);
  }
}

template <bool kAligned, class In>
__device__ __forceinline__ void load_run(In const* row, int64_t column, int64_t hidden, uint32_t (&words)[kRun / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint4 const chunk = load_chunk<kAligned, false>(row, column + half * (kRun / 2), hidden);
    words[4 * half] = chunk.x, words[4 * half + 1] = chunk.y, words[4 * half + 2] = chunk.z, words[4 * half + 3] = chunk.w;
  }
}

// The codes of a run. Those of 6 bits take 12 bytes: two neighbouring lanes, who both come here, write 24 in words of 8.
template <bool kAligned, int kWords>
__device__ __forceinline__ void store_run(uint8_t* codes, uint32_t const (&words)[kWords], bool inside) {
  uint32_t const next = kWords == 3 ? __shfl_down_sync(0xffffffffu, words[0], 1) : 0;
  if (!inside) return;
  if constexpr (!kAligned) {
#pragma unroll
    for (int i = 0; i < 4 * kWords; ++i) codes[i] = static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
  } else if constexpr (kWords == 2) {
    *reinterpret_cast<uint2*>(codes) = make_uint2(words[0], words[1]);
  } else if constexpr (kWords == 4) {
    *reinterpret_cast<uint4*>(codes) = make_uint4(words[0], words[1], words[2], words[3]);
  } else if (threadIdx.x % 2 == 0) {
    *reinterpret_cast<uint2*>(codes) = make_uint2(words[0], words[1]);
    *reinterpret_cast<uint2*>(codes + 8) = make_uint2(words[2], next);
  } else {
    *reinterpret_cast<uint2*>(codes + 4) = make_uint2(words[1], words[2]);
  }
}

template <class In>
__device__ __forceinline__ void unpack_run(uint32_t const (&words)[kRun / 2], float (&values)[kRun], In kind) {
#pragma unroll
  for (int i = 0; i < kRun / 2; ++i) unpack_pair(words[i], values[2 * i], values[2 * i + 1], kind);
}

// One loaded run of a row, and the further inputs of its activation.
template <class Activation, bool kAligned, class In>
struct LoadedRun {
  static constexpr bool kModulates = std::is_same_v<Activation, Modulate>, kIsRaw = std::is_same_v<Activation, Identity>;
  static constexpr int kOperands = kModulates ? 3 : Activation::kGated ? 2 : 1;
  uint32_t words[kOperands][kRun / 2];

  __device__ __forceinline__ void load(BlockQuantParams const& p, uint32_t row, uint32_t column) {
    In const* const in = static_cast<In const*>(p.in) + row * p.in_stride;
    load_run<kAligned>(in, column, p.hidden, words[0]);
    if constexpr (Activation::kGated) load_run<kAligned>(in + p.hidden, column, p.hidden, words[1]);
    if constexpr (kModulates) {
      load_run<kAligned>(static_cast<In const*>(p.mod_scale) + row * p.mod_scale_stride, column, p.hidden, words[1]);
      load_run<kAligned>(static_cast<In const*>(p.mod_shift) + row * p.mod_shift_stride, column, p.hidden, words[2]);
    }
  }

  // The values to code. Table: of a GELU, or none. `rounds`: values without a gate round to In first, GELU as torch's.
  template <class Format, class Table>
  __device__ __forceinline__ auto run(Table const* table, bool rounds) {
    if constexpr (kIsRaw) {
      return RunOf<Format, In>::Type::of_raw(words[0], Largest::of_numbers<Format, In>(words[0]), In{});
    } else {
      float values[kOperands][kRun];
#pragma unroll
      for (int i = 0; i < kOperands; ++i) unpack_run(words[i], values[i], In{});
      if constexpr (Activation::kGated) {
        if constexpr (kIsVllms<Format>) {
          gate_and_multiply_approximately<In>(values[0], values[1]);
        } else {
          gate_and_multiply<Activation>(values[0], values[1]);
        }
      } else if constexpr (!std::is_same_v<Table, NoTable>) {
#pragma unroll
        for (int i = 0; i < kRun / 2; ++i) table->activate(words[0][i], values[0][2 * i], values[0][2 * i + 1]);
      } else {
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
          if constexpr (kModulates) {
            values[0][i] = Modulate::of(values[0][i], values[1][i], values[2][i]);
          } else {
            values[0][i] = Activation::of(values[0][i], rounds);
          }
        }
      }
      if constexpr (!Activation::kGated) {
        if (rounds) round_to<In>(values[0]);
      }
      return Run::of_values<Format>(values[0]);
    }
  }
};

// A run of each of kRows rows, of the same columns: so places are found once. The compiler puts the second's loads behind the first's
// branch for NaN. One branch for both, behind all loads, is slower by 2 to 5 % (H200, 2026-11-22).
template <class In, class Format, class Activation, bool kExperts, bool kAligned, int kRows, class Table>
__device__ __forceinline__ void quantise_runs(BlockQuantParams const& p, uint32_t mine, Table const* table) {
  constexpr int kLanes = Format::kGroup / kRun, kWords = Format::kBits * kRun / 32;
  uint32_t const index = min(mine, p.all_runs - 1);
  uint32_t const rows = p.runs_of_row(index), column = (index - rows * p.runs_of_row.divisor) * kRun, first_row = rows * kRows;
  LoadedRun<Activation, kAligned, In> loaded[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) loaded[i].load(p, kRows == 1 ? first_row : min(first_row + i, p.rows - 1), column);
  int32_t const expert = kExperts ? expert_of(p.expert_offsets, static_cast<int32_t>(p.experts), p.first_row + first_row) : 0;
  float const global_scale = Format::kHasGlobalScale ? usable_global_scale(p.global_scale[max(expert, 0)]) : 1.0f;
  uint32_t const group = column / Format::kGroup;
  bool const is_last = group + 1 == p.groups;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    uint32_t const row = first_row + i;
    auto const run = loaded[i].template run<Format>(table, p.rounds_to_input);
    auto const scale = Format::Scale::of(reduce_lanes<kLanes>(run.amax, Max{}), global_scale, p.rounds_up);
    uint32_t codes[kWords];
    Format::encode(run, scale, global_scale, codes);
    if (kExperts && expert < 0) {
#pragma unroll
      for (uint32_t& word : codes) word = 0;
    }
    bool const inside = mine < p.all_runs && (kRows == 1 || row < p.rows);
    uint8_t* const codes_of_row = p.out + row * p.out_stride;
    store_run<kAligned>(codes_of_row + column / 8 * Format::kBits, codes, inside);
    if (!inside || threadIdx.x % kLanes != 0) continue;
    if (is_last) pad_codes<Format>(p, codes_of_row);
    if constexpr (kExperts) {
      uint8_t* const scales = expert < 0 ? nullptr : scales_of(p, expert).scales;
      if (scales == nullptr) return;
      uint32_t const row_of_expert = static_cast<uint32_t>(p.first_row + row - p.expert_offsets[expert]);
      scales[swizzled_offset(row_of_expert, group, p.tiles)] = scale.byte;
      if (is_last) pad_groups(p, scales, row_of_expert);
    } else if (p.tiles == 0) {
      uint8_t* const scales = p.scales + row * p.scale_stride;
      scales[group] = scale.byte;
      if (is_last) pad_groups(p, scales, row);
    } else {
      p.scales[swizzled_offset<uint32_t>(first_row, group, p.tiles) + i * 16] = scale.byte;  // whose row is a multiple of kRows
      if (is_last) pad_groups(p, p.scales, row);
    }
  }
}

template <class Variant, class In, class Format, class Activation, bool kExperts, bool kAligned, int kRows>
__global__ void __launch_bounds__(kBlockQuantThreads) block_quant_kernel(__grid_constant__ BlockQuantParams const p) {
  wait_for_predecessor();
  if (blockIdx.x >= p.ctas_of_runs) return pad_last_tiles<kExperts>(p, blockIdx.x - p.ctas_of_runs);
  uint32_t const mine = blockIdx.x * blockDim.x + threadIdx.x;
  quantise_runs<In, Format, Activation, kExperts, kAligned, kRows, NoTable>(p, mine, nullptr);
}

// CTAs that stay, so that each fills its table once. Two of 512 threads are slower by 4 % (H200, 2026-11-23).
inline constexpr int kTabulatedBlockThreads = 1024, kTabulatedBlockCtasOfSm = 1, kTabulatedRows = 2;

template <class Variant, class In, class Format, class Gelu>
__global__ void __launch_bounds__(kTabulatedBlockThreads, kTabulatedBlockCtasOfSm)
    tabulated_block_quant_kernel(__grid_constant__ BlockQuantParams const p) {
  __shared__ GeluTable<Gelu> table;
  table.fill(p.rounds_to_input);
  __syncthreads();
  wait_for_predecessor();
  for (uint32_t cta = blockIdx.x; cta < p.ctas_of_runs + p.ctas_of_padding; cta += gridDim.x) {
    if (cta < p.ctas_of_runs) {
      quantise_runs<In, Format, Only<Gelu>, false, true, kTabulatedRows>(p, cta * blockDim.x + threadIdx.x, &table);
    } else {
      pad_last_tiles<false>(p, cta - p.ctas_of_runs);
    }
  }
}

// Sets the consequences of a thread's number of rows and a CTA's number of threads. Returns how many CTAs there are.
template <bool kExperts>
int64_t divide_work(BlockQuantParams& p, int rows_of_thread, int threads) {
  p.all_runs = static_cast<uint32_t>(ceil_divide(p.rows, rows_of_thread)) * p.runs_of_row.divisor;
  int64_t const of_tiles = ceil_divide(int64_t{p.tiles} * 32, threads);
  int64_t const padding = kExperts ? (p.first_row == 0 ? p.experts * of_tiles : 0) : p.rows % kTileRows == 0 ? 0 : of_tiles;
  p.ctas_of_runs = static_cast<uint32_t>(ceil_divide(p.all_runs, threads));
  p.ctas_of_padding = static_cast<uint32_t>(padding);
  return p.ctas_of_runs + padding;
}

template <class Variant, class In, class Format, class Activation, bool kExperts, bool kAligned, int kRows>
int32_t launch_block_quant(BlockQuantParams p, gemmill_launch const& how) {
  int64_t const ctas = divide_work<kExperts>(p, kRows, kBlockQuantThreads);
  return launch<&block_quant_kernel<Variant, In, Format, Activation, kExperts, kAligned, kRows>>(p, ctas, kBlockQuantThreads, how);
}

template <class Variant, class In, class Format, class Gelu>
int32_t launch_tabulated_block_quant(BlockQuantParams p, gemmill_launch const& how) {
  int64_t const ctas = divide_work<false>(p, kTabulatedRows, kTabulatedBlockThreads), stay = int64_t{how.sm_count} * kTabulatedBlockCtasOfSm;
  return launch<&tabulated_block_quant_kernel<Variant, In, Format, Gelu>>(p, ctas < stay ? ctas : stay, kTabulatedBlockThreads, how);
}

// A slice with aligned rows.
template <class Variant, class In, class Format, class Activation, bool kExperts>
int32_t launch_aligned_block_quant(BlockQuantParams const& p, gemmill_launch const& how) {
  int64_t const chunks = int64_t{p.rows} * p.runs_of_row.divisor * 2;
  if constexpr (kIsTabulated<In, Activation>) {
    if (is_large(2 * chunks, how.sm_count)) return launch_tabulated_block_quant<Variant, In, Format, typename Activation::Gelu>(p, how);
  }
  if (is_very_large(chunks, how.sm_count)) {
    return launch_block_quant<Variant, In, Format, Activation, kExperts, true, kExperts ? 1 : most_rows<In, Format, Activation>()>(p, how);
  }
  return launch_block_quant<Variant, In, Format, Activation, kExperts, true, 1>(p, how);
}

template <class In, int kBits>
bool block_rows_are_aligned(gemmill_quant_args const& x) {
  constexpr int64_t kBytesOfStore = kBits == 8 ? 16 : 8;
  return x.in_stride % 8 == 0 && is_aligned(x.in, 16) && x.out_stride % kBytesOfStore == 0 && is_aligned(x.out, kBytesOfStore) &&
         x.mod_scale_stride % 8 == 0 && is_aligned(x.mod_scale, 16) && x.mod_shift_stride % 8 == 0 && is_aligned(x.mod_shift, 16);
}

template <class Variant, class In, class Format, class Activation, bool kExperts>
int32_t block_quant(gemmill_quant_args const& x, gemmill_launch const& how) {
  if (x.rows == 0 || x.hidden == 0) return cudaSuccess;
  if (x.hidden % Format::kGroup != 0 || x.padded % Format::kGroup != 0) return GEMMILL_CANNOT_IMPLEMENT;
  int64_t const runs_of_row = x.hidden / kRun, padded_groups = x.padded / Format::kGroup;
  bool const aligned = block_rows_are_aligned<In, Format::kBits>(x);
  int64_t const tiles = x.is_swizzled ? ceil_divide(padded_groups, kTileScales) : 0;
  // Of whole tiles, whose offsets have 32 bits.
  int64_t const slice = kMostChunks / 2 / (x.padded / kRun) / kTileRows * kTileRows;
  if (slice == 0) return GEMMILL_CANNOT_IMPLEMENT;
  for (int64_t row = 0; row < x.rows; row += slice) {
    int64_t const rows = x.rows - row < slice ? x.rows - row : slice;
    int64_t const before = kExperts ? 0 : row * (x.is_swizzled ? tiles * kTileScales : x.scales_stride);
    BlockQuantParams const p{
        static_cast<In const*>(x.in) + row * x.in_stride,
        static_cast<uint8_t*>(x.out) + row * x.out_stride,
        static_cast<uint8_t*>(x.scales) + before,
        x.global_scale,
        static_cast<In const*>(x.mod_scale) + row * x.mod_scale_stride,
        static_cast<In const*>(x.mod_shift) + row * x.mod_shift_stride,
        x.expert_offsets, x.scale_offsets,
        x.hidden, x.in_stride, x.out_stride, x.scales_stride,
        x.mod_scale_stride, x.mod_shift_stride,
        row, x.scale_rows,
        static_cast<uint32_t>(rows), static_cast<uint32_t>(x.hidden / Format::kGroup), static_cast<uint32_t>(padded_groups),
        static_cast<uint32_t>(tiles), static_cast<uint32_t>(x.experts),
        0, 0, 0,
        FastDivision(static_cast<uint32_t>(runs_of_row)),
        x.rounds_up != 0, x.rounds_to_input != 0,
    };
    int32_t const error = aligned ? launch_aligned_block_quant<Variant, In, Format, Activation, kExperts>(p, how)
                                  : launch_block_quant<Variant, In, Format, Activation, kExperts, false, 1>(p, how);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace gemmill::quant
