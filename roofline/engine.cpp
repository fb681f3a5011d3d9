#include "roofline/engine.h"

#include <algorithm>
#include <cctype>
#include <functional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/quantity.h"
#include "model/base/words.h"

namespace kvcast::roofline {
namespace {

constexpr Words<Graphs, 3> graph_words = {
    {{Graphs::None, "none"}, {Graphs::Decode, "decode"}, {Graphs::All, "all"}}};
const std::vector<std::string> sources{"code", "documentation", "measured", "fitted", "assumed"};
enum class SchedulerValue { Text, ShareOf, Count, Flag, Share };
/// Simulations of servers read these; see data/engines/README.md.
const std::vector<std::pair<std::string, SchedulerValue>> scheduler_keys{
    {"rules", SchedulerValue::Text},
    {"max_running_sequences", SchedulerValue::Count},
    {"max_running_sequences_on_smaller_devices", SchedulerValue::Count},
    {"max_batched_tokens", SchedulerValue::Count},
    {"max_batched_tokens_on_smaller_devices", SchedulerValue::Count},
    {"chunked_prefill", SchedulerValue::Flag},
    {"kv_block_tokens", SchedulerValue::Count},
    {"memory_share", SchedulerValue::Share},
    {"memory_share_of", SchedulerValue::ShareOf},
    {"prefix_caching", SchedulerValue::Flag},
    {"reserve_full_prompt", SchedulerValue::Flag},
    {"schedules_ahead", SchedulerValue::Flag}};

/// Throws Error naming the place of an entry whose value is of another kind.
void check_scheduler_value(const JsonObject& entry, SchedulerValue kind) {
  switch (kind) {
    case SchedulerValue::Text: entry.text("value"); return;
    case SchedulerValue::ShareOf:
      if (entry.text("value") != "free memory" && entry.text("value") != "device memory") {
        entry.fail("value", "\"free memory\" or \"device memory\"");
      }
      return;
    case SchedulerValue::Count: entry.whole("value"); return;
    case SchedulerValue::Flag: entry.flag_or("value", false); return;
    case SchedulerValue::Share:
      if (!(entry.positive("value") <= 1)) entry.fail("value", "a share above 0 and up to 1");
      return;
  }
}

/// The value of an entry, whose place errors name.
struct Entry {
  const JsonObject& object;

  Seconds seconds() const {
    return {parse_quantity(object.text("value"), Dimension::Seconds, object.place_of("value"))};
  }
  bool flag() const {
    object.at("value");
    return object.flag_or("value", false);
  }
  /// What `parse` returns; its errors get the entry's place.
  template <typename Parse>
  auto placed(Parse parse) const {
    try {
      return parse();
    } catch (const Error& e) {
      throw Error(object.place(), e);
    }
  }
  template <typename Parse>
  auto word(Parse parse) const {
    const std::string text = object.text("value");
    return placed([&] { return parse(text); });
  }
};

/// [["query", "key", "value"], ...]
void add_launches(const JsonObject& o, Launch::In in, Engine& engine) {
  const nlohmann::json& lists = o.at("value");
  const auto is_launch = [](const nlohmann::json& list) {
    return list.is_array() && list.size() > 1 &&
           std::all_of(list.begin(), list.end(), [](const auto& l) { return l.is_string(); });
  };
  if (!lists.is_array() || !std::all_of(lists.begin(), lists.end(), is_launch)) {
    o.fail("value", "lists of two or more operator labels");
  }
  for (const nlohmann::json& labels : lists) {
    engine.launches.push_back({labels.get<std::vector<std::string>>(), in});
  }
}

struct EngineKey {
  const char* name;
  void (*read)(const Entry&, Engine&);
};
const EngineKey engine_keys[] = {
    {"attention", [](const Entry& e, Engine& g) { g.attention = e.word(parse_kernels); }},
    {"elementwise", [](const Entry& e, Engine& g) { g.elementwise = e.word(parse_kernels); }},
    {"skip_unread_rows", [](const Entry& e, Engine& g) { g.skip_unread_rows = e.flag(); }},
    {"launches", [](const Entry& e, Engine& g) { add_launches(e.object, Launch::In::AnyPass, g); }},
    {"prefill_launches",
     [](const Entry& e, Engine& g) { add_launches(e.object, Launch::In::Prefill, g); }},
    {"decode_launches",
     [](const Entry& e, Engine& g) { add_launches(e.object, Launch::In::Decode, g); }},
    {"reads_groups_again", [](const Entry& e, Engine& g) { g.reads_groups_again = e.flag(); }},
    {"groups_read_once",
     [](const Entry& e, Engine& g) { g.groups_read_once = e.object.wholes("value"); }},
    {"wide_activations", [](const Entry& e, Engine& g) { g.wide_activations = e.flag(); }},
    {"dequantizes_weights", [](const Entry& e, Engine& g) { g.dequantizes_weights = e.flag(); }},
    {"fuses_quantization", [](const Entry& e, Engine& g) { g.fuses_quantization = e.flag(); }},
    {"marlin_experts",
     [](const Entry& e, Engine& g) {
       for (const std::string& type : e.object.texts("value")) {
         g.marlin_experts.push_back(e.placed([&] { return parse_dtype(type); }));
       }
     }},
    {"accumulates_in_fp16", [](const Entry& e, Engine& g) { g.accumulates_in_fp16 = e.flag(); }},
    {"bf16_gradients", [](const Entry& e, Engine& g) { g.bf16_gradients = e.word(parse_dtype); }},
    {"hopper_attention",
     [](const Entry& e, Engine& g) { g.hopper_attention = e.object.positive("value"); }},
    {"attention_rate",
     [](const Entry& e, Engine& g) { g.attention_rate = e.object.positive("value"); }},
    {"prefill_at_least_context",
     [](const Entry& e, Engine& g) { g.prefill_at_least_context = e.flag(); }},
    {"prefill_tokens",
     [](const Entry& e, Engine& g) { g.prefill_tokens = e.object.whole("value"); }},
    {"cuts_prompts", [](const Entry& e, Engine& g) { g.cuts_prompts = e.flag(); }},
    {"graphs",
     [](const Entry& e, Engine& g) {
       g.graphs = e.word([](const std::string& w) { return parse_word("value", w, graph_words); });
     }},
    {"collectives", [](const Entry& e, Engine& g) { g.collectives = e.object.text("value"); }},
    {"host_launch", [](const Entry& e, Engine& g) { g.host_launch = e.seconds(); }},
    {"launch_gap", [](const Entry& e, Engine& g) { g.launch_gap = e.seconds(); }},
    {"collective_wait", [](const Entry& e, Engine& g) { g.collective_wait = e.seconds(); }},
    {"host_request", [](const Entry& e, Engine& g) { g.host.request = e.seconds(); }},
    {"host_token", [](const Entry& e, Engine& g) { g.host.token = e.seconds(); }},
    {"host_step", [](const Entry& e, Engine& g) { g.host.step = e.seconds(); }},
    {"host_sequence", [](const Entry& e, Engine& g) { g.host.sequence = e.seconds(); }},
};

EngineValue provenance(const JsonObject& o, const std::string& key) {
  EngineValue v{key, o.at("value").dump(), o.text("source"), o.text("reference"),
                o.text_or("note", "")};
  if (std::find(sources.begin(), sources.end(), v.source) == sources.end()) {
    o.fail("source", fmt::format("{}", fmt::join(sources, ", ")));
  }
  if (v.reference.empty()) o.fail("reference", "a repository and path, a document, a measurement");
  return v;
}

void read_values(const JsonObject& o, Engine& engine) {
  for (const EngineKey& key : engine_keys) {
    if (!o.has(key.name)) continue;
    const JsonObject entry = o.object(key.name);
    engine.values.push_back(provenance(entry, key.name));
    key.read({entry}, engine);
    entry.reject_unknown_keys();
  }
  if (!o.has("scheduler")) return;
  const JsonObject scheduler = o.object("scheduler");
  for (const auto& [key, kind] : scheduler_keys) {
    if (!scheduler.has(key)) continue;
    const JsonObject entry = scheduler.object(key);
    check_scheduler_value(entry, kind);
    engine.values.push_back(provenance(entry, "scheduler." + key));
    entry.reject_unknown_keys();
  }
  scheduler.reject_unknown_keys();
}

/// "2024-06"
bool is_date(std::string_view text) {
  constexpr std::string_view digits = "0123456789";
  return text.size() == 7 && text[4] == '-' &&
         text.substr(0, 4).find_first_not_of(digits) == std::string_view::npos &&
         text.substr(5) >= "01" && text.substr(5) <= "12" &&
         text.substr(6).find_first_not_of(digits) == std::string_view::npos;
}

/// "0.6.3.post1", "b4748", "0.19.1rc1.dev339+gedc": numbers first, no blanks; not "2024-6".
bool is_version(std::string_view text) {
  const bool clean = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '+' || c == '_';
  });
  return clean && text.find("..") == std::string_view::npos && !version_numbers(text).empty();
}

/// Throws Error naming the place of what is wrong in these entries.
void check_values(const JsonObject& o) {
  Engine unused;
  read_values(o, unused);
  o.reject_unknown_keys();
}

/// The file's entries with those of its versions up to `version`, a version or a date; newest last.
nlohmann::json at_version(nlohmann::json document, const JsonObject& o, const std::string& version,
                          Engine& engine) {
  const nlohmann::json versions = o.has("versions") ? o.at("versions") : nlohmann::json::array();
  if (!versions.is_array()) o.fail("versions", "a list of objects");
  const bool by_date = is_date(version);
  const std::vector<std::uint64_t> asked = version_numbers(version);
  if (!version.empty() && !by_date && !is_version(version)) {
    throw Error("engine " + engine.name + ": version", "'" + version + "'",
                "a number such as 0.6, or a month such as 2024-06");
  }
  document.erase("versions");
  check_values(o);  // a file is right in all its versions, or refused
  std::vector<std::uint64_t> before;
  std::string date_before;
  for (std::size_t i = 0; i < versions.size(); ++i) {
    const JsonObject entries(versions[i], fmt::format("{}/{}", o.place_of("versions"), i));
    const std::string from = entries.text("from");
    const std::string date = entries.text("date");
    const std::vector<std::uint64_t> numbers = version_numbers(from);
    if (numbers.empty() || (i > 0 && numbers <= before)) {
      entries.fail("from", "a version above the one before");
    }
    if (!is_date(date) || date < date_before) {
      entries.fail("date", "the month of its release, such as 2024-06, not before the last one's");
    }
    for (const char* key : {"name", "description", "aliases", "versions"}) {
      if (entries.has(key)) entries.fail(key, "it at the top of the file");
    }
    check_values(entries);
    before = numbers;
    date_before = date;
    engine.versions.push_back(from);
    if (by_date ? date > version : !asked.empty() && numbers > asked) continue;
    nlohmann::json changes = versions[i];
    changes.erase("from");
    changes.erase("date");
    for (const auto& [key, value] : changes.items()) {
      if (key != "scheduler") document[key] = value;
    }
    if (changes.contains("scheduler")) {
      for (const auto& [key, value] : changes["scheduler"].items()) {
        document["scheduler"][key] = value;
      }
    }
    engine.version = from;
  }
  if (!version.empty() && !by_date) engine.version = version;
  return document;
}

}  // namespace

std::vector<std::uint64_t> version_numbers(std::string_view text) {
  std::vector<std::uint64_t> numbers;
  std::size_t i = 0;
  if (!text.empty() && (text[0] == 'v' || text[0] == 'b')) ++i;
  for (; i < text.size(); ++i) {
    std::uint64_t number = 0;
    const std::size_t begin = i;
    for (; i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0; ++i) {
      number = std::min<std::uint64_t>(number * 10 + static_cast<std::uint64_t>(text[i] - '0'),
                                       std::uint64_t{1} << 40);
    }
    if (i == begin) break;  // ".post1"
    numbers.push_back(number);
    if (i < text.size() && text[i] != '.') break;
  }
  while (numbers.size() > 1 && numbers.back() == 0) numbers.pop_back();  // 1 is 1.0
  return numbers;
}

namespace {

Engine parse_engine(const nlohmann::json& file, const std::string& path,
                    const std::string& version) {
  const JsonObject whole(file, path);
  Engine engine;
  engine.name = whole.text("name");
  engine.description = whole.text("description");
  if (whole.has("aliases")) engine.aliases = whole.texts("aliases");
  const nlohmann::json document = at_version(file, whole, version, engine);
  read_values(JsonObject(document, path), engine);
  return engine;
}

}  // namespace

Engine read_engine(const std::filesystem::path& path, const std::string& version) {
  return parse_engine(read_json_file(path), path.string(), version);
}

Engine load_engine(const Catalog& catalog, const std::string& text) {
  if (text == Engine{}.name) return {};
  const std::size_t colon = text.rfind(':');
  const std::string name = text.substr(0, colon);
  const std::string version = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (colon != std::string::npos && version.empty()) {
    throw Error("engine", "'" + text + "'", "NAME or NAME:VERSION");
  }
  if (colon != std::string::npos && name == Engine{}.name) {
    throw Error("engine", "'" + text + "'", "ideal, which has no versions");
  }
  Engine engine = read_engine(catalog.find("engines", "engine", name), version);
  // What is known of the catalog's engines does not hold for a file of the same name.
  const std::vector<std::string> known = catalog.names("engines");
  if (std::find(known.begin(), known.end(), name) == known.end()) engine.name = name;
  return engine;
}

void apply(const Engine& engine, bool attention, bool elementwise, Lowering& lowering) {
  if (attention && engine.attention) lowering.attention = *engine.attention;
  if (elementwise && engine.elementwise) lowering.elementwise = *engine.elementwise;
  lowering.skip_unread_rows |= engine.skip_unread_rows;
  lowering.launches = engine.launches;
  lowering.reads_groups_again = engine.reads_groups_again;
  lowering.groups_read_once = engine.groups_read_once;
  lowering.dequantizes_weights = engine.dequantizes_weights;
  // Only products read fewer than 16 bits: residuals, norms and messages are wider.
  const DType between = engine.wide_activations ? DType::FP32 : DType::BF16;
  if (bits_per_element(lowering.activations) < bits_per_element(between)) {
    lowering.operands = lowering.activations;
    lowering.activations = between;
  }
}

}  // namespace kvcast::roofline
