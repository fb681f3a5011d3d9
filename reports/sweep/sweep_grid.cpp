#include "reports/sweep/sweep_grid.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/io/files/fnv_hash.h"

namespace kvcast::reports {
namespace {

using roofline::Mode;

/// Positions in SweepGrid::Digits; the set axes follow.
enum Axis : std::size_t {
  model_axis,
  hardware_axis,
  method_axis,
  attention_axis,
  elementwise_axis,
  dtype_axis,
  weight_axis,
  activation_axis,
  cache_axis,
  mode_axis,
  num_fixed_axes,
};

template <typename T>
void fill_default(std::vector<T>& axis, T value) {
  if (axis.empty()) axis.push_back(std::move(value));
}

/// Parses each word, naming the flag in errors.
template <typename Parse>
auto parse_all(const std::vector<std::string>& words, const char* flag, Parse parse) {
  std::vector<decltype(parse(words[0]))> values;
  for (const std::string& word : words) {
    try {
      const auto value = parse(word);
      // Two spellings of one value ("tiled", "flash") are one value.
      if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    } catch (const Error& e) {
      throw Error(std::string(flag) + ": " + e.what());
    }
  }
  return values;
}

template <typename Value>
std::vector<std::optional<Value>> or_none(std::vector<Value> values) {
  if (values.empty()) return {std::nullopt};
  return {values.begin(), values.end()};
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
    if (axis->empty()) throw Error(std::string(flag) + ": missing; a sweep needs at least one");
  }
  if (!spec_.dtype.empty() && !spec_.weight_dtype.empty() && !spec_.activation_dtype.empty() &&
      !spec_.cache_dtype.empty()) {
    throw Error(
        "--dtype has no effect beside --weight-dtype, --activation-dtype and "
        "--cache-dtype; expected at most three of the four");
  }
  fill_default<std::string>(spec_.method, "plain");
  fill_default<std::string>(spec_.attention, "tiled");
  fill_default<std::string>(spec_.dtype, "fp16");
  fill_default<std::string>(spec_.mode, "calibrated");
  fill_default<std::uint64_t>(spec_.batch, 1);
  fill_default<std::uint64_t>(spec_.output_len, 128);

  const auto dtypes = [](const std::vector<std::string>& words, const char* flag) {
    return parse_all(words, flag, [](const std::string& word) { return parse_dtype(word); });
  };
  methods_ = parse_all(spec_.method, "--method",
                       [](const std::string& word) { return parse_methods(word); });
  attention_ = parse_all(spec_.attention, "--attention", parse_kernels);
  elementwise_ = or_none(parse_all(spec_.elementwise, "--elementwise", parse_kernels));
  dtype_ = dtypes(spec_.dtype, "--dtype");
  weight_dtype_ = or_none(dtypes(spec_.weight_dtype, "--weight-dtype"));
  activation_dtype_ = or_none(dtypes(spec_.activation_dtype, "--activation-dtype"));
  cache_dtype_ = or_none(dtypes(spec_.cache_dtype, "--cache-dtype"));
  mode_ = parse_all(spec_.mode, "--mode", roofline::parse_mode);
  for (const std::string& name : spec_.model) load_model(catalog_, name);
  for (const std::string& name : spec_.hardware) {
    hardware_.push_back(roofline::load_hardware(catalog_, name));
  }
  check_set();
  count_points();
  look_up_error_bars();
  fingerprint_ = make_fingerprint();
}

/// A value that a model cannot have is a row with a reason; a key of which no value works anywhere
/// is a mistake in the request.
void SweepGrid::check_set() const {
  for (auto axis = spec_.set.begin(); axis != spec_.set.end(); ++axis) {
    if (std::any_of(spec_.set.begin(), axis,
                    [&](const SetAxis& a) { return a.key == axis->key; })) {
      throw Error("--set " + axis->key + ": given twice; expected one list of its values");
    }
    std::optional<Error> first;
    bool works = false;
    for (const std::string& value : axis->values) {
      for (const std::string& model : spec_.model) {
        try {
          load_model(catalog_, model, {{axis->key, value}});
          works = true;
        } catch (const Error& e) {
          if (!first) first = e;
        }
        if (works) break;
      }
      if (works) break;
    }
    if (!works) throw *first;
  }
}

void SweepGrid::count_points() {
  radix_ = {spec_.model.size(),  hardware_.size(), methods_.size(),      attention_.size(),
            elementwise_.size(), dtype_.size(),    weight_dtype_.size(), activation_dtype_.size(),
            cache_dtype_.size(), mode_.size()};
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
  for (const auto& [key, values] : word_axes) hash.add_words(spec_.*values);
  for (const auto& [key, values] : number_axes) {
    for (const std::uint64_t value : spec_.*values) hash.add(value);
    hash.add((spec_.*values).size());
  }
  for (const SetAxis& axis : spec_.set) {
    hash.add(axis.key);
    hash.add_words(axis.values);
  }
  for (const std::string& name : spec_.model)
    add_file(hash, catalog_.find("models", "model", name));
  for (const std::string& name : spec_.hardware) {
    add_file(hash, catalog_.find("hardware", "hardware", name));
  }
  for (const auto& by_dtypes : error_bars_) {
    for (const auto& [dtypes, bars] : by_dtypes) {
      for (const std::optional<double>& bound : {bars.ttft, bars.tpot}) {
        hash.add(bound ? fmt::format("{}", *bound) : "none");
      }
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
  const DType dtype = dtype_[d[dtype_axis]];
  Lowering l;
  l.attention = attention_[d[attention_axis]];
  l.elementwise = elementwise_[d[elementwise_axis]].value_or(l.attention);
  l.weights = weight_dtype_[d[weight_axis]].value_or(dtype);
  l.activations = activation_dtype_[d[activation_axis]].value_or(dtype);
  l.cache = cache_dtype_[d[cache_axis]].value_or(dtype);
  return l;
}

std::vector<ConfigOverride> SweepGrid::overrides(const Digits& d) const {
  std::vector<ConfigOverride> list;
  for (std::size_t i = 0; i < spec_.set.size(); ++i) {
    list.push_back({spec_.set[i].key, spec_.set[i].values[d[num_fixed_axes + i]]});
  }
  return list;
}

roofline::Configuration SweepGrid::configuration(std::uint64_t index) const {
  const Digits d = digits(index);
  roofline::Configuration c;
  c.architecture = load_model(catalog_, spec_.model[d[model_axis]], overrides(d));
  c.find_model = [catalog = catalog_](const std::string& name) {
    return load_model(catalog, name);
  };
  c.hardware = hardware_[d[hardware_axis]];
  c.methods = methods_[d[method_axis]];
  c.lowering = lowering(d);
  c.mode = mode_[d[mode_axis]];
  return c;
}

std::vector<Lowering> SweepGrid::dtype_choices() const {
  std::map<std::string, Lowering> choices;
  Digits d(radix_.size());
  for (d[dtype_axis] = 0; d[dtype_axis] < dtype_.size(); ++d[dtype_axis]) {
    for (d[weight_axis] = 0; d[weight_axis] < weight_dtype_.size(); ++d[weight_axis]) {
      for (d[activation_axis] = 0; d[activation_axis] < activation_dtype_.size();
           ++d[activation_axis]) {
        for (d[cache_axis] = 0; d[cache_axis] < cache_dtype_.size(); ++d[cache_axis]) {
          const Lowering l = lowering(d);
          choices.emplace(measure::dtypes_text(l), l);
        }
      }
    }
  }
  std::vector<Lowering> list;
  for (const auto& [text, l] : choices) list.push_back(l);
  return list;
}

void SweepGrid::look_up_error_bars() {
  std::vector<Lowering> choices = dtype_choices();
  for (std::size_t i = 0; i < hardware_.size(); ++i) {
    const measure::ValidationStore store(catalog_, spec_.hardware[i]);
    for (const std::vector<MethodSpec>& methods : methods_) {
      for (const Kernels attention : attention_) {
        auto& by_dtypes = error_bars_.emplace_back();
        for (Lowering& l : choices) {
          l.attention = attention;
          by_dtypes.emplace(measure::dtypes_text(l),
                            store.bars(hardware_[i], to_string(methods), l));
        }
      }
    }
  }
}

const measure::ErrorBars& SweepGrid::error_bars(std::uint64_t index) const {
  const Digits d = digits(index);
  if (mode_[d[mode_axis]] == Mode::SpeedOfLight) return speed_of_light_bars_;
  const std::size_t method = d[hardware_axis] * methods_.size() + d[method_axis];
  return error_bars_[method * attention_.size() + d[attention_axis]].at(
      measure::dtypes_text(lowering(d)));
}

std::string SweepGrid::cells(std::uint64_t index) const {
  std::string row;
  for (const std::string& word : words(digits(index))) {
    if (!row.empty()) row += ',';
    row += csv_cell(word);
  }
  return row;
}

std::string SweepGrid::label(std::uint64_t index) const {
  const std::vector<std::string> own = words(digits(index));
  // An axis varies if its word differs between the first configuration and the last: both ends of
  // every axis are among these two.
  const std::vector<std::string> first = words(digits(0));
  const std::vector<std::string> last = words(digits(num_configurations_ - 1));
  std::string text = own[0];
  for (std::size_t i = 1; i < own.size(); ++i) {
    if (first[i] != last[i]) text += ", " + own[i];
  }
  return text;
}

std::vector<std::string> SweepGrid::words(const Digits& d) const {
  const Lowering l = lowering(d);
  std::string set;
  for (const ConfigOverride& o : overrides(d))
    set += (set.empty() ? "" : ";") + o.key + "=" + o.value;
  return {spec_.model[d[model_axis]],
          spec_.hardware[d[hardware_axis]],
          to_string(methods_[d[method_axis]]),
          l.attention == Kernels::Eager ? "eager" : "tiled",
          l.elementwise == Kernels::Eager ? "eager" : "fused",
          std::string(name(l.weights)),
          std::string(name(l.activations)),
          std::string(name(l.cache)),
          std::string(roofline::name(mode_[d[mode_axis]])),
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
