/// Vectors by name, as many numbers wide as the processor's registers, and sums over their lanes.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string_view>

#include "model/execute/vector_math.h"

/// Defines `result name parameters` as with_lanes<L> arguments, compiled once for each width and
/// chosen at the first call. Vectors wider than the registers are about 12 times slower: GCC keeps
/// their parts in memory.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define KVCAST_VECTOR_WIDTHS(result, name, with_lanes, parameters, arguments)        \
  namespace {                                                                        \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))             \
  result name##_16 parameters {                                                      \
    return with_lanes<16> arguments;                                                 \
  }                                                                                  \
  __attribute__((target("avx2,fma"))) result name##_8 parameters {                   \
    return with_lanes<8> arguments;                                                  \
  }                                                                                  \
  result name##_4 parameters { return with_lanes<4> arguments; }                     \
  }                                                                                  \
  result name parameters {                                                           \
    static const auto best = kvcast::execute::widest(name##_16, name##_8, name##_4); \
    return best arguments;                                                           \
  }
#else
#define KVCAST_VECTOR_WIDTHS(result, name, with_lanes, parameters, arguments) \
  result name parameters { return with_lanes<4> arguments; }
#endif

namespace kvcast::execute {

/// The lanes of the widest kernels to use: 16 unless the environment's KVCAST_MAX_LANES says 8 or
/// 4, as on a processor without AVX-512, or AVX2.
inline std::size_t max_lanes() {
  const char* limit = std::getenv("KVCAST_MAX_LANES");
  const std::string_view text = limit == nullptr ? "" : limit;
  return text == "4" ? 4 : text == "8" ? 8 : 16;
}

#if defined(__x86_64__) && defined(__gnu_linux__)
/// What this processor can run.
inline std::size_t widest_lanes() {
  const std::size_t most = max_lanes();
  const bool has_8 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_16 = has_8 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return has_16 && most >= 16 ? 16 : has_8 && most >= 8 ? 8 : 4;
}

/// What this processor can run of functions for 16, 8 and 4 lanes.
template <typename F>
F* widest(F* with_16, F* with_8, F* with_4) {
  const std::size_t lanes = widest_lanes();
  return lanes == 16 ? with_16 : lanes == 8 ? with_8 : with_4;
}
#endif

template <std::size_t lanes>
struct OfLanes {
  typedef float Vector __attribute__((vector_size(lanes * sizeof(float)), aligned(4), may_alias));
};
template <std::size_t lanes>
using Vector = typename OfLanes<lanes>::Vector;
typedef float Quarter __attribute__((vector_size(16)));

/// Sums of every fourth lane.
template <std::size_t lanes>
KVCAST_INLINE Quarter fold(Vector<lanes> v) {
  if constexpr (lanes == 16) {
    return fold<8>(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                   __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  } else if constexpr (lanes == 8) {
    return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
  } else {
    return v;
  }
}

/// The sums over each of four vectors' lanes.
template <std::size_t lanes>
KVCAST_INLINE Quarter lane_sums(const Vector<lanes>* v) {
  const Quarter a = fold<lanes>(v[0]);
  const Quarter b = fold<lanes>(v[1]);
  const Quarter c = fold<lanes>(v[2]);
  const Quarter d = fold<lanes>(v[3]);
  const Quarter ab =
      __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quarter cd =
      __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

}  // namespace kvcast::execute
