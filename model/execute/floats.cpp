#include "model/execute/floats.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include <sys/mman.h>

namespace kvcast::execute {

void FreeFloats::operator()(float* data) const noexcept { std::free(data); }

Floats allocate_floats(std::size_t count) {
  constexpr std::size_t huge_page = std::size_t{2} << 20;
  const std::size_t bytes = std::max<std::size_t>(count, 1) * sizeof(float);
  const std::size_t alignment = bytes >= 2 * huge_page ? huge_page : 64;
  const std::size_t size = (bytes + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, size);
  if (data == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (alignment == huge_page) madvise(data, size, MADV_HUGEPAGE);
#endif
  return Floats(static_cast<float*>(data));
}

}  // namespace kvcast::execute
