#include "roofline/server_step.h"

#include <algorithm>
#include <utility>

#include "model/base/error.h"

namespace kvcast::roofline {
namespace {

std::optional<DevicePlace> device_of(const Configuration& c, std::uint64_t stage) {
  const Parallelism& p = c.parallelism;
  if (p.is_one()) return {};
  return DevicePlace{p, stage * p.of_stage(), c.stage_layers, false};
}

/// Prompts that their caches keep all of may come in chunks.
bool is_in_chunks(const Recording& r) {
  const auto& nodes = r.prefill().nodes();
  const bool bounded = std::any_of(nodes.begin(), nodes.end(),
                                   [](const Node& n) { return is_any<CacheEvict>(n.op); });
  return r.helpers().empty() && !r.selection && !r.whole_prompt && !bounded &&
         r.prompt_slots == Count(symbol::prompt_len);
}

/// In chunks, unless a method needs whole prompts or a group takes them.
Recording record_steps(const Configuration& c, bool by_group, std::uint64_t stage) {
  check_parallelism(c.architecture, c.parallelism);
  if (c.lowering.attention == Kernels::Eager) {
    throw Error("steps of a server", "eager attention",
                "tiled attention over a cache that sequences share");
  }
  RecordOptions options{.find_model = c.find_model, .place = device_of(c, stage)};
  Recording whole = record(c.architecture, c.methods, c.lowering, options);
  if (c.architecture.encoder_decoder) {
    throw Error("steps of a server", c.architecture.name + ", which has an encoder",
                "a decoder-only model");
  }
  if (by_group || !is_in_chunks(whole)) return whole;
  options.chunked = true;
  return record(c.architecture, c.methods, c.lowering, options);
}

bool depends_on(const OpGroup& g, const std::vector<Symbol>& symbols) {
  const OpCost cost = g.cost();
  return std::any_of(symbols.begin(), symbols.end(), [&](Symbol s) {
    return cost.flops.depends_on(s) || cost.bytes.depends_on(s);
  });
}

/// Symbols that count what this device's experts read of all ranks' rows.
std::vector<Symbol> symbols_of_experts(const Graph& graph) {
  std::vector<Symbol> symbols;
  for (const Node& node : graph.nodes()) {
    const auto* const dispatch = std::get_if<DispatchTokens>(&node.op);
    if (dispatch != nullptr && dispatch->group.size > 1) {
      symbols = {dispatch->pairs, dispatch->distinct};
    }
  }
  return symbols;
}

/// What a rank does with rows of its own, though it depends on the experts' counts.
bool sends_rows(const OpGroup& g) {
  return g.op == DispatchTokens::traits.name || g.op == ReturnTokens::traits.name;
}

double seconds_of(const StepCost& step, auto values) {
  double seconds = 0;
  step.part_seconds(values, {&seconds, 1});
  return seconds;
}

std::vector<Symbol> symbols_of_caches(const StepSums& sums) {
  std::vector<Symbol> symbols{sums.cached};
  for (const auto& [range, visible] : sums.visible) {
    symbols.push_back(visible.pairs);
    symbols.push_back(visible.keys);
  }
  return symbols;
}

/// The entry of an index that is made when it is first asked for; empty ones are not made yet.
template <typename Make>
const std::vector<double>& entry(std::vector<std::vector<double>>& table, std::uint64_t index,
                                 const Make& make) {
  if (index >= table.size()) table.resize(index + 1);
  if (table[index].empty()) table[index] = make();
  return table[index];
}

}  // namespace

ServerStep::ServerStep(const Configuration& c, PrefillGroup group, std::uint64_t stage)
    : recording_(record_steps(c, group != nullptr, stage)),
      group_(std::move(group)),
      sums_(!group_ && is_in_chunks(recording_) ? add_step(recording_, device_of(c, stage))
                                                : StepSums{}),
      rates_(rates_of(c)),
      decode_(
          compile(recording_.decode(), recording_.symbols.varying_with(symbol::kv_len), true, c)),
      weight_bytes_(static_cast<double>(recording_.weight_bytes.at({}))),
      hop_bytes_per_row_(static_cast<double>(
          bytes_to_next_stage(recording_.decode()).at(recording_.symbols.resolve({1, 1, 1})))),
      cache_bytes_per_token_(static_cast<double>(recording_.kv_cache_bytes_per_token.at({}))),
      all_(recording_, sums_),
      chunks_(recording_, sums_) {
  if (!group_ && is_in_chunks(recording_)) {
    prompts_ = compile(recording_.pass(step_name).graph, symbols_of_caches(sums_), false, c);
  } else if (!group_) {
    Rates device = rates_;
    device.host.request = {};
    device.host.token = {};
    device.prefill_tokens = 0;
    whole_.emplace(recording_, c.lowering, device);
  }
  const std::vector<OpGroup> groups = fold(recording_.decode(), c.lowering);
  for (const Symbol s : recording_.symbols.varying_with(symbol::kv_len)) {
    if (s == symbol::kv_len) continue;
    const auto uses = [&](const OpGroup& g) { return depends_on(g, {s}); };
    if (std::any_of(groups.begin(), groups.end(), uses)) derived_.push_back(s);
  }
  sums_of_derived_.resize(derived_.size());
}

ServerStep::Pass ServerStep::compile(const Graph& graph, const std::vector<Symbol>& of_caches,
                                     bool decodes, const Configuration& c) const {
  std::vector<OpGroup> rows;
  std::vector<OpGroup> attention;
  std::vector<OpGroup> experts;
  const std::vector<Symbol> of_experts = symbols_of_experts(graph);
  for (OpGroup& g : fold(graph, c.lowering)) {
    const bool is_shared = depends_on(g, of_experts) && !sends_rows(g);
    std::vector<OpGroup>& part = is_shared ? experts : depends_on(g, of_caches) ? attention : rows;
    part.push_back(std::move(g));
  }
  const Rates rates = in_pass(rates_, decodes);
  Pass pass{StepCost(rows, rates), StepCost(attention, rates), {}};
  if (!experts.empty()) pass.experts.emplace(experts, rates);
  return pass;
}

void ServerStep::add_prompt(const StepSequence& sequence) {
  if (prompts_) {
    rows_ += sequence.tokens;
    all_.add(sequence);
    chunks_.add(sequence);
    return;
  }
  KVCAST_ASSERT(sequence.cached == 0);
  ++whole_prompts_;
  whole_rows_ += slots(sequence.tokens);
  whole_prompts_s_ += whole_prompt_seconds(sequence.tokens);
}

Forecast ServerStep::forecast(std::uint64_t prompt_len) const {
  const DesignPoint point{1, prompt_len, 1};
  Forecast f;
  whole_->sweep({&point, 1}, {&f, 1});
  return f;
}

double ServerStep::whole_prompt_seconds(std::uint64_t prompt_len) {
  const auto known = whole_prompt_s_.find(prompt_len);
  if (known != whole_prompt_s_.end()) return known->second;
  const HostTimes& host = rates_.host;
  const double seconds = group_
                             ? group_(prompt_len).seconds
                             : forecast(prompt_len).ttft_s - host.step.value - host.sequence.value;
  whole_prompt_s_.emplace(prompt_len, seconds);
  return seconds;
}

void ServerStep::check_prompt(std::uint64_t prompt_len) {
  if (prompts_) return;
  check_prompt_length(recording_, prompt_len);
  if (group_) whole_prompt_seconds(prompt_len);
}

std::uint64_t ServerStep::slots(std::uint64_t prompt_len) const {
  if (prompts_) return prompt_len;
  return recording_.prompt_slots.at(recording_.symbols.resolve({1, prompt_len, 1}));
}

void ServerStep::add_decode(std::uint64_t kv_len) {
  ++rows_;
  ++decodes_;
  sum_of_kv_len_ += static_cast<double>(kv_len);
  if (derived_.empty()) return;
  const std::vector<double>& derived = derived_at(kv_len);
  for (std::size_t i = 0; i < derived.size(); ++i) sums_of_derived_[i] += derived[i];
}

const std::vector<double>& ServerStep::derived_at(std::uint64_t kv_len) {
  return entry(derived_at_, kv_len, [&] {
    const SymbolValues all = recording_.symbols.resolve({1, 1, kv_len});
    std::vector<double> values;
    for (const Symbol s : derived_) values.push_back(static_cast<double>(all[s.id]));
    return values;
  });
}

const std::vector<double>& ServerStep::decode_means() {
  entry(of_batch_, decodes_, [&] {
    const SymbolValues all = recording_.symbols.resolve({decodes_, 1, 1});
    return std::vector<double>(all.begin(), all.end());
  });
  std::vector<double>& values = of_batch_[decodes_];
  const auto n = static_cast<double>(decodes_);
  values[symbol::kv_len.id] = sum_of_kv_len_ / n;
  for (std::size_t i = 0; i < derived_.size(); ++i) {
    values[derived_[i].id] = sums_of_derived_[i] / n;
  }
  return values;
}

void ServerStep::next_rank() {
  ++ranks_.number;
  const std::uint64_t chunks = chunks_.num_sequences();
  const std::uint64_t prompts = chunks + whole_prompts_;
  if (prompts + decodes_ == 0) return;
  double device_s = whole_prompts_s_;
  double host_s = 0;
  if (decodes_ > 0) {
    const std::span<const double> means = decode_means();
    device_s += seconds_of(decode_.attention, means);
    if (chunks == 0) device_s += seconds_of(decode_.rows, means);
    host_s += chunks == 0 ? decode_.host_s() : decode_.attention.host_seconds();
  }
  if (chunks > 0) {
    device_s += seconds_of(prompts_->attention, std::span<const std::uint64_t>(chunks_.values()));
    all_.add_rows(decodes_);
    device_s += seconds_of(prompts_->rows, std::span<const std::uint64_t>(all_.values()));
    host_s += prompts_->host_s();
  }
  ranks_.rows += rows_;
  ranks_.most_rows = std::max(ranks_.most_rows, rows_ + whole_rows_);
  ranks_.has_chunks |= chunks > 0;
  ranks_.device_s = std::max(ranks_.device_s, device_s);
  ranks_.host_s = std::max(ranks_.host_s, host_s);
  ranks_.sequences_s = std::max(
      ranks_.sequences_s, static_cast<double>(prompts + decodes_) * rates_.host.sequence.value);
  all_.clear();
  chunks_.clear();
  rows_ = 0;
  whole_prompts_ = 0;
  whole_rows_ = 0;
  whole_prompts_s_ = 0;
  decodes_ = 0;
  sum_of_kv_len_ = 0;
  std::fill(sums_of_derived_.begin(), sums_of_derived_.end(), 0);
}

double ServerStep::expert_seconds() {
  const std::uint64_t rows = divided_up(ranks_.rows, ranks_.number);
  if (!ranks_.has_chunks) {
    const SymbolValues values = recording_.symbols.resolve({rows, 1, 1});
    return seconds_of(*decode_.experts, std::span<const std::uint64_t>(values));
  }
  all_.add_rows(rows);
  const double seconds =
      seconds_of(*prompts_->experts, std::span<const std::uint64_t>(all_.values()));
  all_.clear();
  return seconds;
}

Seconds ServerStep::take() {
  if (rows_ + whole_rows_ > 0) next_rank();
  KVCAST_ASSERT(ranks_.most_rows > 0);
  double device_s = ranks_.device_s;
  double host_s = ranks_.host_s;
  if (decode_.experts && ranks_.rows > 0) {
    device_s += expert_seconds();
    host_s += (ranks_.has_chunks ? *prompts_ : decode_).experts->host_seconds();
  }
  const double sequences_s = ranks_.sequences_s;
  ranks_ = {};
  return Seconds{paced_seconds(device_s, host_s) + rates_.host.step.value + sequences_s};
}

double ServerStep::hop_bytes() const {
  return hop_bytes_per_row_ * static_cast<double>(std::max(ranks_.most_rows, rows_ + whole_rows_));
}

double ServerStep::activation_bytes(std::uint64_t tokens) const {
  if (group_) return group_(tokens).activation_bytes;
  if (!prompts_) {
    const Forecast f = forecast(tokens);
    return f.peak_memory_bytes - f.weight_bytes - f.kv_cache_bytes;
  }
  const SymbolValues values = step_sizes(recording_, sums_, std::vector<StepSequence>{{tokens, 0}});
  std::uint64_t most = 0;
  for (const Count& peak : kvcast::activation_peaks(recording_.pass(step_name).graph)) {
    most = std::max(most, peak.at(values));
  }
  return static_cast<double>(most);
}

}  // namespace kvcast::roofline
