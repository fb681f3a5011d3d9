#include "model/execute/exchange.h"

#include "model/execute/floats.h"
#include "model/execute/messenger.h"

namespace kvcast::execute {
namespace {

Rows rows_of(const Operand& message, std::size_t number) {
  const Shape& shape = message.shape;
  return {message.numbers<std::byte>(), shape[0], message.batch_stride * number,
          shape[1] * shape[2] * number};
}

/// The message of numbers of so many bytes lies in the cache from this row on.
void lay(Operand& message, const Operand& cache, std::size_t first_row, std::size_t number) {
  const std::size_t first = first_row * cache.shape[2] * number;
  message.data = reinterpret_cast<float*>(cache.numbers<std::byte>() + first);
  message.batch_stride = cache.batch_stride;
}

}  // namespace

void lay_messages(const Graph& graph, std::span<const std::uint64_t> symbols,
                  std::vector<Operand>& operands, DType dtype, Messenger* messenger) {
  const std::size_t number = floats_in(dtype) * sizeof(float);
  for (const Node& node : graph.nodes()) {
    const Operand& cache = operands[node.output().index];
    if (const auto* op = std::get_if<Send>(&node.op)) {
      lay(operands[node.output().index], operands[node.inputs[0].index], op->first_row.at(symbols),
          number);
    } else if (const auto* receive = std::get_if<Receive>(&node.op)) {
      Operand& message = operands[node.inputs[1].index];
      lay(message, cache, receive->first_row.at(symbols), number);
      KVCAST_ASSERT(messenger != nullptr);
      messenger->expect(receive->rank, rows_of(message, number));
    }
  }
}

void send_message(const Call& call, const Send& op, std::size_t number) {
  KVCAST_ASSERT(call.messenger != nullptr);
  call.messenger->send(op.rank, rows_of(call.output, number));
}

void receive_message(const Call& call, const Receive& op) { call.messenger->receive(op.rank); }

}  // namespace kvcast::execute
