#include "measure/measurements.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "measure/measurement_fields.h"
#include "measure/rounds.h"
#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/read_file.h"

namespace kvcast::measure {
namespace {

using nlohmann::json;

constexpr std::string_view blanks = " \t\r\n";
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
/// Numbers outside are no times of a run, and dividing a forecast by them may overflow.
constexpr double shortest_s = 1e-9;
constexpr double longest_s = 1e9;
constexpr std::string_view known_formats =
    "kvcast CSV, llama-bench CSV, JSON or JSONL, batched-bench JSONL, vLLM latency or serve JSON";

const MeasurementFormat& format_of(const MeasurementFields& fields) {
  for (const MeasurementFormat& format : json_formats()) {
    if (fields.has(format.field)) return format;
  }
  if (fields.has("requests_per_second") && fields.has("elapsed_time")) {
    throw Error(fields.place(), "vLLM throughput JSON, in which no request has a time",
                "vLLM latency or serve JSON");
  }
  throw Error(fields.place(), "a JSON object without avg_ns, t_pp, avg_latency or mean_tpot_ms",
              known_formats);
}

/// A document, the items of its list, or a document on each line.
std::vector<MeasurementFields> json_records(std::string_view text, const std::string& name) {
  std::vector<MeasurementFields> records;
  const std::size_t first_line_end = text.find('\n');
  const std::string_view first_line = text.substr(0, first_line_end);
  const bool lines =
      text.front() == '{' && first_line_end != std::string_view::npos && json::accept(first_line);
  if (!lines) {
    const json document = parse_json(text, name);
    if (!document.is_array()) return {MeasurementFields(document, name)};
    for (std::size_t i = 0; i < document.size(); ++i) {
      records.emplace_back(document[i], fmt::format("{}: /{}", name, i));
    }
    return records;
  }
  for (std::size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(blanks) == std::string_view::npos) continue;
    const std::string place = fmt::format("{}:{}", name, number);
    records.emplace_back(parse_json(line, place), place);
  }
  return records;
}

Measurements parse_json_rows(std::string_view text, const std::string& name,
                             const MeasurementDefaults& defaults) {
  Measurements m;
  for (const MeasurementFields& fields : json_records(text, name)) {
    const MeasurementFormat& format = format_of(fields);
    if (!m.rows.empty() && m.format != format.name) {
      throw Error(fields.place(), format.name, m.format + " as before");
    }
    if (m.rows.empty()) check_defaults(defaults, format);
    m.format = format.name;
    m.rows.push_back(format.read(fields, defaults));
  }
  return m;
}

Measurements parse_csv_rows(std::string_view text, const std::string& name,
                            const MeasurementDefaults& defaults) {
  const CsvTable table = CsvTable::parse(text, name);
  const auto formats = csv_formats();
  const MeasurementFormat& format =
      *std::find_if(formats.begin(), formats.end() - 1,
                    [&](const MeasurementFormat& f) { return table.has_column(f.field); });
  check_columns(table, format);
  check_defaults(defaults, format);
  Measurements m{format.name, {}};
  for (const CsvRow& row : table.rows()) {
    m.rows.push_back(format.read(MeasurementFields(row), defaults));
  }
  return m;
}

/// All that the row says about the run.
std::string run_of(const MeasuredRow& r) {
  const Lowering& l = r.lowering;
  std::string run = fmt::format(
      "{} on {}, {}, {} attention, {} element-wise, {}/{}/{}, batch {}, prompt {}, output {}",
      r.model, r.hardware, r.method, attention_name(l.attention), elementwise_name(l.elementwise),
      l.weights.text, kvcast::name(l.activations), kvcast::name(l.cache), r.size.batch,
      r.size.prompt_len, r.size.output_len);
  if (l.products) run += fmt::format(", products in {}", kvcast::name(*l.products));
  if (!r.engine.empty()) run += fmt::format(", engine {} {}", r.engine, r.engine_version);
  if (r.kernel) {
    const roofline::Kernel& k = *r.kernel;
    run += fmt::format(", sizes {}x{}x{}, {} over {} heads of {}", k.rows, k.outputs, k.inner,
                       k.num_attention_heads, k.num_key_value_heads, k.head_dim);
  }
  if (r.training) run += ", " + to_string(*r.training);
  if (r.logits == Logits::All) run += ", logits of all";
  if (r.num_devices > 0) run += fmt::format(", {} devices", r.num_devices);
  if (!r.parallelism.is_one()) run += ", " + to_string(r.parallelism);
  if (!r.platform.empty()) run += " of " + r.platform;
  return run;
}

/// Equal for two rows of one run: the id, or all that the rows say about the run.
std::string key_of(const MeasuredRow& r) {
  const std::string turn = r.turn > 0 ? fmt::format(", turn {}", r.turn) : "";
  if (!r.id.empty()) return r.id + turn;
  std::string key = run_of(r) + turn + ":";
  for (const MeasuredTime& time : r.times) key += fmt::format(" {}", name(time.metric));
  return key;
}

/// The id to show for a row that has none in its file.
std::string label_of(const MeasuredRow& r) {
  const std::string what =
      fmt::format("{} {} {} b{}", r.model.substr(r.model.rfind('/') + 1), r.method,
                  attention_name(r.lowering.attention), r.size.batch);
  if (r.training) {
    return fmt::format("{} s{} {}", what, r.size.prompt_len, name(r.training->recompute));
  }
  return fmt::format("{} p{} n{}", what, r.size.prompt_len, r.size.output_len);
}

void check_times(const std::vector<MeasuredRow>& rows) {
  for (const MeasuredRow& row : rows) {
    for (const MeasuredTime& time : row.times) {
      if (time.seconds >= shortest_s && time.seconds <= longest_s) continue;
      throw Error(row.place, fmt::format("{} of {:.4g} s", name(time.metric), time.seconds),
                  "a time from 1 ns to 1e9 s");
    }
  }
}

/// Makes an id one printable line.
void make_printable(std::string& id) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7F; };
  std::replace_if(id.begin(), id.end(), is_control, ' ');
}

void reject_duplicates(std::vector<MeasuredRow>& rows) {
  std::map<std::string, const MeasuredRow*, std::less<>> seen;
  for (MeasuredRow& row : rows) {
    make_printable(row.id);
    const std::string key = key_of(row);
    const auto [found, inserted] = seen.emplace(key, &row);
    if (!inserted) {
      throw Error(
          fmt::format("{}: the same run as {} ({}); expected one row for each, the median "
                      "of repeated runs",
                      row.place, found->second->place, key));
    }
    if (row.id.empty()) row.id = label_of(row);
  }
}

}  // namespace

std::string_view name(Metric metric) {
  switch (metric) {
    case Metric::Ttft: return "ttft_s";
    case Metric::Tpot: return "tpot_s";
    case Metric::Request: return "request_s";
    case Metric::TrainingStep: return "step_s";
    case Metric::Product: return "product_s";
    case Metric::PrefillAttention: return "prefill_attention_s";
    case Metric::DecodeAttention: return "decode_attention_s";
  }
  KVCAST_ASSERT(false);
  return {};
}

std::string_view attention_name(Kernels attention) {
  return attention == Kernels::Eager ? "eager" : "tiled";
}

std::string_view elementwise_name(Kernels elementwise) {
  return elementwise == Kernels::Eager ? "eager" : "fused";
}

Measurements parse_measurements(std::string_view text, const std::string& name,
                                const MeasurementDefaults& defaults) {
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  const std::size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) throw Error(name, "an empty file", known_formats);
  const bool is_json = text[begin] == '{' || text[begin] == '[';
  Measurements m = is_json ? parse_json_rows(text.substr(begin), name, defaults)
                           : parse_csv_rows(text, name, defaults);
  if (m.rows.empty()) throw Error(name, "no rows", "at least one measured run");
  check_times(m.rows);
  reject_duplicates(m.rows);
  return m;
}

Measurements read_measurements(const std::filesystem::path& path,
                               const MeasurementDefaults& defaults) {
  return parse_measurements(read_file(path, "a file with measurements"), path.string(), defaults);
}

Measurements read_runs(const std::vector<std::filesystem::path>& paths,
                       const MeasurementDefaults& defaults) {
  KVCAST_ASSERT(!paths.empty());
  Measurements first = read_measurements(paths.front(), defaults);
  const bool has_turns = std::any_of(first.rows.begin(), first.rows.end(),
                                     [](const MeasuredRow& row) { return row.turn > 0; });
  if (paths.size() == 1 && !has_turns) return first;
  Measurements all;
  struct Runs {
    std::map<Metric, Rounds> times;
    std::size_t count = 0;
  };
  std::map<std::string, std::size_t> index;
  std::vector<Runs> runs;  // by row
  for (auto path = paths.begin(); path != paths.end(); ++path) {
    const auto is_this = [&](const std::filesystem::path& other) {
      std::error_code ec;
      return std::filesystem::equivalent(other, *path, ec);
    };
    if (std::any_of(paths.begin(), path, is_this)) {
      throw Error(path->string(), "a file named twice", "a file for each run");
    }
    Measurements one =
        path == paths.begin() ? std::move(first) : read_measurements(*path, defaults);
    if (path == paths.begin()) all.format = one.format;
    if (one.format != all.format) {
      throw Error(path->string(), one.format, all.format + " as before");
    }
    std::set<std::string> of_this_file;
    for (MeasuredRow& row : one.rows) {
      const std::string key = row.id + "|" + run_of(row);
      if (!of_this_file.insert(fmt::format("{}|{}", key, row.turn)).second) {
        throw Error(row.place, "a second row of one run", "one, where several files are runs");
      }
      const auto [found, is_new] = index.emplace(key, all.rows.size());
      const std::size_t i = found->second;
      if (is_new) runs.emplace_back();
      for (const MeasuredTime& t : row.times) runs[i].times[t.metric].seconds.push_back(t.seconds);
      ++runs[i].count;
      if (is_new) {
        all.rows.push_back(std::move(row));
      } else if (!row.times.empty()) {
        all.rows[i].unusable = row.unusable;  // it has been run, if not in the file before
      }
    }
  }
  for (std::size_t i = 0; i < all.rows.size(); ++i) {
    MeasuredRow& row = all.rows[i];
    row.times.clear();
    for (const auto& [metric, rounds] : runs[i].times) {
      row.times.push_back({metric, rounds.median()});
    }
    if (runs[i].count > 1) row.place += fmt::format(" and {} more", runs[i].count - 1);
  }
  return all;
}

}  // namespace kvcast::measure
