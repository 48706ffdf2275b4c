// CUTLASS's own compressor, for the host: a thread of the machine for each of a block's. Kept values and metadata are held
// against it.
#include <cuda_runtime.h>
#include <pthread.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {
thread_local uint3 threadIdx, blockIdx;
dim3 gridDim, blockDim;
pthread_barrier_t block_barrier;
void __syncthreads() { pthread_barrier_wait(&block_barrier); }
}  // namespace

#include "cute/arch/mma_sm90_gmma_sparse.hpp"
#include "cute/atom/mma_traits_sm90_gmma_sparse.hpp"
#include "cutlass/gemm/collective/builders/sm90_sparse_config.inl"
#include "cutlass/transform/kernel/sm90_sparse_gemm_compressor.hpp"

namespace {

// An element of metadata has 4 bits for each four of A, 8 of A's in a byte.
template <class Element>
void compress(Element const* a, int n, int k, int64_t lda, Element* values, uint8_t* meta) {
  using Config = cutlass::Sm90GemmSparseConfig<cute::sparse_elem<2, Element>, cute::GMMA::Major::K, cute::sparse_elem<8, uint8_t>, cute::_128>;
  using Shape = cute::Shape<int, int, int, int>;
  using Compressor = cutlass::transform::kernel::SM90StructuredSparseCompressor<Shape, Element, cutlass::layout::RowMajor, Config>;
  typename Compressor::Params params{};
  params.problem_shape = {n, 1, k, 1};
  params.transform.ptr_A = a;
  params.transform.dA = {lda, cute::_1{}, 0};
  params.transform.ptr_ACompress = values;
  params.transform.ptr_E = meta;
  gridDim = Compressor::get_grid_shape(params);
  blockDim = Compressor::get_block_shape();
  std::vector<uint64_t> shared(Compressor::SharedStorageSize / 8 + 1);
  pthread_barrier_init(&block_barrier, nullptr, blockDim.x);
  for (unsigned y = 0; y < gridDim.y; ++y) {
    for (unsigned x = 0; x < gridDim.x; ++x) {
      std::vector<std::thread> threads;
      for (unsigned t = 0; t < blockDim.x; ++t) {
        threads.emplace_back([&, t] {
          threadIdx = {t, 0, 0}, blockIdx = {x, y, 0};
          Compressor::run(params, shared.data());
        });
      }
      for (auto& thread : threads) thread.join();
    }
  }
  pthread_barrier_destroy(&block_barrier);
}

}  // namespace

extern "C" void cutlass_compress(char kind, void const* a, int n, int k, int64_t lda, void* values, uint8_t* meta) {
  auto run = [&](auto element) {
    using Element = decltype(element);
    compress(static_cast<Element const*>(a), n, k, lda, static_cast<Element*>(values), meta);
  };
  switch (kind) {
    case '8': return run(cutlass::float_e4m3_t{});
    case 'i': return run(int8_t{});
    case 'b': return run(cutlass::bfloat16_t{});
    default: return run(cutlass::half_t{});
  }
}
