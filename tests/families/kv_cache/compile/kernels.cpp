// The kernels as they are, for the host.
#include "block.h"
#include "kv_cache/compress.cuh"
#include "kv_cache/decode_attention_4bit.cuh"
#include "kv_cache/hadamard.cuh"

using namespace gemmill::kv_cache;

namespace {

struct OnHost;

template <class Element>
int32_t transform(int columns, gemmill_hadamard_args const& args, gemmill_launch const& how) {
  switch (columns) {
    case 64: return hadamard<OnHost, Element, 64>(args, how);
    case 128: return hadamard<OnHost, Element, 128>(args, how);
    default: return hadamard<OnHost, Element, 256>(args, how);
  }
}

}  // namespace

extern "C" int32_t hadamard_on_host(int is_f16, int columns, gemmill_hadamard_args const* args) {
  gemmill_launch how{};
  return is_f16 ? transform<__half>(columns, *args, how) : transform<__nv_bfloat16>(columns, *args, how);
}

namespace {

template <class Element, int kHeadDim, int kKeyBits, int kValueBits>
int32_t store(gemmill_kv_compress_args const& args, bool is_eden, float const* books) {
  Codebook<kKeyBits> keys;
  Codebook<kValueBits> values;
  memcpy(&keys, books, sizeof keys), memcpy(&values, books + sizeof keys / 4, sizeof values);
  gemmill_launch how{};
  if (is_eden) {
    return compress<OnHost, Element, kHeadDim>(args, how, Coded<kKeyBits, true>{keys}, Coded<kValueBits, true>{values});
  }
  return compress<OnHost, Element, kHeadDim>(args, how, Coded<kKeyBits, false>{keys}, Coded<kValueBits, false>{values});
}

template <class Element>
int32_t store_of(int head_dim, int bits, gemmill_kv_compress_args const& args, bool is_eden, float const* books) {
  if (head_dim == 64) return store<Element, 64, 3, 4>(args, is_eden, books);
  if (head_dim == 256) return store<Element, 256, 2, 4>(args, is_eden, books);
  switch (bits) {
    case 44: return store<Element, 128, 4, 4>(args, is_eden, books);
    case 33: return store<Element, 128, 3, 3>(args, is_eden, books);
    default: return store<Element, 128, 2, 4>(args, is_eden, books);
  }
}

template <class Element>
int32_t attend(int page, gemmill_kv_attention_args const& args, gemmill_launch& how, Centroids const& centroids) {
  auto run = [&](auto tokens) {
    constexpr int kTokens = decltype(tokens)::value;
    std::vector<char> workspace(DecodePlan<kTokens>(args, how).workspace(), static_cast<char>(0xFF));
    how.workspace = workspace.data();
    return decode_attention<OnHost, Element, kTokens>(args, how, centroids);
  };
  switch (page) {
    case 16: return run(std::integral_constant<int, 16>{});
    case 32: return run(std::integral_constant<int, 32>{});
    case 64: return run(std::integral_constant<int, 64>{});
    default: return run(std::integral_constant<int, 128>{});
  }
}

}  // namespace

// `books`: centroids, then boundaries of keys; the same of values; upper halves.
extern "C" int32_t compress_on_host(int is_f16, int head_dim, int bits, int is_eden, gemmill_kv_compress_args const* args, float const* books) {
  return is_f16 ? store_of<__half>(head_dim, bits, *args, is_eden, books)
                : store_of<__nv_bfloat16>(head_dim, bits, *args, is_eden, books);
}

extern "C" int32_t attention_on_host(int is_f16, int page, int sm_count, gemmill_kv_attention_args const* args, Centroids const* centroids) {
  gemmill_launch how{};
  how.sm_count = sm_count;
  return is_f16 ? attend<__half>(page, *args, how, *centroids) : attend<__nv_bfloat16>(page, *args, how, *centroids);
}
