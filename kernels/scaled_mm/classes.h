// The number of a class of calls, in Row::call_class and Call::call_class. Mirrors gemmill.families.scaled_mm.classes.
#pragma once

#include <cstdint>

#include "extension/dtypes.h"

namespace gemmill {

// The features of the epilogue.
enum Need : int64_t { kScale = 0, kBias = 1, kAzpRow = 2, kAzpToken = 3 };

// By torch's numbers for dtypes; the contract has refused others.
enum OperandType : int64_t { kE4m3 = 0, kS8 = 1, kBf16 = 2, kF16 = 3 };
inline OperandType operand_type(int32_t dtype) {
  Dtypes const& d = dtypes();
  return dtype == d.s8 ? kS8 : dtype == d.e4m3 ? kE4m3 : dtype == d.bf16 ? kBf16 : kF16;
}

// Numbers of classes with each user's epilogue: the lower part says the same of operand and result.
constexpr int64_t kOwnClasses = 4096;

// The addend for a result; only a user's epilogue ends in codes.
enum OutType : int64_t { kToBf16 = 0, kToF16 = 1, kToE4m3 = kOwnClasses / 2 };
inline OutType out_type(int32_t dtype) {
  Dtypes const& d = dtypes();
  return dtype == d.f16 ? kToF16 : dtype == d.e4m3 ? kToE4m3 : kToBf16;
}

// `scales` is the kind of scales: 0 per tensor or channel, else of groups (group_scales.h); `own` the number of a user's epilogue.
constexpr int64_t class_code(int64_t scales, Need need, OperandType operand, OutType out, int64_t own = 0) {
  return own * kOwnClasses + ((scales * 4 + need) * 4 + operand) * 2 + out;
}

// Of one element of A or B.
constexpr int64_t operand_bytes(OperandType operand) { return operand == kBf16 || operand == kF16 ? 2 : 1; }
constexpr int64_t operand_bytes(int64_t call_class) { return operand_bytes(static_cast<OperandType>(call_class / 2 % 4)); }

}  // namespace gemmill
