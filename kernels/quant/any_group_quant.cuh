// Group quantisation with the size of groups as a run-time argument. A team of neighbouring lanes of one warp, a power of two of them,
// has a group: in registers, up to four 16-byte chunks a lane, where rows are aligned and groups are whole chunks; else the team reads
// its group twice, by chunks or by single elements.
#pragma once

#include "quant/group_quant.cuh"

namespace gemmill::quant {

struct AnyGroupQuantParams {
  GroupQuantParams groups;
  uint32_t group_size, team;  // elements, lanes
};

// Every lane of the warp takes part, and gets the largest of its team's values.
__device__ __forceinline__ float largest_of_team(float value, uint32_t team) {
  for (uint32_t offset = team / 2; offset > 0; offset /= 2) value = fmaxf(value, shuffle_xor(value, offset));
  return value;
}

template <class Out, int kElements>
__device__ __forceinline__ void encode_group(float const (&values)[kElements], float scale, float amax, uint32_t (&words)[kElements / 4]) {
  if constexpr (Out::kAsVllm) {
    encode_group_as_vllm<Out>(values, scale, words);
  } else {
    encode_scaled<Out>(values, scale, amax, words);
  }
}

// Where a group lies; teams beyond the last group hold it again, and write nothing.
template <class In>
struct GroupPlace {
  uint32_t row, group;
  bool inside;
  In const* in;
  uint8_t* out;

  __device__ __forceinline__ GroupPlace(AnyGroupQuantParams const& p, uint32_t index) : inside(index < p.groups.all_groups) {
    uint32_t const held = min(index, p.groups.all_groups - 1);
    row = p.groups.groups_per_row(held), group = held - row * p.groups.groups;
    in = static_cast<In const*>(p.groups.in) + row * p.groups.in_stride + int64_t{group} * p.group_size;
    out = p.groups.out + row * p.groups.out_stride + int64_t{group} * p.group_size;
  }
  __device__ __forceinline__ void store_scale(AnyGroupQuantParams const& p, float scale) const {
    if (inside) static_cast<float*>(p.groups.scales)[scale_index(p.groups, row, group)] = scale;
  }
};

// A team holds groups `first`, `first + step`, ..., kGroups of them, and a lane chunks `lane`, `lane + team`, ... of each.
template <class Variant, class In, class Out, ScaleFormat kFormat, int kGroups, int kChunks>
__global__ void __launch_bounds__(kGroupQuantThreads) any_group_quant_kernel(__grid_constant__ AnyGroupQuantParams const p) {
  constexpr int kElements = kChunkElements<In>;
  constexpr bool kSmall = kGroups * kChunks == 1;
  uint32_t const lane = threadIdx.x % p.team, step = blockDim.x / p.team, chunks_of_group = p.group_size / kElements;
  uint32_t const first = (blockIdx.x * (blockDim.x * kGroups) + threadIdx.x) / p.team;
  auto const holds = [&](int part) { return lane + part * p.team < chunks_of_group; };
  auto const column = [&](int part) { return (lane + part * p.team) * kElements; };

  wait_for_predecessor();
  uint4 chunks[kGroups][kChunks];
#pragma unroll
  for (int u = 0; u < kGroups; ++u) {
    GroupPlace<In> const at(p, first + u * step);
#pragma unroll
    for (int part = 0; part < kChunks; ++part) {
      chunks[u][part] = holds(part) ? load_chunk<true, kSmall>(at.in, column(part), p.group_size) : make_uint4(0, 0, 0, 0);
    }
  }
#pragma unroll
  for (int u = 0; u < kGroups; ++u) {
    GroupPlace<In> const at(p, first + u * step);
    RawExtent<In, float> of_lane;
#pragma unroll
    for (int part = 0; part < kChunks; ++part) of_lane.extend(chunks[u][part]);
    float const amax = largest_of_team(of_lane.value(), p.team);
    float const scale = group_scale<In, Out, kFormat>(p.groups, amax, __int_as_float(0x7f800000));
    if (lane == 0) at.store_scale(p, scale);
#pragma unroll
    for (int part = 0; part < kChunks; ++part) {
      float values[kElements];
      unpack<In>(chunks[u][part], values);
      uint32_t words[kElements / 4];
      encode_group<Out>(values, scale, amax, words);
      if (at.inside && holds(part)) store_codes<true, kElements>(at.out, column(part), p.group_size, words);
    }
  }
}

// A team holds one group, of any size, and reads it again for the codes. kAligned: by chunks, else by single elements.
template <class Variant, class In, class Out, ScaleFormat kFormat, bool kAligned>
__global__ void __launch_bounds__(kGroupQuantThreads) reread_group_quant_kernel(__grid_constant__ AnyGroupQuantParams const p) {
  constexpr int kElements = kAligned ? kChunkElements<In> : 1;
  uint32_t const lane = threadIdx.x % p.team;
  wait_for_predecessor();
  GroupPlace<In> const at(p, (blockIdx.x * blockDim.x + threadIdx.x) / p.team);
  float of_lane = 0.0f;
  if constexpr (kAligned) {
    RawExtent<In, float> extent;
    for (uint32_t i = lane * kElements; i < p.group_size; i += p.team * kElements) extent.extend(load_reused(at.in + i));
    of_lane = extent.value();
  } else {
    for (uint32_t i = lane; i < p.group_size; i += p.team) of_lane = fmaxf(of_lane, fabsf(static_cast<float>(at.in[i])));
  }
  float const amax = largest_of_team(of_lane, p.team);
  float const scale = group_scale<In, Out, kFormat>(p.groups, amax, __int_as_float(0x7f800000));
  if (lane == 0) at.store_scale(p, scale);
  if (!at.inside) return;
  for (uint32_t i = lane * kElements; i < p.group_size; i += p.team * kElements) {
    if constexpr (kAligned) {
      float values[kElements];
      unpack<In>(load_reused(at.in + i), values);
      uint32_t words[kElements / 4];
      encode_group<Out>(values, scale, amax, words);
      store_codes<true, kElements>(at.out, i, p.group_size, words);
    } else {
      float const values[4] = {static_cast<float>(at.in[i]), 0.0f, 0.0f, 0.0f};
      uint32_t words[1];
      encode_group<Out>(values, scale, amax, words);
      at.out[i] = static_cast<uint8_t>(words[0]);
    }
  }
}

// The smallest power of two of lanes that hold `parts`, a warp at most.
inline uint32_t team_of(int64_t parts) {
  uint32_t team = 1;
  while (team < 32 && team < parts) team *= 2;
  return team;
}

template <auto kernel>
int32_t launch_any_group_slice(AnyGroupQuantParams p, int64_t parts_of_group, int groups_of_team, gemmill_launch const& how) {
  p.team = team_of(parts_of_group);
  return launch<kernel>(p, ceil_divide(int64_t{p.groups.all_groups} * p.team, int64_t{kGroupQuantThreads} * groups_of_team),
                        kGroupQuantThreads, how);
}

template <class Variant, class In, class Out, ScaleFormat kFormat>
int32_t any_group_quant_slice(AnyGroupQuantParams const& p, bool aligned, gemmill_launch const& how) {
  constexpr int64_t kElements = kChunkElements<In>;
  if (!aligned) return launch_any_group_slice<&reread_group_quant_kernel<Variant, In, Out, kFormat, false>>(p, p.group_size, 1, how);
  int64_t const chunks = p.group_size / kElements, all_chunks = chunks * p.groups.all_groups;
  if (chunks > 4 * 32) return launch_any_group_slice<&reread_group_quant_kernel<Variant, In, Out, kFormat, true>>(p, chunks, 1, how);
  bool const small = all_chunks <= int64_t{how.sm_count} * kGroupQuantThreads * 4;
  int const least = chunks <= 32 ? 1 : chunks <= 64 ? 2 : 4;
  int const parts = small ? least : parts_of_group(4, static_cast<int>(chunks > 1 ? chunks : 2));
  int64_t const of_lane = ceil_divide(chunks, parts);
  return parts == 4   ? launch_any_group_slice<&any_group_quant_kernel<Variant, In, Out, kFormat, 1, 4>>(p, of_lane, 1, how)
         : parts == 2 ? launch_any_group_slice<&any_group_quant_kernel<Variant, In, Out, kFormat, 2, 2>>(p, of_lane, 2, how)
         : small      ? launch_any_group_slice<&any_group_quant_kernel<Variant, In, Out, kFormat, 1, 1>>(p, of_lane, 1, how)
                      : launch_any_group_slice<&any_group_quant_kernel<Variant, In, Out, kFormat, 4, 1>>(p, of_lane, 4, how);
}

template <class Variant, class In, class Out, ScaleFormat kFormat>
int32_t any_group_quant(gemmill_quant_args const& x, gemmill_launch const& how) {
  if (x.rows == 0 || x.hidden == 0) return cudaSuccess;
  int64_t const group = x.group_n;
  if (group < 1 || x.hidden % group != 0 || x.hidden > kMostChunks || x.azp != nullptr) return GEMMILL_CANNOT_IMPLEMENT;
  bool const aligned = group % kChunkElements<In> == 0 && rows_are_aligned<In>(x.in, x.in_stride, x.out, x.out_stride, x.hidden);
  int64_t const slice = kMostChunks / x.hidden, groups = x.hidden / group;
  for (int64_t row = 0; row < x.rows; row += slice) {
    int64_t const rows = x.rows - row < slice ? x.rows - row : slice;
    GroupQuantParams const of_slice{
        static_cast<In const*>(x.in) + row * x.in_stride,
        static_cast<uint8_t*>(x.out) + row * x.out_stride,
        static_cast<float*>(x.scales) + row * x.scale_stride_m,
        nullptr, nullptr,
        x.hidden, x.in_stride, x.out_stride, x.scale_stride_m, x.scale_stride_n,
        static_cast<uint32_t>(rows), static_cast<uint32_t>(rows), static_cast<uint32_t>(groups),
        static_cast<uint32_t>(rows * groups),
        FastDivision(static_cast<uint32_t>(groups)),
        x.eps, 0.0f,
    };
    int32_t const error = any_group_quant_slice<Variant, In, Out, kFormat>({of_slice, static_cast<uint32_t>(group), 0}, aligned, how);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace gemmill::quant
