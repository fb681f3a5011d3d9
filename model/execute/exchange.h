/// Messages of a pass: rows of the cache, sent from where they lie and received where they belong.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/execute/operand.h"

namespace kvcast::execute {

/// Lays every message of the graph over its rows of the cache, whose operands are bound, and tells
/// the messenger about all messages to come, before anything is computed.
void lay_messages(const Graph& graph, std::span<const std::uint64_t> symbols,
                  std::vector<Operand>& operands, Messenger* messenger);

/// Starts to send what the node's output holds.
void send_message(const Call& call, const Send& op);
/// Waits until the node's second input is there.
void receive_message(const Call& call, const Receive& op);

}  // namespace kvcast::execute
