#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/frame/command.h"
#include "cli/frame/progress_bar.h"
#include "cli/frame/request_options.h"
#include "cli/frame/result.h"
#include "cli/simulate/objective_command.h"
#include "cli/simulate/parallel_options.h"
#include "cli/simulate/partition_choice.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/io/files/atomic_file.h"
#include "reports/sweep/sweep_spec.h"
#include "search/partition_bound.h"

namespace kvcast::cli {
namespace {

using search::Partition;
using search::PartitionFound;
using search::PartitionTable;
using search::Runahead;

struct SearchOptions {
  ParallelOptions parallel;
  std::string devices;
  std::string prompt_len = "1024";
  std::string objective_command;
  std::string command_limit_s = "60";
  bool json = false;
};

struct TableOptions {
  ParallelOptions parallel;
  std::string devices = "2,4,8,16";
  std::string prompt_len = "4k..128k:4k";
  std::string output;
  std::size_t threads = 0;
  bool verify = false;
  RowsOutput rows;
};

struct LookupOptions {
  std::string table;
  std::string model;
  std::string hardware;
  std::string devices;
  std::string prompt_len;
  bool extrapolate = false;
  bool force = false;
  bool verify = false;
  bool json = false;
};

Words in_share_of(std::uint64_t prompt_len) {
  return [=](const ordered_json& tokens) {
    return fmt::format("{:.3f}", tokens.get<double>() / static_cast<double>(prompt_len));
  };
}

ordered_json found_json(const PartitionFound& f) {
  ordered_json j{
      {"partition_tokens", f.tokens}, {"partition_boundaries", search::boundaries_of(f.tokens)},
      {"ttft_s", f.ttft_s},           {"lower_bound_s", or_null(f.lower_bound_s)},
      {"evaluations", f.evaluations}, {"even_ttft_s", f.even_ttft_s}};
  if (f.lower_bound_s) j["gap"] = f.ttft_s / *f.lower_bound_s - 1;
  return j;
}

std::string found_text(const PartitionFound& f, std::uint64_t prompt_len) {
  const std::vector<std::uint64_t> ends = search::boundaries_of(f.tokens);
  ordered_json parts = ordered_json::array();
  for (std::size_t i = 0; i < f.tokens.size(); ++i) {
    parts.push_back({{"device", i}, {"tokens", f.tokens[i]}, {"end", ends[i + 1]}});
  }
  std::string text = table_text({{"device", "device"},
                                 {"tokens", "tokens"},
                                 {"share", "tokens", in_share_of(prompt_len)},
                                 {"ends at", "end"}},
                                parts);
  text +=
      fmt::format("TTFT {}, {} with even parts", in_seconds(f.ttft_s), in_seconds(f.even_ttft_s));
  if (f.lower_bound_s) {
    text += fmt::format("; no partition is more than {:.3g} % faster",
                        100 * (1 - *f.lower_bound_s / f.ttft_s));
  }
  return text + fmt::format(" ({} partitions tried)\n", f.evaluations);
}

void print_found(const PartitionFound& f, std::uint64_t prompt_len, bool json) {
  print_result(json, found_json(f), found_text(f, prompt_len));
}

void search_one(const SearchOptions& o, const Globals& globals) {
  const std::uint64_t prompt_len = parse_token_count(o.prompt_len, "--prompt-len");
  const std::size_t devices = parse_devices(o.devices, "--devices");
  const auto algorithm =
      parse_flag("--algorithm", o.parallel.algorithm, search::parse_partition_algorithm);
  if (!o.objective_command.empty()) {
    const search::Objective objective = command_objective(
        o.objective_command, parse_flag_number(o.command_limit_s, "--command-limit-s", false));
    print_found(search_partition(objective, prompt_len, devices, algorithm), prompt_len, o.json);
    return;
  }
  if (o.parallel.request.model.empty()) {
    throw Error("--model is required, or --objective-command CMD");
  }
  const Runahead runahead = make_runahead(o.parallel, globals.catalog());
  print_found(search_partition(runahead, prompt_len, devices, algorithm), prompt_len, o.json);
}

/// The loss of interpolation: looks up each inner entry from its two neighbours.
ordered_json verify(const PartitionTable& table, const Runahead& runahead) {
  search::RunaheadScratch scratch;
  std::size_t entries = 0;
  double sum = 0;
  double worst_loss = 0;
  search::TableEntry worst;
  for (std::size_t i = 1; i + 1 < table.entries.size(); ++i) {
    const search::TableEntry& e = table.entries[i];
    const std::size_t devices = e.found.tokens.size();
    if (table.entries[i - 1].found.tokens.size() != devices ||
        table.entries[i + 1].found.tokens.size() != devices) {
      continue;
    }
    const PartitionTable neighbours{{}, {table.entries[i - 1], table.entries[i + 1]}};
    const Partition between = search::look_up(neighbours, e.prompt_len, devices, false);
    const double loss = runahead.ttft_s(between, scratch) / e.found.ttft_s - 1;
    sum += loss;
    if (entries++ > 0 && loss <= worst_loss) continue;
    worst_loss = loss;
    worst = e;
  }
  return {{"entries", entries},
          {"mean_loss", entries > 0 ? sum / static_cast<double>(entries) : 0},
          {"worst_loss", worst_loss},
          {"worst_context", worst.prompt_len},
          {"worst_devices", worst.found.tokens.size()}};
}

std::string verified_text(const ordered_json& v) {
  return fmt::format(
      "interpolated from their neighbours, {} entries lose {:.3f} % on average, {:.3f} % at "
      "worst ({} tokens over {} devices)\n",
      v["entries"].dump(), 100 * v["mean_loss"].get<double>(), 100 * v["worst_loss"].get<double>(),
      v["worst_context"].dump(), v["worst_devices"].dump());
}

ordered_json settings_json(const PartitionTable& table) {
  ordered_json settings = ordered_json::object();
  for (const auto& [key, value] : table.settings) settings[key] = value;
  return settings;
}

ordered_json entry_json(const search::TableEntry& e) {
  ordered_json entry{{"context", e.prompt_len}, {"devices", e.found.tokens.size()}};
  entry.update(found_json(e.found));
  return entry;
}

std::string in_list(const ordered_json& tokens) {
  return fmt::format("{}", fmt::join(tokens.get<Partition>(), " "));
}

/// Every row also has the settings of the table.
void write_table_csv(const std::string& path, const ordered_json& settings, ordered_json entries) {
  std::vector<Column> columns{{"context_tokens", "context"},
                              {"devices", "devices"},
                              {"partition_tokens", "partition_tokens", in_list},
                              {"ttft_s", "ttft_s"},
                              {"lower_bound_s", "lower_bound_s"},
                              {"even_ttft_s", "even_ttft_s"}};
  for (const auto& [key, value] : settings.items()) columns.push_back({key, key});
  for (ordered_json& entry : entries) entry.update(settings);
  write_rows_csv(path, columns, entries);
}

std::string in_shares(const ordered_json& entry) {
  std::vector<std::string> shares;
  for (const ordered_json& tokens : entry["partition_tokens"]) {
    shares.push_back(in_share_of(entry["context"])(tokens));
  }
  return fmt::format("{}", fmt::join(shares, " "));
}

void make_table(const TableOptions& o, const Globals& globals) {
  o.rows.check({{"--verify", o.verify}});
  const std::vector<std::uint64_t> prompt_lens =
      reports::parse_numbers(o.prompt_len, "--prompt-len");
  std::vector<std::size_t> devices;
  for (const std::string& word : reports::parse_words(o.devices, "--devices")) {
    devices.push_back(parse_devices(word, "--devices"));
  }
  const auto algorithm =
      parse_flag("--algorithm", o.parallel.algorithm, search::parse_partition_algorithm);
  const Runahead runahead = make_runahead(o.parallel, globals.catalog());
  PartitionTable table{table_settings(o.parallel, globals.catalog(), runahead), {}};
  const std::size_t threads =
      o.threads > 0 ? o.threads : std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
  const auto start = std::chrono::steady_clock::now();
  {
    ProgressBar bar(globals.quiet);
    const std::size_t total = prompt_lens.size() * devices.size();
    table.entries = search::search_table(
        runahead, prompt_lens, devices, algorithm, threads, [&](std::size_t done) {
          const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
          bar.draw(done, 0, total, elapsed.count());
        });
  }
  if (!o.output.empty()) write_file(o.output, to_json(table));
  const ordered_json settings = settings_json(table);
  const ordered_json entries = rows_of(table.entries, entry_json);
  if (!o.rows.csv.empty()) write_table_csv(o.rows.csv, settings, entries);
  if (o.rows.csv_is_stdout()) return;
  const ordered_json verified = o.verify ? verify(table, runahead) : ordered_json(nullptr);
  if (o.rows.json) {
    ordered_json j{{"settings", settings}, {"entries", entries}};
    if (o.verify) j["verify"] = verified;
    print_json(j);
    return;
  }
  std::string text = table_text({{"tokens", "context"},
                                 {"devices", "devices"},
                                 {"TTFT", "ttft_s", in_seconds},
                                 {"even parts", "even_ttft_s", in_seconds},
                                 {"gap to bound", "gap", in("{:.3f} %", 100)},
                                 {"shares", "", in_shares}},
                                entries);
  if (o.verify) text += verified_text(verified);
  print_text(text);
}

/// The model and hardware files may have changed since the table was made. Compares two TTFTs.
void check_times(const PartitionTable& table, const LookupOptions& o, const Runahead& runahead) {
  for (const search::TableEntry* e : {&table.entries.front(), &table.entries.back()}) {
    const double now = runahead.ttft_s(e->found.tokens);
    if (std::abs(now - e->found.ttft_s) <= search::bound_rounding * now) continue;
    throw Error(fmt::format("--table {}", o.table),
                fmt::format("a TTFT of {:.6g} s for {} tokens over {} devices", e->found.ttft_s,
                            e->prompt_len, e->found.tokens.size()),
                fmt::format("{:.6g} s, as computed with today's model and hardware files; make the "
                            "table again, or --force",
                            now));
  }
}

void look_up_one(const LookupOptions& o, const Globals& globals) {
  const std::uint64_t prompt_len = parse_token_count(o.prompt_len, "--prompt-len");
  const std::size_t devices = parse_devices(o.devices, "--devices");
  const PartitionTable table = search::read_table(o.table);
  ParallelOptions p;
  const auto setting = [&](const char* name, const std::string& wanted = {}) {
    return table_setting(table, "--table " + o.table, name, wanted, o.force);
  };
  p.request.model = setting("model", o.model);
  p.request.hardware = setting("hardware", o.hardware);
  p.request.attention = setting("attention");
  p.request.dtype = setting("dtype");
  p.request.mode = setting("mode");
  p.send_order = setting("send_order");
  p.link.latency_s = setting("link_latency_s");
  const double bytes_per_s =
      parse_flag_number(setting("link_bytes_per_s"), "link_bytes_per_s", false);
  p.link.gb_per_s = shortest(bytes_per_s / 1e9);
  const Runahead runahead = make_runahead(p, globals.catalog());
  if (!o.force) check_times(table, o, runahead);

  PartitionFound found;
  found.tokens = search::look_up(table, prompt_len, devices, o.extrapolate);
  found.ttft_s = runahead.ttft_s(found.tokens);
  found.even_ttft_s = runahead.ttft_s(even_partition(prompt_len, devices));
  found.evaluations = 2;
  found.lower_bound_s =
      search::PartitionBound(runahead, prompt_len, devices).lower_bound_s(found.ttft_s);
  if (!o.verify) {
    print_found(found, prompt_len, o.json);
    return;
  }
  const PartitionFound searched =
      search::search_partition(runahead, prompt_len, devices, search::PartitionAlgorithm::Balance);
  const double loss = found.ttft_s / searched.ttft_s - 1;
  if (o.json) {
    ordered_json j = found_json(found);
    j["searched_ttft_s"] = searched.ttft_s;
    j["loss"] = loss;
    print_json(j);
    return;
  }
  print_text(found_text(found, prompt_len) +
             fmt::format("a search finds {}: interpolation loses {:.3f} %\n",
                         in_seconds(searched.ttft_s), 100 * loss));
}

void add_search(Command command, const Globals& globals) {
  Command c = command.add_subcommand(
      "search",
      "Find the best partition of one prompt.\n\nExamples:\n"
      "  kvcast partition search --model llama-7b --hardware a100-80gb --devices 4 "
      "--prompt-len 16k\n"
      "  kvcast partition search --model llama-7b --hardware a100-80gb --devices 2 "
      "--prompt-len 16k --link-gb-per-s 10 --attention eager --json");
  const auto o = std::make_shared<SearchOptions>();
  o->parallel.add_to(c, false);
  o->parallel.add_algorithm_to(c);
  c.add("--devices", o->devices).required();
  c.add("--prompt-len", o->prompt_len);
  c.add("--objective-command CMD", o->objective_command,
        "measure partitions with this command, which prints seconds, or JSON with ttft_s as run "
        "does; {partition} in it becomes 9728,6656 and {parts} 9728/6656");
  c.add("--command-limit-s SECONDS", o->command_limit_s, "time limit of one run of the command");
  c.add("--json", o->json);
  c.need({"--command-limit-s"}, {"--objective-command"});
  c.callback([o, &globals] {
    RequestOptions& request = o->parallel.request;
    if (o->objective_command.empty() && !request.model.empty()) request.use_this_machine(globals);
    search_one(*o, globals);
  });
}

void add_table(Command command, const Globals& globals) {
  Command c = command.add_subcommand(
      "table",
      "Find the best partitions of many prompt lengths.\n\nExamples:\n"
      "  kvcast partition table --model llama-7b --hardware a100-80gb --output llama-7b.json\n"
      "  kvcast partition table --model llama-7b --hardware a100-80gb --devices 4 "
      "--prompt-len 4k..32k:4k --verify");
  const auto o = std::make_shared<TableOptions>();
  o->parallel.add_to(c);
  o->parallel.add_algorithm_to(c);
  c.add("--devices P,...", o->devices, "numbers of devices");
  c.add("--prompt-len", o->prompt_len, "tokens: 4k,8k or 4k..128k:4k");
  c.add("--output,-o FILE.json", o->output, "write the table for kvcast partition lookup").writes();
  o->rows.add_to(c);
  c.add("--threads", o->threads);
  c.add("--verify", o->verify, "report the loss of each entry if interpolated from its neighbours");
  c.callback([o, &globals] {
    o->parallel.request.use_this_machine(globals);
    make_table(*o, globals);
  });
}

void add_lookup(Command command, const Globals& globals) {
  Command c = command.add_subcommand(
      "lookup",
      "Interpolate a partition from a table.\n\nExamples:\n"
      "  kvcast partition lookup --table llama-7b.json --devices 4 --prompt-len 10k\n"
      "  kvcast partition lookup --table llama-7b.json --devices 4 --prompt-len 10k --verify");
  const auto o = std::make_shared<LookupOptions>();
  c.add("--table FILE.json", o->table, "a file of kvcast partition table --output").required();
  c.add("--devices", o->devices).required();
  c.add("--prompt-len", o->prompt_len).required();
  c.add("--model", o->model, "check that the table is for this model");
  c.add("--hardware", o->hardware, "check that the table is for this device");
  c.add("--force", o->force,
        "accept a table for another model or device, or with other compute times");
  c.add("--extrapolate", o->extrapolate, "outside the table, use the nearest entry");
  c.add("--verify", o->verify, "also search, and report the loss of the interpolation");
  c.add("--json", o->json);
  c.callback([o, &globals] { look_up_one(*o, globals); });
}

}  // namespace

void add_partition(Command app, const Globals& globals) {
  Command command = app.add_subcommand(
      "partition",
      "Split a prompt over a chain of devices (KV-Runahead).\n\nExamples:\n"
      "  kvcast partition search --model llama-7b --hardware a100-80gb --devices 4 "
      "--prompt-len 16k\n"
      "  kvcast partition table --model llama-7b --hardware a100-80gb --output llama-7b.json");
  command.require_subcommand(1);
  add_search(command, globals);
  add_table(command, globals);
  add_lookup(command, globals);
}

}  // namespace kvcast::cli
