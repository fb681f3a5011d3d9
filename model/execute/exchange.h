/// Messages of a pass: rows of the cache, sent from where they lie and received where they belong,
/// and what the members of a group exchange.
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
/// Waits until the node's last input is there.
void receive_message(const Call& call, const Receive& op);

using Bytes = std::span<const std::byte>;
using Room = std::span<std::byte>;
/// Sends to[i] to member i of the group and fills from[i] with what comes from there, for all
/// members but this one. Nothing is sent where there are no bytes.
void exchange(const Call& call, const RankGroup& group, std::size_t member,
              const std::vector<Bytes>& to, const std::vector<Room>& from);

/// The tokens that a DispatchTokens moves: tells the group's members, and hears from them. What is
/// told is no part of the work: a run needs it to know its own sizes.
MovedTokens find_moved_tokens(const Call& call, const DispatchTokens& op, DType dtype);
/// Whether a member of the operator's group has the expert.
bool has_expert(const DispatchTokens& op, std::size_t member, std::size_t expert);

}  // namespace kvcast::execute
