// Words for writing epilogue visitor trees (CUTLASS examples 47 and 49 show the mechanism).
#pragma once

#include "cutlass/epilogue/fusion/operations.hpp"
#include "cutlass/epilogue/fusion/sm90_visitor_compute_tma_warpspecialized.hpp"
#include "cutlass/epilogue/fusion/sm90_visitor_load_tma_warpspecialized.hpp"
#include "cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp"

namespace gemmill::epilogue {

using cutlass::epilogue::fusion::Sm90AccFetch;
using Accumulator = Sm90AccFetch;

// A vector over the rows of the kernel's tile, or one value for all of them, as a run-time argument says.
template <class Tile, class T>
using Column = cutlass::epilogue::fusion::Sm90ColBroadcast<0, Tile, T, T, cute::Stride<bool, cute::_0, int64_t>>;

// A vector over the columns of the kernel's tile, or one value for all of them.
template <class Tile, class T>
using Row = cutlass::epilogue::fusion::Sm90RowBroadcast<0, Tile, T, T, cute::Stride<cute::_0, bool, int64_t>>;

template <template <class> class Operation, class Output, class Compute, class... Inputs>
using Node = cutlass::epilogue::fusion::Sm90EVT<
    cutlass::epilogue::fusion::Sm90Compute<Operation, Output, Compute, cutlass::FloatRoundStyle::round_to_nearest>,
    Inputs...>;

// A column's or row's arguments: null reads as `absent`.
template <class Load, class T>
typename Load::Arguments vector(T const* values, bool is_vector, T absent = T(0)) {
  using ColumnStride = cute::tuple_element_t<0, typename Load::StrideMNL>;
  if constexpr (std::is_same_v<ColumnStride, bool>) {
    return {values, absent, {is_vector, cute::_0{}, 0}};
  } else {
    return {values, absent, {cute::_0{}, is_vector, 0}};
  }
}

}  // namespace gemmill::epilogue
