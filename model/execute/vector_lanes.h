/// Vectors of 16 numbers by name, and sums over their lanes.
#pragma once

#include "model/execute/vector_math.h"

namespace kvcast::execute {

typedef float Vector __attribute__((vector_size(64), aligned(4), may_alias));
typedef float Half __attribute__((vector_size(32)));
typedef float Quarter __attribute__((vector_size(16)));

KVCAST_INLINE Quarter fold(Vector v) {
  const Half h = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                 __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
}

/// The sums over each of four vectors' lanes.
KVCAST_INLINE Quarter lane_sums(const Vector* v) {
  const Quarter a = fold(v[0]);
  const Quarter b = fold(v[1]);
  const Quarter c = fold(v[2]);
  const Quarter d = fold(v[3]);
  const Quarter ab =
      __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quarter cd =
      __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

}  // namespace kvcast::execute
