/// KV-cache methods: what each changes in a model's forward passes.
///
/// A method answers one of four questions (`MethodKind`); methods of different kinds compose,
/// `random-prune:keep=0.5+...`. Each lives in one file and is registered by one line in
/// `registry.cpp`.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/base/count.h"
#include "model/config/architecture.h"
#include "model/forward/forward.h"
#include "model/forward/recorded_pass.h"
#include "model/forward/token_selection.h"
#include "model/methods/placement.h"

namespace kvcast {

/// In the order in which methods are applied: each sees what those before it have changed.
enum class MethodKind {
  Cache,      ///< what is stored per token, and how does attention read it?
  Prompt,     ///< which prompt tokens does the base model see?
  Source,     ///< where does the prompt's cache come from?
  Placement,  ///< who computes which part of the prompt, and what is sent?
};

/// Parses "NAME[:KEY=VALUE,...][+NAME...]". Throws Error: unknown method or option (with the
/// nearest), empty parts, two methods of one kind.
std::vector<MethodSpec> parse_methods(std::string_view text);
/// The canonical spelling of what parse_methods read.
std::string to_string(const std::vector<MethodSpec>& methods);

/// An option's text, `fallback` when it is not given.
std::string text_option(const MethodSpec& spec, std::string_view key, std::string fallback);

/// One of `words`, the first when the option is not given. Throws Error with the nearest word.
std::string word_option(const MethodSpec& spec, std::string_view key,
                        const std::vector<std::string>& words);

/// A fraction above 0 and at most 1, `fallback` when the option is not given. Throws Error when it
/// is out of range, or missing without a fallback.
double fraction_option(const MethodSpec& spec, std::string_view key,
                       std::optional<double> fallback = {});
/// As fraction_option, but 0 is allowed.
double share_option(const MethodSpec& spec, std::string_view key, double fallback);
/// As fraction_option, for a whole number of at least `minimum`.
std::uint64_t whole_option(const MethodSpec& spec, std::string_view key, std::uint64_t minimum,
                           std::optional<std::uint64_t> fallback = {});

/// The architecture of the model that a user names in a method's option.
using FindModel = std::function<Architecture(const std::string& name)>;

struct Plan;

/// Properties of a plan that exclude some methods.
enum class Trait {
  OwnAttention,    ///< a method keeps and reads the cache in a way of its own
  SharedKeys,      ///< layers read the keys and values of others (MLKV, Gemma 3n)
  LacksWeights,    ///< slim attention has dropped projections of the model
  ChosenTokens,    ///< a method keeps some of the prompt's tokens
  ReusedCache,     ///< the kept tokens' keys and values come from the method that chose them
  TokensPerLayer,  ///< each layer sees tokens of its own
  Latents,         ///< the model caches latents in the place of keys and values
  States,          ///< layers of the model keep a state in the place of keys and values
  LayerInputs,     ///< each layer reads an input of its own for each token (Gemma 3n)
};

/// A combination that the mathematics forbids, declared by the method that does not allow it.
struct Exclusion {
  Trait trait;
  /// The error message; "{methods}" and "{model}" are replaced by the plan's.
  std::string reason;
};

/// For methods that need a cache in each layer.
Exclusion needs_unshared_keys();
/// For methods that need keys and values in each layer.
std::vector<Exclusion> needs_own_keys();
/// For methods that keep or read keys and values in a way of their own.
Exclusion needs_keys_and_values();
/// For methods that need all layers to keep keys and values; `why` follows the model's name.
Exclusion needs_no_states(const std::string& why);
/// For methods whose helper is the base itself.
Exclusion reads_with_own_weights();

/// A pass before the base model's prefill, recorded after all methods have been applied.
struct PlannedPass {
  RecordedPass pass;  ///< all but the graph
  std::function<void(Recorder&, const Plan&)> record;
};

/// Dropped tokens that the layers from `first_layer` on take back; a run finds how many.
struct RevivedTokens {
  std::size_t first_layer = 0;
  Symbol before;  ///< in the decode steps before this one
  Symbol now;     ///< in this one
};

/// The share of the tokens dropped before a layer that a decode step is expected to take back,
/// until all are back. For estimates: runs find their own. The first step takes back what the
/// prompt's last token did not attend to, a later step only what no step before it did, which is
/// far less.
struct RevivedShares {
  double first_step = 0;
  double later_steps = 0;  ///< each of them
};

/// How passes change where layers see tokens of their own.
struct TokenFlow {
  std::function<void(Pass&)> prefill;
  std::function<void(Pass&)> decode;
};

/// A cache that shrinks to `rows` rows once the prompt is read, and with each token after it.
struct CacheBound {
  std::uint64_t rows = 0;
  std::uint64_t kept_first = 0;  ///< CacheEvict::kept_first
  /// Of a prompt that comes in chunks: the rows that this chunk lets go of, all too many after the
  /// last one and none before. The run says.
  std::optional<Symbol> dropped = {};

  /// The rows too many of `held`.
  std::uint64_t too_many(std::uint64_t held) const { return held - std::min(held, rows); }
};

/// What the methods of a request have changed when it is recorded. Prompt tokens are those that the
/// base model's prefill reads; with a selection, chosen ones at their own positions.
struct MethodEffects {
  Architecture model;  ///< as configured, in the shape that the methods gave it
  /// The command that makes the weights of `model`, when it is no longer the configured one; empty:
  /// a checkpoint of the configured model holds them.
  std::string conversion = {};
  Count prompt_tokens = symbol::prompt_len;
  Count prompt_past = {};  ///< tokens before them in the cache, where helper passes have put them
  std::vector<HelperModel> helper_models = {};  ///< whose weights helper passes read
  std::optional<TokenSelection> selection = {};
  bool given_positions = false;  ///< passes take "positions" [batch, tokens]; so with a selection
  bool whole_prompt = false;     ///< a method needs the prompt in one piece
  std::optional<CacheBound> bound = {};
  std::vector<RevivedTokens> revived = {};  ///< where decode steps take dropped tokens back
};

/// The effects so far, and what the passes are recorded with.
struct Plan : MethodEffects {
  Symbols& symbols;
  Logits logits = Logits::Last;  ///< the prompt's positions whose logits are needed
  bool chunked = false;          ///< the prompt comes in chunks
  bool steps = false;            ///< so it does, and the passes that choose its tokens run before
  /// What is cached, and how attention reads it; none: plain_attention.
  std::optional<AttentionMethod> attention = {};
  CrossMethod cross = plain_cross_attention();
  /// Who computes which part of the prompt; none: one device all of it.
  std::optional<Placement> placement = {};
  /// The passes that come before the base's prefill, in order.
  std::vector<PlannedPass> helpers = {};
  /// Which tokens the layers of the base see, with given positions; none: all of them.
  std::optional<TokenFlow> token_flow = {};
  FindModel find_model = {};
  /// Methods that no placement can spread over ranks, each with the reason.
  std::vector<std::pair<std::string, std::string>> not_spread = {};
  std::string methods = {};  ///< of the request, as its user wrote them

  AttentionMethod base_attention() const { return attention.value_or(plain_attention); }
  bool has(Trait trait) const;
  /// Throws Error when the plan has what one of these excludes.
  void exclude(const std::vector<Exclusion>& exclusions) const;
  /// The base reads these of the prompt's tokens, at their own positions. Throws Error if the model
  /// or the cache method cannot keep the positions.
  void choose_tokens(TokenSelection chosen);
  /// Each layer sees its own tokens. Throws Error if the model or the cache method needs all tokens
  /// in all layers.
  void let_flow(TokenFlow flow);
  /// The architecture of a model that an option names. Throws Error if it cannot be looked up.
  Architecture named_model(const std::string& name) const;
};

struct Method {
  std::string_view name;
  MethodKind kind;
  std::string_view summary;               ///< one line for `--help`
  std::vector<std::string_view> options;  ///< keys it takes
  std::function<void(const MethodSpec&, Plan&)> apply;
  /// A spelling that works with small prompts, for help and for tests of all methods.
  std::string_view example;
  /// What it cannot be combined with.
  std::vector<Exclusion> excludes = {};
};

/// All methods, in the order of `registry.cpp`.
const std::vector<Method>& methods();
/// Throws Error with the nearest name.
const Method& find_method(std::string_view name);

/// Applies methods in the order of their kinds. Throws Error for methods that do not fit the model,
/// each other, or a prompt in chunks.
void apply_methods(std::vector<MethodSpec> methods, Plan& plan);

}  // namespace kvcast
