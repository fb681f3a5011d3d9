#include "model/execute/exchange.h"

#include <array>

#include "model/execute/floats.h"
#include "model/execute/messenger.h"

namespace kvcast::execute {
namespace {

/// Of a row of numbers of so many bytes, or in a narrow type.
std::size_t row_bytes(const Operand& x, std::size_t number) {
  return x.form != nullptr ? x.form->row_bytes() : x.shape[2] * number;
}

Rows rows_of(const Operand& message, std::size_t number) {
  const Shape& shape = message.shape;
  const std::size_t row = row_bytes(message, number);
  return {message.numbers<std::byte>(), shape[0], message.batch_stride / shape[2] * row,
          shape[1] * row};
}

void count_sent(const Call& call, std::size_t bytes) {
  if (call.exchanged == nullptr) return;
  ++call.exchanged->messages;
  call.exchanged->sent_bytes += bytes;
}

/// The message of numbers of so many bytes lies in the cache from this row on.
void lay(Operand& message, const Operand& cache, std::size_t first_row, std::size_t number) {
  const std::size_t first = first_row * row_bytes(cache, number);
  message.form = cache.form;
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
      KVCAST_ASSERT(node.inputs.size() == 2);  // sessions refuse stages that hand on states
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
  // As the tensor's type counts: states are fp32 also where a session computes in fp64.
  count_sent(call,
             bytes_of(Count(call.output.shape.elements()), call.output.info->dtype).constant());
}

void receive_message(const Call& call, const Receive& op) {
  call.messenger->receive(op.rank);
  if (call.exchanged == nullptr) return;
  const Operand& message = call.inputs[1];
  call.exchanged->received_bytes +=
      bytes_of(Count(message.shape.elements()), message.info->dtype).constant();
}

void exchange(const Call& call, const RankGroup& group, std::size_t member,
              const std::vector<Bytes>& to, const std::vector<Room>& from) {
  KVCAST_ASSERT(call.messenger != nullptr);
  Messenger& m = *call.messenger;
  for (std::size_t i = 0; i < group.size; ++i) {
    if (i == member) continue;
    if (!from[i].empty()) m.expect(group.member(i), {from[i].data(), 1, 0, from[i].size()});
    if (to[i].empty()) continue;
    // Messengers read it only.
    m.send(group.member(i), {const_cast<std::byte*>(to[i].data()), 1, 0, to[i].size()});
    count_sent(call, to[i].size());
  }
  for (std::size_t i = 0; i < group.size; ++i) {
    if (i == member || from[i].empty()) continue;
    m.receive(group.member(i));
    if (call.exchanged != nullptr) call.exchanged->received_bytes += from[i].size();
  }
  m.finish();
}

bool has_expert(const DispatchTokens& op, std::size_t member, std::size_t expert) {
  // Members have as many of the experts each, this one those of all its slices.
  const std::uint64_t of_member = op.num_experts / op.group.size;
  const std::uint64_t first = op.first_expert + member * of_member - op.member * of_member;
  return expert >= first && expert < first + op.experts_here;
}

MovedTokens find_moved_tokens(const Call& call, const DispatchTokens& op, DType dtype) {
  const Operand& experts = call.inputs[1];
  const std::size_t chosen = experts.shape.back();
  const std::size_t members = op.group.size;
  MovedTokens moved{{}, std::vector<std::vector<std::size_t>>(members)};
  std::vector<std::vector<std::uint64_t>> told(members);  // the number of pairs, then the tokens
  with_numbers(dtype, experts.data, [&](const auto* numbers) {
    for (std::size_t i = 0; i < members; ++i) {
      std::vector<std::size_t>& tokens = moved.sent.emplace_back();
      std::uint64_t pairs = 0;
      for (std::size_t t = 0; t < experts.rows(); ++t) {
        std::uint64_t here = 0;
        for (std::size_t k = t * chosen; k < (t + 1) * chosen; ++k) {
          if (has_expert(op, i, static_cast<std::size_t>(numbers[k]))) ++here;
        }
        if (here > 0) tokens.push_back(t);
        pairs += here;
      }
      if (i == op.member) moved.pairs = pairs;
      told[i].push_back(pairs);
      told[i].insert(told[i].end(), tokens.begin(), tokens.end());
    }
  });
  moved.received[op.member] = moved.sent[op.member];
  if (members == 1) return moved;
  // Unlike what the operator itself exchanges, this is not counted.
  Call uncounted = call;
  uncounted.exchanged = nullptr;
  const auto swap = [&](auto& to, auto& from) {
    std::vector<Bytes> sent;
    std::vector<Room> received;
    for (auto& numbers : to) sent.push_back(std::as_bytes(std::span(numbers)));
    for (auto& numbers : from) received.push_back(std::as_writable_bytes(std::span(numbers)));
    exchange(uncounted, op.group, op.member, sent, received);
  };
  std::vector<std::array<std::uint64_t, 1>> lengths(members);
  std::vector<std::array<std::uint64_t, 1>> lengths_there(members);
  for (std::size_t i = 0; i < members; ++i) lengths[i][0] = told[i].size();
  swap(lengths, lengths_there);
  std::vector<std::vector<std::uint64_t>> heard(members);
  for (std::size_t i = 0; i < members; ++i) heard[i].resize(lengths_there[i][0]);
  swap(told, heard);
  for (std::size_t i = 0; i < members; ++i) {
    if (i == op.member) continue;
    moved.pairs += heard[i][0];
    moved.received[i].assign(heard[i].begin() + 1, heard[i].end());
  }
  return moved;
}

}  // namespace kvcast::execute
