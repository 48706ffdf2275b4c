// A layer of 2:4 sparse FP4 experts by the method of the article that gemmill started from, written anew from its description: eight
// launches, 128 threads of four columns each, K in tiles of 64, and f16 partial sums that go through memory. It is what sparse experts
// are timed against, and no part of gemmill.
//
//   comp [E, K / 4, N] two codes a byte; meta [E, K / 8, N] two bits a place; scale [E, K / group, N] e4m3; factor [E, parts]
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace {

constexpr int kThreads = 128, kColumns = 4, kTileK = 64;

__global__ void map_ids(int const* ids, int* experts, int pairs, int count) {
  int const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < pairs) experts[i] = ids[i] >= 0 && ids[i] < count ? ids[i] : -1;
}

__global__ void replicate(__nv_bfloat16 const* x, __half* rows, int64_t elements, int k, int topk) {
  int64_t const i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < elements) rows[i] = __float2half(__bfloat162float(x[i / k / topk * k + i % k]));
}

// Partial sums [pairs, K / 64, N] of a row of each pair.
template <int group>
__global__ void __launch_bounds__(kThreads) multiply(__half const* rows, uint8_t const* comp, uint8_t const* meta, uint8_t const* scales,
                                                     float const* factors, int const* experts, __half* partial, int n, int k, int parts) {
  __shared__ float values[16], x[kTileK];
  int const expert = experts[blockIdx.z], column = (blockIdx.x * kThreads + threadIdx.x) * kColumns, first = blockIdx.y * kTileK;
  if (threadIdx.x < 16) {
    float const magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    values[threadIdx.x] = threadIdx.x < 8 ? magnitudes[threadIdx.x] : -magnitudes[threadIdx.x - 8];
  }
  if (threadIdx.x < kTileK) x[threadIdx.x] = first + threadIdx.x < k ? __half2float(rows[int64_t(blockIdx.z) * k + first + threadIdx.x]) : 0.0f;
  __syncthreads();
  if (column >= n || expert < 0) return;
  float sums[kColumns] = {};
  comp += int64_t(expert) * (k / 4) * n + column, meta += int64_t(expert) * (k / 8) * n + column;
  scales += int64_t(expert) * (k / group) * n + column;
  int const last = min(kTileK, k - first);
#pragma unroll
  for (int i = 0; i < kTileK; i += 8) {
    if (i >= last) break;
    int64_t const at = first + i;
    uint32_t const low = *reinterpret_cast<uint32_t const*>(comp + at / 4 * n), high = *reinterpret_cast<uint32_t const*>(comp + (at / 4 + 1) * n);
    uint32_t const places = *reinterpret_cast<uint32_t const*>(meta + at / 8 * n), scale = *reinterpret_cast<uint32_t const*>(scales + at / group * n);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      uint32_t const a = low >> 8 * j, b = high >> 8 * j, m = places >> 8 * j;
      __half_raw const s = __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(scale >> 8 * j & 0xFF), __NV_E4M3);
      float const sum = values[a & 15] * x[i + (m & 3)] + values[a >> 4 & 15] * x[i + (m >> 2 & 3)] + values[b & 15] * x[i + 4 + (m >> 4 & 3)] +
                        values[b >> 4 & 15] * x[i + 4 + (m >> 6 & 3)];
      sums[j] += sum * __half2float(__half(s));
    }
  }
  float const factor = factors[expert * parts + column / (n / parts)];
  __half* const to = partial + (int64_t(blockIdx.z) * gridDim.y + blockIdx.y) * n + column;
  for (int j = 0; j < kColumns; ++j) to[j] = __float2half(sums[j] * factor);
}

__global__ void add_partial(__half const* partial, __half* out, int64_t elements, int n, int tiles) {
  int64_t const i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= elements) return;
  float sum = 0.0f;
  for (int tile = 0; tile < tiles; ++tile) sum += __half2float(partial[(i / n * tiles + tile) * n + i % n]);
  out[i] = __float2half(sum);
}

__global__ void activate(__half const* rows, __half* out, int64_t elements, int inner) {
  int64_t const i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= elements) return;
  float const gate = __half2float(rows[i / inner * 2 * inner + i % inner]), up = __half2float(rows[i / inner * 2 * inner + inner + i % inner]);
  out[i] = __float2half(gate / (1.0f + expf(-gate)) * up);
}

__global__ void weigh(__half const* rows, float const* weights, int const* experts, __nv_bfloat16* out, int64_t elements, int k, int topk) {
  int64_t const i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= elements) return;
  float sum = 0.0f;
  for (int slot = 0; slot < topk; ++slot) {
    int64_t const pair = i / k * topk + slot;
    if (experts[pair] >= 0) sum += weights[pair] * __half2float(rows[pair * k + i % k]);
  }
  out[i] = __float2bfloat16(sum);
}

unsigned blocks(int64_t elements) { return static_cast<unsigned>((elements + 255) / 256); }

template <int group>
void product(__half const* rows, void* const* weights, int const* experts, __half* partial, __half* out, int pairs, int n, int k, int parts,
             cudaStream_t stream) {
  int const tiles = (k + kTileK - 1) / kTileK;
  dim3 const grid((n / kColumns + kThreads - 1) / kThreads, tiles, pairs);
  multiply<group><<<grid, kThreads, 0, stream>>>(rows, static_cast<uint8_t const*>(weights[0]), static_cast<uint8_t const*>(weights[1]),
                                                 static_cast<uint8_t const*>(weights[2]), static_cast<float const*>(weights[3]), experts, partial, n,
                                                 k, parts);
  add_partial<<<blocks(int64_t(pairs) * n), 256, 0, stream>>>(partial, out, int64_t(pairs) * n, n, tiles);
}

}  // namespace

// pointers: x, ids, weights, out, experts, rows, partial, gates, inner, products; then comp, meta, scale and factor of W13, and of W2.
// sizes: tokens, topk, experts, hidden, inner, group. Returns a cudaError_t.
extern "C" int article_layer(void* const* pointers, int const* sizes, void* stream_) {
  int const tokens = sizes[0], topk = sizes[1], hidden = sizes[3], inner = sizes[4], group = sizes[5], pairs = tokens * topk;
  cudaStream_t const stream = static_cast<cudaStream_t>(stream_);
  int* const experts = static_cast<int*>(pointers[4]);
  __half *const rows = static_cast<__half*>(pointers[5]), *const partial = static_cast<__half*>(pointers[6]);
  __half *const gates = static_cast<__half*>(pointers[7]), *const results = static_cast<__half*>(pointers[8]), *const products = static_cast<__half*>(pointers[9]);
  int64_t const of_x = int64_t(pairs) * hidden, of_results = int64_t(pairs) * inner, of_out = int64_t(tokens) * hidden;
  auto const multiply_by = group == 16 ? product<16> : product<8>;
  map_ids<<<blocks(pairs), 256, 0, stream>>>(static_cast<int const*>(pointers[1]), experts, pairs, sizes[2]);
  replicate<<<blocks(of_x), 256, 0, stream>>>(static_cast<__nv_bfloat16 const*>(pointers[0]), rows, of_x, hidden, topk);
  multiply_by(rows, pointers + 10, experts, partial, gates, pairs, 2 * inner, hidden, 2, stream);
  activate<<<blocks(of_results), 256, 0, stream>>>(gates, results, of_results, inner);
  multiply_by(results, pointers + 14, experts, partial, products, pairs, hidden, inner, 1, stream);
  weigh<<<blocks(of_out), 256, 0, stream>>>(products, static_cast<float const*>(pointers[2]), experts, static_cast<__nv_bfloat16*>(pointers[3]),
                                            of_out, hidden, topk);
  return static_cast<int>(cudaGetLastError());
}
