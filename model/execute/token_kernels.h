/// The operators on tokens that are not side by side, in fp32: DropTokens to TokenMask of
/// model/op.h. They move rows; nothing is computed.
#pragma once

#include "model/execute/operand.h"

namespace kvcast::execute {

void drop_tokens(const Call& call);
void missing_tokens(const Call& call);
void token_rows(const Call& call);
void token_states(const Call& call);
void store_states(const Call& call);
void token_mask(const Call& call);

}  // namespace kvcast::execute
