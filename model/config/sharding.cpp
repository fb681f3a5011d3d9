#include "model/config/sharding.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/base/error.h"
#include "model/base/units.h"
#include "model/config/layer_pruning.h"

namespace kvcast {
namespace {

/// More than any machine has.
constexpr std::uint64_t most_devices = 65536;

/// What of a stored tensor a device has.
enum class Split {
  Whole,
  Rows,           ///< of its heads or features
  KeyRows,        ///< of its key-value heads, which several devices share where tp exceeds them
  GroupRows,      ///< the same of the groups of a state space
  Columns,        ///< inputs of a product, which then gives a part of a sum
  Vocabulary,     ///< rows of its tokens; the last device's may end beyond the table
  ExpertRows,     ///< of its experts, the rows of its features
  ExpertColumns,  ///< of its experts, the columns of its features
};

/// By the weight's name in its layer. What is not here is whole.
constexpr std::array<std::pair<std::string_view, Split>, 38> splits = {{
    {"query", Split::Rows},
    {"query_nope", Split::Rows},
    {"query_rope", Split::Rows},
    {"key_up", Split::Rows},
    {"value_up", Split::Rows},
    {"attention_gate", Split::Rows},
    {"sinks", Split::Rows},
    {"key", Split::KeyRows},
    {"value", Split::KeyRows},
    {"attention_output", Split::Columns},
    {"cross_query", Split::Rows},
    {"cross_key", Split::KeyRows},
    {"cross_value", Split::KeyRows},
    {"cross_output", Split::Columns},
    {"gate", Split::Rows},
    {"up", Split::Rows},
    {"down", Split::Columns},
    {"shared_expert.gate", Split::Rows},
    {"shared_expert.up", Split::Rows},
    {"shared_expert.down", Split::Columns},
    {"experts.gate", Split::ExpertRows},
    {"experts.up", Split::ExpertRows},
    {"experts.down", Split::ExpertColumns},
    {"state.gate", Split::Rows},
    {"state.input_gate", Split::Rows},
    {"state.value", Split::Rows},
    {"state.conv_value", Split::Rows},
    {"state.time_step", Split::Rows},
    {"state.time_step_bias", Split::Rows},
    {"state.beta", Split::Rows},
    {"state.decay", Split::Rows},
    {"state.skip", Split::Rows},
    {"state.key", Split::GroupRows},
    {"state.query", Split::GroupRows},
    {"state.conv_key", Split::GroupRows},
    {"state.conv_query", Split::GroupRows},
    {"state.time_step_latent", Split::Columns},
    {"state.output", Split::Columns},
}};

struct WeightName {
  const Stack* stack;
  const LayerShape* layer;    ///< none: the weight is of no layer
  std::string_view in_layer;  ///< "experts.gate"
};

/// "layers.3.experts.gate.weight", "layers.3.experts.gate" or "encoder.layers.3.gate.weight"
WeightName parse(const Architecture& a, std::string_view name) {
  for (const std::string_view ending : {".weight", ".bias"}) {
    if (name.ends_with(ending)) name.remove_suffix(ending.size());
  }
  const auto strip = [&name](std::string_view prefix) {
    const bool there = name.starts_with(prefix);
    if (there) name.remove_prefix(prefix.size());
    return there;
  };
  const Stack* stack = &a.decoder;
  if (a.encoder_decoder && strip("encoder.")) {
    stack = &a.encoder;
  } else if (a.encoder_decoder) {
    strip("decoder.");
  }
  const WeightName of_no_layer{stack, nullptr, name};
  if (!strip("layers.")) return of_no_layer;
  std::size_t layer = 0;
  const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc() || rest == name.data() + name.size() || *rest != '.') return of_no_layer;
  return {stack, &stack->layers.at(layer),
          name.substr(static_cast<std::size_t>(rest - name.data()) + 1)};
}

Split split_of(const WeightName& name) {
  if (name.layer == nullptr) {
    const bool vocabulary = name.in_layer == "embedding" || name.in_layer == "head";
    if (name.in_layer == "relative_bias") return Split::Columns;  // one for each head
    return vocabulary ? Split::Vocabulary : Split::Whole;
  }
  const LayerShape& layer = *name.layer;
  // Norms with a weight for each head.
  if (name.stack->query_key_norm == QueryKeyNorm::LayerHeads) {
    if (name.in_layer == "query_norm") return Split::Rows;
    if (name.in_layer == "key_norm") return Split::KeyRows;
  }
  if (layer.state_space) {
    const StateSpace& s = *layer.state_space;
    const bool of_parts = s.norm_groups > 1 && !s.shares_norm;
    if (name.in_layer == "state.norm") return of_parts ? Split::Rows : Split::Whole;
    // Mamba-1 projects the split values to keys and queries.
    const bool by_values = name.in_layer == "state.key" || name.in_layer == "state.query";
    if (s.time_step_rank > 0 && by_values) return Split::Columns;
  }
  const auto known = std::find_if(splits.begin(), splits.end(),
                                  [&](const auto& split) { return split.first == name.in_layer; });
  return known == splits.end() ? Split::Whole : known->second;
}

/// Sizes that must divide, or by which heads are shared.
struct Divided {
  std::uint64_t number;
  std::string_view what;
  bool shared = false;  ///< a multiple of it will do too
  bool divides(std::uint64_t by) const { return number % by == 0 || (shared && by % number == 0); }
};

std::vector<Divided> divided_by_tp(const Architecture& a, bool with_experts) {
  std::vector<Divided> sizes;
  const auto add = [&](Divided d) {
    const bool known = std::any_of(sizes.begin(), sizes.end(), [&](const Divided& s) {
      return s.number == d.number && s.what == d.what;
    });
    if (d.number > 0 && !known) sizes.push_back(d);
  };
  for (const Stack* stack : {&a.decoder, &a.encoder}) {
    for (const LayerShape& l : stack->layers) {
      add({l.heads.num_attention_heads, "attention heads"});
      add({l.heads.num_key_value_heads, "key-value heads", true});
      add({l.intermediate_size, "features of an MLP"});
      if (l.experts) {
        if (with_experts) add({l.experts->intermediate_size, "features of an expert"});
        add({l.experts->shared_intermediate_size, "features of a shared expert"});
      }
      if (l.state_space) {
        add({l.state_space->num_heads, "heads of a state space"});
        add({l.state_space->num_groups, "groups of a state space", true});
        if (l.state_space->norm_groups > 1) {
          add({l.state_space->norm_groups, "parts of a state space's norm"});
        }
      }
    }
  }
  return sizes;
}

const Divided* not_divided(const std::vector<Divided>& sizes, std::uint64_t by) {
  const auto found =
      std::find_if(sizes.begin(), sizes.end(), [by](const Divided& d) { return !d.divides(by); });
  return found == sizes.end() ? nullptr : &*found;
}

/// Devices beyond which no model splits its heads; bounds the search for numbers that do.
constexpr std::uint64_t most_suggested = 1024;

void check_divides(const std::string& flag, const Architecture& a,
                   const std::vector<Divided>& sizes, std::uint64_t by) {
  const Divided* wrong = not_divided(sizes, by);
  if (wrong == nullptr) return;
  std::vector<std::uint64_t> good;
  for (std::uint64_t n = 1; n <= most_suggested; ++n) {
    if (not_divided(sizes, n) == nullptr) good.push_back(n);
  }
  throw Error(fmt::format("{} {}: {} has {} {}", flag, by, a.name, wrong->number, wrong->what) +
              fmt::format("; expected one of {}", fmt::join(good, ", ")));
}

LayerShape slice_of(const LayerShape& whole, const Parallelism& p) {
  LayerShape l = whole;
  const auto shared = [&](std::uint64_t heads) { return std::max<std::uint64_t>(heads / p.tp, 1); };
  if (l.attends()) {
    l.heads.num_attention_heads /= p.tp;
    l.heads.num_key_value_heads = shared(l.heads.num_key_value_heads);
  }
  l.intermediate_size /= p.tp;
  if (l.experts) {
    l.experts->intermediate_size /= p.expert_tp();
    l.experts->shared_intermediate_size /= p.tp;
  }
  if (l.state_space) {
    StateSpace& s = *l.state_space;
    s.num_heads /= p.tp;
    s.num_groups = shared(s.num_groups);
    if (s.norm_groups > 1) s.norm_groups /= p.tp;
  }
  return l;
}

}  // namespace

std::string to_string(const Parallelism& p) {
  std::string text;
  const auto add = [&](const char* name, std::uint64_t n) {
    if (n > 1) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, n);
  };
  add("tp", p.tp);
  add("pp", p.pp);
  add("ep", p.ep);
  add("dp", p.dp);
  if (p.sequence_parallel) text += " with sequence-parallel norms";
  return text;
}

Parallelism parse_parallelism(const std::map<std::string, std::string>& words) {
  const auto word = [&](const char* name) {
    const auto found = words.find(name);
    return found == words.end() ? std::string() : found->second;
  };
  const auto number = [&](const char* name) {
    const std::string text = word(name);
    if (text.empty()) return std::uint64_t{1};
    std::uint64_t n = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc() || rest != text.data() + text.size() || n == 0 || n > most_devices) {
      throw Error("--" + std::string(name), "'" + text + "'",
                  fmt::format("a whole number from 1 to {}", most_devices));
    }
    return n;
  };
  Parallelism p{number("tp"), number("pp"), number("ep"), number("dp")};
  if (word("dp").empty() && p.ep > p.tp && p.ep % p.tp == 0) p.dp = p.ep / p.tp;
  if (p.tp * p.pp > most_devices || p.tp * p.pp * p.dp > most_devices) {
    throw Error(to_string(p), fmt::format("{} devices", p.tp * p.pp * p.dp),
                fmt::format("at most {}", most_devices));
  }
  return p;
}

bool takes_sequence_parallel(const Architecture& a) { return !a.decoder.altup; }

void check_parallelism(const Architecture& a, const Parallelism& p) {
  const auto flags = {std::pair{"--tp", p.tp}, {"--pp", p.pp}, {"--ep", p.ep}, {"--dp", p.dp}};
  for (const auto& [flag, n] : flags) {
    if (n == 0) throw Error(flag, "0", "at least 1");
  }
  for (const LayerShape& l : a.decoder.layers) {
    if (p.ep > 1 || !l.experts) continue;
    if (l.experts->copies > 0) {
      throw Error("expert_copies",
                  fmt::format("{} copies for no device of their own", l.experts->copies),
                  "--ep above 1");
    }
    if (l.experts->draws > 0) {
      throw Error("expert_draws", "one device that has all experts", "--ep above 1");
    }
  }
  if (p.sequence_parallel && p.tp == 1) {
    throw Error("--sequence-parallel", "whole layers on each device", "--tp above 1");
  }
  if (p.is_one() && p.ep == 1) return;
  if (a.encoder_decoder && (p.pp > 1 || p.sequence_parallel)) {
    throw Error(to_string(p), "the encoder-decoder model " + a.name,
                "--tp and --dp alone, or a decoder-only model");
  }
  check_divides("--tp", a, divided_by_tp(a, p.ep == 1), p.tp);
  const QueryKeyNorm norm = a.decoder.query_key_norm;
  for (const LayerShape& l : a.decoder.layers) {
    if (norm == QueryKeyNorm::Whole && l.heads.num_key_value_heads % p.tp != 0) {
      throw Error(fmt::format("--tp {}: {} norms {} key-value heads together", p.tp, a.name,
                              l.heads.num_key_value_heads) +
                  "; expected a divisor of them");
    }
  }
  if (p.pp > a.decoder.layers.size()) {
    throw Error(fmt::format("--pp {}", p.pp), fmt::format("{} layers", a.decoder.layers.size()),
                "a layer for each stage");
  }
  if (p.pp > 1 && a.decoder.altup) {
    throw Error(fmt::format("--pp {}", p.pp), a.name + ", whose layers hand on several streams",
                "--pp 1");
  }
  if (p.pp > 1 && hands_on_choices(a.decoder)) {
    throw Error(fmt::format("--pp {}", p.pp),
                a.name + ", whose layers hand on the tokens they chose", "--pp 1");
  }
  if (p.sequence_parallel && !takes_sequence_parallel(a)) {
    throw Error("sequence-parallel norms", a.name + ", which mixes streams between its layers",
                "norms of all tokens on each device");
  }
  if (p.ep == 1) return;
  if (layers_with_experts(a.decoder) == 0) {
    throw Error(fmt::format("--ep {}", p.ep), a.name + ", which has no experts", "--ep 1");
  }
  if (p.of_stage() % p.ep != 0) {
    throw Error(fmt::format("--ep {}", p.ep),
                fmt::format("{} devices in a stage (tp {} x dp {})", p.of_stage(), p.tp, p.dp),
                "a divisor of them");
  }
  if (p.ep % p.dp != 0) {
    throw Error(fmt::format("--ep {}", p.ep), fmt::format("--dp {}", p.dp),
                "a multiple of it: all devices hold experts of their own");
  }
  std::vector<Divided> experts;
  std::vector<Divided> features;
  for (const LayerShape& l : a.decoder.layers) {
    if (!l.experts) continue;
    experts.push_back({l.experts->routing.num_experts + l.experts->copies,
                       l.experts->copies > 0 ? "experts and copies" : "experts"});
    features.push_back({l.experts->intermediate_size, "features of an expert"});
  }
  check_divides("--ep", a, experts, p.ep);
  check_divides(fmt::format("--ep {}, which leaves each expert to a group of", p.ep), a, features,
                p.expert_tp());
}

std::vector<std::size_t> stage_ends(const Architecture& a, std::uint64_t pp,
                                    const std::vector<std::size_t>& sizes) {
  const std::size_t layers = a.decoder.layers.size();
  std::size_t sum = 0;
  for (const std::size_t size : sizes) sum = checked_add(sum, size);
  if (!sizes.empty() && (sizes.size() != pp || sum != layers)) {
    throw Error(fmt::format("stages of {} layers", fmt::join(sizes, "/")),
                fmt::format("{} stages and {} layers", sizes.size(), sum),
                fmt::format("{} stages and the {} layers of {}", pp, layers, a.name));
  }
  std::vector<std::size_t> ends;
  for (std::size_t stage = 0; stage < pp; ++stage) {
    const std::size_t size =
        sizes.empty() ? layers / pp + (stage < layers % pp ? 1 : 0) : sizes[stage];
    ends.push_back((ends.empty() ? 0 : ends.back()) + size);
  }
  for (std::size_t i = 0; i < layers; ++i) {
    const std::optional<std::size_t>& owner = a.decoder.layers[i].kv_layer;
    if (!owner) continue;
    const auto stage_of = [&](std::size_t layer) {
      return std::upper_bound(ends.begin(), ends.end(), layer) - ends.begin();
    };
    if (stage_of(*owner) == stage_of(i)) continue;
    throw Error(
        fmt::format("--pp {}: layer {} of {} reads the keys and values of layer {}, of an "
                    "earlier stage; expected stages that keep both",
                    pp, i, a.name, *owner));
  }
  return ends;
}

Sharding::Sharding(const Architecture& whole, const DevicePlace& place)
    : whole_(&whole), place_(place), end_layer_(whole.decoder.layers.size()), part_(whole) {
  check_parallelism(whole, plan());
  KVCAST_ASSERT(place.device < plan().devices());
  for (const LayerShape& layer : whole.decoder.layers) {
    if (!place.counts_by_layer || !layer.experts || layer.experts->copies == 0) continue;
    throw Error("expert_copies", "a run, whose checkpoint has each expert once",
                "a forecast of their copies");
  }
  for (Stack* stack : {&part_.encoder, &part_.decoder}) {
    for (LayerShape& layer : stack->layers) layer = slice_of(layer, plan());
  }
  part_.vocab_size = (whole.vocab_size + plan().tp - 1) / plan().tp;
  if (plan().pp == 1) return;
  const std::vector<std::size_t> ends = stage_ends(whole, plan().pp, place.stage_layers);
  if (stage() > 0) first_layer_ = ends[stage() - 1];
  end_layer_ = ends[stage()];
}

RankGroup Sharding::tensor_group() const {
  return {plan().tp, 1, first_device() + place_.device - slice()};
}

RankGroup Sharding::replica_group() const {
  return {plan().dp, plan().tp, first_device() + stage() * plan().of_stage() + slice()};
}

std::optional<WeightPart> Sharding::part_of(const std::string& name,
                                            const std::vector<Count>& shape) const {
  const WeightName parsed = parse(*whole_, name);
  const Split split = split_of(parsed);
  if (split == Split::Whole) return {};
  WeightPart part{shape};
  const std::uint64_t rows = shape[0].constant();
  const auto of_rows = [&](std::uint64_t parts) {
    part.whole[0] = rows * parts;
    part.first_row = slice() * parts / plan().tp * rows;
  };
  const auto of_columns = [&](std::uint64_t parts, std::uint64_t index) {
    part.whole[1] = shape[1] * parts;
    part.first_column = index * shape[1].constant();
  };
  switch (split) {
    case Split::Whole: break;
    case Split::Rows: of_rows(plan().tp); break;
    case Split::KeyRows:
      of_rows(std::min(plan().tp, parsed.layer->heads.num_key_value_heads));
      break;
    case Split::GroupRows:
      of_rows(std::min(plan().tp, parsed.layer->state_space->num_groups));
      break;
    case Split::Columns:
      if (shape.size() > 1) of_columns(plan().tp, slice());
      break;
    case Split::Vocabulary:
      part.whole[0] = whole_->vocab_size;
      part.first_row = slice() * rows;
      break;
    case Split::ExpertRows:
    case Split::ExpertColumns: {
      const Experts& e = *parsed.layer->experts;
      part.blocks = e.routing.num_experts;
      part.first_block = plan().ep > 1 ? first_expert(e) : 0;
      part.blocks_here = experts_here(e);
      part.whole[0] = rows * plan().ep;
      const std::uint64_t index = in_stage() % plan().expert_tp();
      if (split == Split::ExpertColumns) {
        if (shape.size() > 1) of_columns(plan().expert_tp(), index);
        break;
      }
      part.whole[0] = part.whole[0] * plan().expert_tp();
      part.first_row = index * (rows / part.blocks_here);
      break;
    }
  }
  if (part.whole == shape) return {};
  return part;
}

bool Sharding::adds_bias(const std::string& prefix) const {
  const Split split = split_of(parse(*whole_, prefix));
  if (split == Split::Columns) return slice() == 0;
  if (split == Split::ExpertColumns) return in_stage() % plan().expert_tp() == 0;
  return true;
}

}  // namespace kvcast
