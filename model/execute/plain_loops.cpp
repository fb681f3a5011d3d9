#include "model/execute/plain_loops.h"

#include "model/execute/plain_gradients.h"

namespace kvcast::execute {

std::uint64_t CountedWork::bytes() const {
  std::uint64_t sum = 0;
  for (const std::uint64_t b : read) sum += b;
  for (const std::uint64_t b : written) sum += b;
  return sum;
}

CountedWork& CountedWork::operator+=(const CountedWork& other) {
  flops += other.flops;
  for (std::size_t i = 0; i < num_storages; ++i) {
    read[i] += other.read[i];
    written[i] += other.written[i];
  }
  return *this;
}

CountedWork run_plain(const Call& call, DType dtype) {
  const auto run = [&](auto loops) {
    counted_flops = 0;
    std::visit(loops, call.node.op);
    CountedWork w = loops.counted_work();
    if (group_of(call.node.op) != nullptr) {
      KVCAST_ASSERT(call.exchanged != nullptr);
      constexpr auto messages = static_cast<std::size_t>(Storage::Messages);
      w.written[messages] += call.exchanged->sent_bytes;
      w.read[messages] += call.exchanged->received_bytes;
    }
    return w;
  };
  return dtype == DType::FP64 ? run(PlainLoops<double>(call)) : run(PlainLoops<float>(call));
}

}  // namespace kvcast::execute
