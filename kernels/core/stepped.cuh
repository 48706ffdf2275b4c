// A node of an epilogue visitor tree that is given the elements of its inputs as int32 or float: CUTLASS's own converts them all
// to one type before, in which integers and floating-point numbers cannot both be exact.
#pragma once

#include "core/epilogue.cuh"

namespace gemmill::epilogue {

template <class T>
CUTLASS_DEVICE auto number(T const& x) {
  if constexpr (std::is_same_v<T, int32_t>) {
    return x;
  } else {
    return static_cast<float>(x);
  }
}

// `Function` has `Arguments`, and of these and an element of each input makes a float. It stores the results as `Output`.
template <class Function, class Output>
struct Stepped {
  template <class>
  using Always = Function;
  using Base = cutlass::epilogue::fusion::Sm90Compute<Always, Output, float, cutlass::FloatRoundStyle::round_to_nearest>;

  struct Type : Base {
    using Base::Base;

    struct ConsumerStoreCallbacks : cutlass::epilogue::fusion::detail::EmptyConsumerStoreCallbacks {
      typename Base::Params const& params;

      CUTLASS_DEVICE explicit ConsumerStoreCallbacks(typename Base::Params const& params) : params(params) {}

      template <class Sum, class... Inputs, int size>
      CUTLASS_DEVICE cutlass::Array<Output, size> visit(cutlass::Array<Sum, size> const&, int, int, int,
                                                        cutlass::Array<Inputs, size> const&... inputs) {
        cutlass::Array<float, size> results;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < size; ++i) results[i] = Function{}(params, number<Inputs>(inputs[i])...);
        return cutlass::NumericArrayConverter<Output, float, size, cutlass::FloatRoundStyle::round_to_nearest>{}(results);
      }
    };

    template <bool reference_source, class... Args>
    CUTLASS_DEVICE auto get_consumer_store_callbacks(cutlass::epilogue::fusion::detail::ConsumerStoreArgs<Args...> const&) {
      return ConsumerStoreCallbacks(this->params);
    }
  };
};

template <class Function, class Output, class... Inputs>
using SteppedNode = cutlass::epilogue::fusion::Sm90EVT<typename Stepped<Function, Output>::Type, Inputs...>;

}  // namespace gemmill::epilogue
