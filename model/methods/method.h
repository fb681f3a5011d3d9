/// KV-cache methods: what each changes in a model's forward passes.
///
/// A method answers one of four questions (`Kind`); methods of different kinds compose,
/// `random-prune:keep=0.5+...`. Each lives in one file and is registered by one line in
/// `registry.cpp`.
#pragma once

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

enum class MethodKind {
  Prompt,     ///< which prompt tokens does the base model see?
  Source,     ///< where does the prompt's cache come from?
  Cache,      ///< what is stored per token, and how does attention read it?
  Placement,  ///< who computes which part of the prompt, and what is sent?
};
std::string_view name(MethodKind kind);

/// Parses "NAME[:KEY=VALUE,...][+NAME...]". Throws Error: unknown method or option (with the
/// nearest), empty parts, two methods of one kind.
std::vector<MethodSpec> parse_methods(std::string_view text);
/// The canonical spelling of what parse_methods read.
std::string to_string(const std::vector<MethodSpec>& methods);

/// An option's text, `fallback` when it is not given.
std::string text_option(const MethodSpec& spec, std::string_view key, std::string fallback);

/// A fraction above 0 and at most 1 from an option. Throws Error when missing or out of range.
double fraction_option(const MethodSpec& spec, std::string_view key);

/// A whole number of at least `minimum` from an option. Throws Error when missing or out of range.
std::uint64_t whole_option(const MethodSpec& spec, std::string_view key, std::uint64_t minimum);
/// The same, `fallback` when it is missing.
std::uint64_t whole_option(const MethodSpec& spec, std::string_view key, std::uint64_t minimum,
                           std::uint64_t fallback);
double fraction_option(const MethodSpec& spec, std::string_view key, double fallback);

/// A fraction from 0 to 1 from an option, `fallback` when it is missing. Throws Error when out of
/// range.
double share_option(const MethodSpec& spec, std::string_view key, double fallback);

/// The architecture of the model that a user names in a method's option.
using FindModel = std::function<Architecture(const std::string& name)>;

struct Plan;

/// What a plan may have that some methods do not go with.
enum class Trait {
  OwnAttention,    ///< a method keeps and reads the cache in a way of its own
  SharedKeys,      ///< an MLKV model: layers read the keys and values of others
  LacksWeights,    ///< slim attention has dropped projections of the model
  ChosenTokens,    ///< a method keeps some of the prompt's tokens
  ReusedCache,     ///< the kept tokens' keys and values come from the method that chose them
  TokensPerLayer,  ///< each layer sees tokens of its own
};

/// A combination that the mathematics forbids, declared by the method that needs something else.
struct Exclusion {
  Trait trait;
  /// The error's line; "{methods}" and "{model}" stand for the plan's.
  std::string reason;
};

/// Of methods that ask each layer for keys and values of its own.
Exclusion needs_own_keys();
/// Of methods for which the base is a helper of its own.
Exclusion reads_with_own_weights();

/// A pass before the base model's prefill, to be recorded once all methods have had their say.
struct PlannedPass {
  RecordedPass pass;  ///< all but the graph
  std::function<void(Recorder&, const Plan&)> record;
};

/// Tokens that the layers from one on take back: a run finds how many.
struct RevivedTokens {
  std::size_t first_layer = 0;
  Symbol before;  ///< in the decode steps before this one
  Symbol now;     ///< in this one
};

/// Which share of the tokens that prefill dropped before a layer a decode step is expected to take
/// back, until all are back; runs find their own. The first step looks for what the prompt's last
/// token did not, a later one for what no step before it did: far less.
struct RevivedShares {
  double first_step = 0;
  double later_steps = 0;  ///< each of them
};

/// Layers that each see tokens of their own.
struct TokenFlow {
  std::function<void(Pass&)> prefill;
  std::function<void(Pass&)> decode;
  std::vector<RevivedTokens> revived = {};
};

/// What the methods of one request change, before anything is recorded.
struct Plan {
  Architecture model;  ///< as configured; a method may change its shape
  Symbols& symbols;
  /// Tokens of the prompt that the base model's prefill processes and caches.
  Count prompt_tokens;
  /// Tokens before them in the cache, where helper passes have put them.
  Count prompt_past = {};
  /// The prompt's positions whose logits are asked for.
  Logits logits = Logits::Last;
  /// The prompt comes in chunks.
  bool chunked = false;
  /// The prompt has to be read in one piece: chunks would see another cache.
  bool whole_prompt = false;
  /// The command that makes the weights of `model`, when it is no longer the configured one; empty:
  /// a checkpoint of the configured model holds them.
  std::string conversion = {};
  /// What is cached, and how attention reads it; none: plain_attention.
  std::optional<AttentionMethod> attention = {};
  CrossMethod cross = plain_cross_attention();
  /// Who computes which part of the prompt; none: one device all of it.
  std::optional<Placement> placement = {};
  /// Models with weights of their own, and the passes that come before the base's prefill, in
  /// order. Such passes want the whole prompt.
  std::vector<HelperModel> helper_models = {};
  std::vector<PlannedPass> helpers = {};
  /// Where the base model reads some of the prompt's tokens, at their own positions; none: the last
  /// `prompt_tokens` of them.
  std::optional<TokenSelection> selection = {};
  /// The passes are told where tokens stand; so with every selection.
  bool given_positions = false;
  /// Which tokens the layers of the base see, with given positions; none: all of them.
  std::optional<TokenFlow> token_flow = {};
  FindModel find_model = {};
  /// Methods that leave ranks nothing to share, and what a placement expects in their place.
  std::vector<std::pair<std::string, std::string>> not_spread = {};
  std::string methods = {};  ///< of the request, as its user wrote them

  AttentionMethod base_attention() const { return attention.value_or(plain_attention); }
  bool has(Trait trait) const;
  /// Throws Error when the plan has what one of these excludes.
  void exclude(const std::vector<Exclusion>& exclusions) const;
  /// The base reads these of the prompt's tokens, at their own positions. Throws Error when the
  /// model or the cache method cannot keep those.
  void choose_tokens(TokenSelection chosen);
  /// Each layer sees tokens of its own. Throws Error when the model or the cache method asks for
  /// all of them.
  void let_flow(TokenFlow flow);
  /// The architecture of a model that an option names. Throws Error where none can be looked up.
  Architecture named_model(const std::string& name) const;
};

struct Method {
  std::string_view name;
  MethodKind kind;
  std::string_view summary;               ///< one line for `--help`
  std::vector<std::string_view> options;  ///< keys it takes
  std::function<void(const MethodSpec&, Plan&)> apply;
  /// A spelling that works with small prompts: for help, and for the tests that try all methods.
  std::string_view example;
  /// What it does not compose with, whatever its options.
  std::vector<Exclusion> excludes = {};
};

/// All methods, in the order of `registry.cpp`.
const std::vector<Method>& methods();
/// Throws Error with the nearest name.
const Method& find_method(std::string_view name);

/// Applies methods in the order of their work: what is cached, then which tokens the base reads,
/// where their cache comes from, and who computes what. So a method sees what those that it depends
/// on have done, and can refuse it. Throws Error: methods that do not fit the model, each other, or
/// a prompt in chunks.
void apply_methods(std::vector<MethodSpec> methods, Plan& plan);

}  // namespace kvcast
