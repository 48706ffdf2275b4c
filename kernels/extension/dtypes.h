// torch's numbers for the dtypes that the ops know.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>

namespace gemmill {

struct Dtypes {
  int32_t e4m3 = aoti_torch_dtype_float8_e4m3fn();
  int32_t s8 = aoti_torch_dtype_int8();
  int32_t bf16 = aoti_torch_dtype_bfloat16();
  int32_t f16 = aoti_torch_dtype_float16();
  int32_t f32 = aoti_torch_dtype_float32();
  int32_t s32 = aoti_torch_dtype_int32();
  int32_t u8 = aoti_torch_dtype_uint8();
};
inline Dtypes const& dtypes() {
  static Dtypes const known;
  return known;
}

}  // namespace gemmill
