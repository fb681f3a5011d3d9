/// Records the keys and values that a run computes.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "model/convert/dense_matrix.h"
#include "model/execute/generate.h"

namespace kvcast {

/// One value for keys and one for values.
template <typename T>
using ForKeysAndValues = std::array<T, 2>;

/// By layer: [tokens, features].
using KeyValueRows = ForKeysAndValues<std::vector<ActivationRows>>;

struct ObservedRun {
  KeyValueRows rows;
  execute::Generation generation;
};

/// Reads a prompt in one pass and keeps the results of the first nodes of a layer and phase that
/// have these labels, such as "key" and "value".
ObservedRun observe_key_values(const execute::Session& session,
                               std::span<const execute::TokenId> tokens, const std::string& phase,
                               const ForKeysAndValues<std::string>& labels);

}  // namespace kvcast
