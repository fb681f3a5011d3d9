#include "reports/sweep/sweep_grid.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "measure/measurements.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/io/files/fnv_hash.h"
#include "reports/sweep/stored_validations.h"
#include "roofline/interconnect.h"

namespace kvcast::reports {
namespace {

/// Positions in `word_axes` and SweepGrid::Digits; the set axes follow.
enum GridAxis : std::size_t {
  model_axis,
  hardware_axis,
  engine_axis,
  method_axis,
  attention_axis,
  elementwise_axis,
  dtype_axis,
  weight_axis,
  activation_axis,
  cache_axis,
  mode_axis,
  tp_axis,
  pp_axis,
  ep_axis,
  dp_axis,
  sequence_axis,
  micro_batches_axis,
  platform_axis,
};

/// One spelling of each value: "flash" is "tiled", "h100" is "h100-sxm". Throws Error for a word
/// that the axis cannot have.
std::string one_spelling(const Catalog& catalog, std::size_t axis, const std::string& word) {
  switch (axis) {
    case model_axis: return catalog.canonical("models", word);
    case hardware_axis: return catalog.canonical("hardware", word);
    case engine_axis: return word;
    case method_axis: return to_string(parse_methods(word));
    case attention_axis: return std::string(measure::attention_name(parse_kernels(word)));
    case elementwise_axis: return std::string(measure::elementwise_name(parse_kernels(word)));
    case mode_axis: return std::string(roofline::name(roofline::parse_mode(word)));
    case weight_axis: return parse_weight_types(word).text;
    case tp_axis: return std::to_string(parse_parallelism({{"tp", word}}).tp);
    case pp_axis: return std::to_string(parse_parallelism({{"pp", word}}).pp);
    case ep_axis: return std::to_string(parse_parallelism({{"ep", word}, {"dp", "1"}}).ep);
    case dp_axis: return std::to_string(parse_parallelism({{"dp", word}}).dp);
    case sequence_axis:
      if (word == "on" || word == "off") return word;
      throw unknown_name("value", word, {"off", "on"});
    case micro_batches_axis: return std::to_string(parse_token_count(word, "a number"));
    case platform_axis: catalog.find("platforms", "platform", word); return word;
    default: return std::string(name(parse_dtype(word)));
  }
}

/// Each part is closed by its length, so that "ab","c" and "a","bc" differ.
class Hash {
 public:
  void add(std::string_view part) {
    hash_.add(part);
    add(part.size());
  }
  void add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      const auto byte = static_cast<char>(number >> shift & 0xff);
      hash_.add({&byte, 1});
    }
  }
  void add_words(const std::vector<std::string>& words) {
    for (const std::string& word : words) add(word);
    add(words.size());
  }
  std::uint64_t value() const { return hash_.value(); }

 private:
  FnvHash hash_;
};

/// A JSON file by its contents; others (weights may be gigabytes) by size and time.
void add_file(Hash& hash, const std::filesystem::path& path) {
  std::error_code ec;
  if (path.extension() == ".json") {
    std::ifstream file(path, std::ios::binary);
    hash.add(std::string(std::istreambuf_iterator<char>(file), {}));
    return;
  }
  hash.add(path.string());
  hash.add(static_cast<std::uint64_t>(std::filesystem::file_size(path, ec)));
  const auto time = std::filesystem::last_write_time(path, ec).time_since_epoch().count();
  hash.add(static_cast<std::uint64_t>(time));
}

}  // namespace

std::string csv_cell(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string cell = "\"";
  for (const char c : text) {
    if (c == '"') cell += '"';
    // A line of the file is a row, whatever a name or a message holds.
    cell += c == '\n' || c == '\r' ? ' ' : c;
  }
  return cell + '"';
}

SweepGrid::SweepGrid(const SweepSpec& spec, const Catalog& catalog)
    : catalog_(catalog), spec_(spec) {
  for (const auto& [axis, flag] :
       {std::pair{&spec_.model, "--model"}, std::pair{&spec_.hardware, "--hardware"}}) {
    if (axis->empty())
      throw Error(fmt::format("{} is required: one or more; see kvcast {} list", flag, flag + 2));
  }
  if (!spec_.dtype.empty() && !spec_.weight_dtype.empty() && !spec_.activation_dtype.empty() &&
      !spec_.cache_dtype.empty()) {
    throw Error(
        "--dtype has no effect together with --weight-dtype, --activation-dtype and "
        "--cache-dtype; expected at most three of the four");
  }
  if (spec_.batch.empty()) spec_.batch = {1};
  if (spec_.output_len.empty()) spec_.output_len = {128};
  for (std::size_t axis = 0; axis < word_axes.size(); ++axis) {
    const auto& [key, member, fallback] = word_axes[axis];
    std::vector<std::string>& values = spec_.*member;
    std::vector<std::string>& words = words_.emplace_back();
    if (values.empty() && *fallback != '\0') values = {fallback};
    for (const std::string& value : values) {
      try {
        const std::string word = one_spelling(catalog_, axis, value);
        if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
      } catch (const Error& e) {
        std::string problem = e.what();
        const std::string flag = flag_of(key) + ": ";
        if (problem.starts_with(flag)) problem.erase(0, flag.size());
        throw Error(spec_.place_of(key) + ": " + problem);
      }
    }
    if (words.empty()) words.emplace_back();
  }
  for (const std::string& name : words_[model_axis]) {
    const Architecture a = load_model(catalog_, name);
    model_types_.push_back({a.stored_weights, a.default_dtype(), a.stored_operands});
  }
  for (const std::string& name : words_[hardware_axis]) {
    hardware_.push_back(roofline::load_hardware(catalog_, name));
  }
  for (const std::string& name : words_[engine_axis]) {
    try {
      engines_.push_back(roofline::load_engine(catalog_, name));
    } catch (const Error& e) {
      throw Error(spec_.place_of("engine"), e);
    }
  }
  check_set();
  count_points();
  look_up_error_bounds();
  fingerprint_ = make_fingerprint();
}

/// A value that a model cannot have is a row with a reason; a key of which no value works anywhere
/// is a mistake in the request.
void SweepGrid::check_set() const {
  std::set<std::string> keys;
  for (const SetAxis& axis : spec_.set) {
    if (!keys.insert(axis.key).second) {
      throw Error("--set " + axis.key + ": given twice; expected one list of its values");
    }
    std::optional<Error> first;
    const auto works = [&](const std::string& model, const std::string& value) {
      try {
        load_model(catalog_, model, {{axis.key, value}});
        return true;
      } catch (const Error& e) {
        if (!first) first = e;
        return false;
      }
    };
    const bool any = std::any_of(axis.values.begin(), axis.values.end(), [&](const auto& value) {
      return std::any_of(spec_.model.begin(), spec_.model.end(),
                         [&](const std::string& model) { return works(model, value); });
    });
    if (!any) throw *first;
  }
}

void SweepGrid::count_points() {
  for (const std::vector<std::string>& words : words_) radix_.push_back(words.size());
  for (const SetAxis& axis : spec_.set) radix_.push_back(axis.values.size());
  double points = 1;
  num_configurations_ = 1;
  num_sizes_ = 1;
  for (const std::size_t n : radix_) points *= static_cast<double>(n);
  for (const auto& [key, values] : number_axes) {
    points *= static_cast<double>(std::max<std::size_t>(1, (spec_.*values).size()));
  }
  if (points > static_cast<double>(max_sweep_points)) {
    throw Error("the grid", fmt::format("{:.4g} points", points),
                fmt::format("at most {}; shorten a range or enlarge its step", max_sweep_points));
  }
  for (const std::size_t n : radix_) num_configurations_ *= n;
  for (const auto& [key, values] : number_axes) {
    num_sizes_ *= std::max<std::size_t>(1, (spec_.*values).size());
  }
}

std::string SweepGrid::make_fingerprint() const {
  Hash hash;
  hash.add(sweep_input_columns);
  for (const WordAxis& axis : word_axes) hash.add_words(spec_.*axis.values);
  for (const auto& [key, values] : number_axes) {
    for (const std::uint64_t value : spec_.*values) hash.add(value);
    hash.add((spec_.*values).size());
  }
  for (const SetAxis& axis : spec_.set) {
    hash.add(axis.key);
    hash.add_words(axis.values);
    if (axis.key != expert_tokens_key) continue;
    for (const std::string& path : axis.values) add_file(hash, path);
  }
  for (const std::string& name : spec_.model)
    add_file(hash, catalog_.find("models", "model", name));
  for (const std::string& name : spec_.hardware) {
    add_file(hash, catalog_.find("hardware", "hardware", name));
  }
  for (const roofline::Engine& engine : engines_) {
    for (const roofline::EngineValue& value : engine.values) {
      hash.add(value.key);
      hash.add(value.value);
    }
    hash.add(engine.values.size());
  }
  for (const auto& [key, bounds] : error_bounds_) {
    for (const measure::BoundOrReason& b : bounds) {
      hash.add(b.bound ? fmt::format("{}", b.bound->error) : "none");
    }
  }
  return fmt::format("{:016x}", hash.value());
}

SweepGrid::Digits SweepGrid::digits(std::uint64_t configuration) const {
  Digits d(radix_.size());
  for (std::size_t i = radix_.size(); i-- > 0;) {
    d[i] = configuration % radix_[i];
    configuration /= radix_[i];
  }
  return d;
}

Lowering SweepGrid::lowering(const Digits& d) const {
  const auto or_else = [&](std::size_t axis, DType other) {
    return word(d, axis).empty() ? other : parse_dtype(word(d, axis));
  };
  const ModelTypes& of_model = model_types_[d[model_axis]];
  const DType all = or_else(dtype_axis, of_model.all);
  Lowering l;
  const std::string& attention = word(d, attention_axis);
  const std::string& elementwise = word(d, elementwise_axis);
  if (!attention.empty()) l.attention = parse_kernels(attention);
  l.elementwise = elementwise.empty() ? l.attention : parse_kernels(elementwise);
  l.weights = word(d, weight_axis).empty() ? of_model.stored_weights.value_or(all)
                                           : parse_weight_types(word(d, weight_axis));
  const bool as_stored = word(d, dtype_axis).empty() && word(d, weight_axis).empty();
  const DType activations =
      as_stored ? hardware_[d[hardware_axis]].activations_of(of_model.stored_operands, all) : all;
  l.activations = or_else(activation_axis, activations);
  l.cache = or_else(cache_axis, all);
  roofline::apply(engines_[d[engine_axis]], attention.empty(), elementwise.empty(), l);
  return l;
}

Parallelism SweepGrid::parallelism(const Digits& d) const {
  Parallelism p = parse_parallelism({{"tp", word(d, tp_axis)},
                                     {"pp", word(d, pp_axis)},
                                     {"ep", word(d, ep_axis)},
                                     {"dp", word(d, dp_axis)}});
  p.sequence_parallel = word(d, sequence_axis) == "on";
  return p;
}

std::vector<ConfigOverride> SweepGrid::overrides(const Digits& d) const {
  std::vector<ConfigOverride> list;
  for (std::size_t i = 0; i < spec_.set.size(); ++i) {
    list.push_back({spec_.set[i].key, spec_.set[i].values[d[word_axes.size() + i]]});
  }
  return list;
}

roofline::Configuration SweepGrid::configuration(std::uint64_t index) const {
  const Digits d = digits(index);
  roofline::Configuration c;
  c.architecture = load_model(catalog_, word(d, model_axis), overrides(d));
  c.find_model = find_model_in(catalog_);
  c.hardware = hardware_[d[hardware_axis]];
  c.engine = engines_[d[engine_axis]];
  c.methods = parse_methods(word(d, method_axis));
  c.lowering = lowering(d);
  c.mode = roofline::parse_mode(word(d, mode_axis));
  c.parallelism = parallelism(d);
  c.micro_batches = micro_batches(index).value_or(0);
  c.interconnect = roofline::interconnect_of(c, catalog_, word(d, platform_axis));
  return c;
}

std::optional<std::uint64_t> SweepGrid::micro_batches(std::uint64_t index) const {
  const std::string& text = word(digits(index), micro_batches_axis);
  if (text.empty()) return {};
  return std::stoull(text);
}

std::string SweepGrid::bounds_key(const Digits& d) const {
  const Lowering l = lowering(d);
  return fmt::format("{} {} {} {} {}", word(d, hardware_axis), word(d, engine_axis),
                     word(d, method_axis), measure::attention_name(l.attention),
                     measure::dtypes_text(l));
}

void SweepGrid::look_up_error_bounds() {
  for (measure::BoundOrReason& b : speed_of_light_bounds_) b.reason = measure::speed_of_light_note;
  measure::ValidationStore store = stored_validations(catalog_, words_[hardware_axis]);
  std::uint64_t set_values = 1;  // error bounds do not depend on them
  for (const SetAxis& axis : spec_.set) set_values *= axis.values.size();
  for (std::uint64_t c = 0; c < num_configurations_; c += set_values) {
    const Digits d = digits(c);
    const auto [found, is_new] = error_bounds_.try_emplace(bounds_key(d));
    if (!is_new) continue;
    const measure::Estimated estimate{.hardware = hardware_[d[hardware_axis]],
                                      .engine = engines_[d[engine_axis]].name,
                                      .methods = word(d, method_axis),
                                      .lowering = lowering(d)};
    for (const measure::Regime regime : measure::all_regimes) {
      found->second[static_cast<std::size_t>(regime)] = store.bound(estimate, regime);
    }
  }
}

const RegimeBounds& SweepGrid::error_bounds(std::uint64_t index) const {
  const Digits d = digits(index);
  const bool light = roofline::parse_mode(word(d, mode_axis)) == roofline::Mode::SpeedOfLight;
  return light ? speed_of_light_bounds_ : error_bounds_.at(bounds_key(d));
}

std::set<measure::Regime> SweepGrid::regimes() const {
  std::set<measure::Regime> regimes;
  // A model's own prompt length is one of the long ones.
  const std::vector<std::uint64_t> own{1024};
  for (const std::uint64_t batch : spec_.batch) {
    for (const std::uint64_t p : spec_.prompt_len.empty() ? own : spec_.prompt_len) {
      regimes.insert(
          {measure::prefill_regime({batch, p, 1}), measure::decode_regime({batch, p, 1})});
    }
  }
  return regimes;
}

std::string SweepGrid::cells(std::uint64_t index) const {
  std::string row;
  for (const std::string& word : cell_words(index)) {
    if (!row.empty()) row += ',';
    row += csv_cell(word);
  }
  return row;
}

std::vector<std::string> SweepGrid::cell_words(std::uint64_t index) const {
  return cell_words(digits(index));
}

std::string SweepGrid::label(std::uint64_t index) const {
  const std::vector<std::string> own = cell_words(digits(index));
  // An axis varies if its word differs between the first configuration and the last: both ends of
  // every axis are among these two.
  const std::vector<std::string> first = cell_words(digits(0));
  const std::vector<std::string> last = cell_words(digits(num_configurations_ - 1));
  std::string text = own[0];
  std::string_view columns = configuration_columns;
  for (std::size_t i = 1; i < own.size(); ++i) {
    columns.remove_prefix(columns.find(',') + 1);
    if (first[i] == last[i]) continue;
    std::string name(columns.substr(0, columns.find(',')));
    // Words of other columns say what they are.
    const bool is_named = own[i] == "on" || own[i] == "off" ||
                          own[i].find_first_not_of("0123456789") == std::string::npos;
    std::replace(name.begin(), name.end(), '_', '-');
    text += ", " + (is_named ? name + " " : "") + own[i];
  }
  return text;
}

std::vector<std::string> SweepGrid::cell_words(const Digits& d) const {
  const Lowering l = lowering(d);
  std::string set;
  for (const ConfigOverride& o : overrides(d)) {
    set += (set.empty() ? "" : ";") + o.key + "=" + o.value;
  }
  return {word(d, model_axis),
          word(d, hardware_axis),
          word(d, engine_axis),
          word(d, method_axis),
          std::string(measure::attention_name(l.attention)),
          std::string(measure::elementwise_name(l.elementwise)),
          l.weights.text,
          std::string(name(l.operand_dtype())),
          std::string(name(l.cache)),
          word(d, mode_axis),
          word(d, tp_axis),
          word(d, pp_axis),
          word(d, ep_axis),
          std::to_string(parallelism(d).dp),
          word(d, sequence_axis),
          word(d, micro_batches_axis),
          word(d, platform_axis),
          set};
}

void SweepGrid::sizes(std::uint64_t first, std::uint64_t own_prompt_len,
                      std::span<roofline::DesignPoint> points) const {
  const std::size_t num_outputs = spec_.output_len.size();
  const std::size_t num_prompts = std::max<std::size_t>(1, spec_.prompt_len.size());
  std::size_t output = first % num_outputs;
  std::size_t prompt = first / num_outputs % num_prompts;
  std::size_t batch = first / num_outputs / num_prompts;
  for (roofline::DesignPoint& p : points) {
    p.batch = spec_.batch[batch];
    p.prompt_len = spec_.prompt_len.empty() ? own_prompt_len : spec_.prompt_len[prompt];
    p.output_len = spec_.output_len[output];
    if (++output < num_outputs) continue;
    output = 0;
    if (++prompt < num_prompts) continue;
    prompt = 0;
    ++batch;
  }
}

}  // namespace kvcast::reports
