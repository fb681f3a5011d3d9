/// Messages of a pass: rows of the cache, sent from where they lie and received where they belong.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/execute/operand.h"

namespace kvcast::execute {

/// Lays every message of the graph over its rows of the cache, whose operands are bound, and tells
/// the messenger about all messages to come, before anything is computed. Numbers are of `dtype`,
/// whatever a tensor's bytes count as.
void lay_messages(const Graph& graph, std::span<const std::uint64_t> symbols,
                  std::vector<Operand>& operands, DType dtype, Messenger* messenger);

/// Starts to send what the node's output holds, in numbers of so many bytes.
void send_message(const Call& call, const Send& op, std::size_t number);
/// Waits until the node's second input is there.
void receive_message(const Call& call, const Receive& op);

}  // namespace kvcast::execute
