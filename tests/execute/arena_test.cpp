#include "model/execute/arena.h"

#include <new>

#include <doctest/doctest.h>

namespace kvcast::execute {

TEST_CASE("arena: after it could not grow it gives what it can") {
#ifdef __SANITIZE_ADDRESS__
  MESSAGE("skipped: AddressSanitizer ends a program that asks for so much");
#else
  Arena arena;
  arena.reserve(100)[99] = 1;
  CHECK_THROWS_AS(arena.reserve(std::size_t{1} << 58), std::bad_alloc);
  float* const block = arena.reserve(50);
  REQUIRE(block != nullptr);
  block[49] = 1;
#endif
}

TEST_CASE("arena: a block that is large enough stays") {
  Arena arena;
  float* const block = arena.reserve(100);
  block[99] = 3;
  CHECK(arena.reserve(100) == block);
  CHECK(arena.reserve(7) == block);
  CHECK(block[99] == 3);
}

}  // namespace kvcast::execute
