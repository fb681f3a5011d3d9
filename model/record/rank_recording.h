/// A model's passes as one rank of a placement makes them.
#pragma once

#include <vector>

#include "model/methods/placement.h"
#include "model/record/recording.h"

namespace kvcast {

/// The prefill of a rank's own tokens, with a Receive and a Send for each cache tensor that comes
/// in and goes out, and the decode step of the rank that goes on. In the prefill the symbol
/// prompt_len stands for the rank's own tokens and kv_len for these and all before them, so rank i
/// of a batch of b sequences runs at
///
///   symbols.resolve({b, share.tokens(), share.end()})
///
/// kvr's graphs hold for every partition; tsp's hold for the sizes of the other ranks' parts in
/// `share`.
///
/// Where a method chooses the prompt's tokens, every rank runs the helper passes on the whole
/// prompt and so knows the kept tokens, which the ranks then share. Only the cache is sent.
///
/// With RecordOptions::place every rank is a group of devices that split the layers (tp); a device
/// exchanges with the one in its place in the other groups.
///
/// The last rank has the prompt's logits; share.decoder() has the whole cache and decodes. The
/// other ranks end with the hidden states of their tokens, or with their logits under Logits::All.
/// All else in the recording is as without the placement.
///
/// Throws Error without a placement for so many ranks among the methods, when they do not fit the
/// model, and for what no placement spreads: encoder-decoder models, methods after which the base
/// reads one token or other tokens in each layer, methods that read the prompt in one piece, MLKV's
/// released semantics.
Recording record_rank(const Architecture& configured, const std::vector<MethodSpec>& methods,
                      const Lowering& lowering, const RankShare& share,
                      const RecordOptions& options = {});
/// The same where the recording of without_placement(methods) is there already.
Recording record_rank(Recording whole, const Architecture& configured,
                      const std::vector<MethodSpec>& methods, const Lowering& lowering,
                      const RankShare& share, const RecordOptions& options = {});
std::vector<MethodSpec> without_placement(std::vector<MethodSpec> methods);

/// The prefills of a chain's ranks (kvr) with tokens before their own: of a rank that others
/// follow, and of the last. They hold for every partition and are evaluated as record_rank's; the
/// first rank is the case without tokens before its own.
struct ChainPasses {
  Symbols symbols;
  Graph middle;
  Graph last;
};
/// `whole`: the recording of these methods, without a placement, of a decoder-only model.
ChainPasses record_chain(Recording whole, const Architecture& configured,
                         const std::vector<MethodSpec>& methods, const Lowering& lowering,
                         const RecordOptions& options = {});

/// Tokens of a prompt that the ranks share: all, or those that a method keeps. If their number
/// depends on which chunks are kept, the largest possible.
std::uint64_t shared_tokens(const Recording& recording, std::uint64_t prompt_len);

}  // namespace kvcast
