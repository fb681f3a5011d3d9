#include "reports/page/result_files.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <string_view>

#include "model/base/error.h"

namespace kvcast::reports {
namespace {

constexpr std::uintmax_t max_shown_bytes = 64u << 20;
constexpr std::size_t max_files = 10'000;
constexpr int max_depth = 100;  // as in read_json_file

std::string beginning(const std::filesystem::path& path) {
  std::array<char, 4096> buffer{};
  std::ifstream in(path, std::ios::binary);
  in.read(buffer.data(), buffer.size());
  return {buffer.data(), static_cast<std::size_t>(in.gcount())};
}

struct Signature {
  std::string_view command;
  std::vector<std::string_view> keys;
};

/// The first whose keys are all there; the keys are those of the command line's contract.
std::string command_of(const std::vector<Signature>& signatures,
                       const std::set<std::string, std::less<>>& keys) {
  for (const Signature& s : signatures) {
    if (std::all_of(s.keys.begin(), s.keys.end(),
                    [&](std::string_view key) { return keys.contains(key); })) {
      return std::string(s.command);
    }
  }
  return {};
}

std::string json_command(const nlohmann::ordered_json& json) {
  static const std::vector<Signature> signatures{
      {"reproduce", {"rows", "summary", "papers"}},
      {"run", {"generated_tokens", "ttft_s"}},
      {"simulate prefill", {"makespan_s", "finish_s"}},
      {"partition", {"partition_tokens", "partition_boundaries"}},
      {"partition table", {"settings", "entries"}},
      {"choose", {"rows", "rejected"}},
      {"choose devices", {"devices", "rows", "link_bytes_per_s"}},
      {"choose keep-rate", {"speculator", "rows"}},
      {"validate", {"rows", "summary"}},
      {"estimate", {"ttft_s", "tpot_s", "prefill_flops"}},
      {"hardware show", {"peak_flops_per_second", "memory_bandwidth_bytes_per_s"}},
      {"model show", {"num_hidden_layers", "hidden_size", "parameters"}},
  };
  std::set<std::string, std::less<>> keys;
  for (const auto& item : json.items()) keys.insert(item.key());
  return command_of(signatures, keys);
}

std::string csv_command(const std::vector<std::string>& columns) {
  static const std::vector<Signature> signatures{
      {"reproduce", {"table", "cell", "published", "ours", "verdict"}},
      {"sweep", {"model", "hardware", "prompt_len", "ttft_s", "tpot_s"}},
      {"validate", {"predicted_s", "measured_s", "relative_error"}},
      {"validate --measure", {"predicted_ttft_s", "ttft_relative_error"}},
      {"choose", {"rank", "method"}},
  };
  return command_of(signatures, {columns.begin(), columns.end()});
}

void unreadable(ResultFile& file, std::string reason) {
  file.kind = ResultKind::Unreadable;
  file.reason = std::move(reason);
}

void read_json(const std::filesystem::path& path, ResultFile& file) {
  if (beginning(path).find("\"traceEvents\"") != std::string::npos) {
    file.kind = ResultKind::Trace;
    return;
  }
  const auto limit_depth = [](int depth, nlohmann::ordered_json::parse_event_t,
                              nlohmann::ordered_json&) {
    if (depth > max_depth) throw Error("JSON nested too deep");
    return true;
  };
  try {
    file.json = nlohmann::ordered_json::parse(read_result_bytes(path), limit_depth);
  } catch (const nlohmann::json::exception&) {
    return unreadable(file, "no JSON document");
  }
  if (file.json.is_object() && file.json.contains("traceEvents")) {
    file.kind = ResultKind::Trace;
    file.json = {};
  } else if (file.json.is_object()) {
    file.kind = ResultKind::Json;
    file.command = json_command(file.json);
  }
}

void recognise(const std::filesystem::path& path, ResultFile& file) {
  const std::string start = beginning(path);
  const std::string extension = file.path.extension().string();
  const bool svg = extension == ".svg" && start.find("<svg") != std::string::npos;
  if (svg || start.starts_with("\x89PNG\r\n")) {
    file.kind = file.bytes > max_shown_bytes ? ResultKind::Other : ResultKind::Picture;
  } else if (extension == ".json") {
    read_json(path, file);
  } else if (extension == ".csv") {
    file.command = csv_command(read_result_rows(path).table.columns());
    file.kind = ResultKind::Csv;
  }
}

}  // namespace

std::string read_result_bytes(const std::filesystem::path& path) {
  std::error_code ec;
  const std::uintmax_t size = std::filesystem::file_size(path, ec);
  if (ec) throw Error(path.string() + ": " + ec.message(), Fault::Run);
  if (size > max_shown_bytes) {
    throw Error(path.string(), std::to_string(size) + " bytes", "a file of at most 64 MiB");
  }
  std::ifstream in(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw Error(path.string() + ": cannot be read", Fault::Run);
  return bytes;
}

ResultRows read_result_rows(const std::filesystem::path& path) {
  constexpr std::size_t beginning_bytes = 1u << 20;
  std::error_code ec;
  if (std::filesystem::file_size(path, ec) <= max_shown_bytes || ec) return {CsvTable::read(path)};
  std::string text(beginning_bytes, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  text.resize(text.rfind('\n') + 1);  // npos + 1 is 0
  return {CsvTable::parse(text, path.string()), false};
}

std::vector<ResultFile> read_results(const std::filesystem::path& folder,
                                     const std::filesystem::path& besides) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (!fs::is_directory(folder, ec)) {
    throw Error(folder.string(), "no folder", "a folder with results of kvcast");
  }
  std::vector<fs::path> paths;
  fs::recursive_directory_iterator entry(folder, ec);
  for (; !ec && entry != fs::recursive_directory_iterator(); entry.increment(ec)) {
    const bool hidden = entry->path().filename().string().starts_with('.');
    std::error_code ignored;
    if (hidden || entry->is_symlink(ignored)) {
      entry.disable_recursion_pending();
      continue;
    }
    if (!entry->is_regular_file(ignored) || fs::equivalent(entry->path(), besides, ignored)) {
      continue;
    }
    if (paths.size() == max_files) {
      throw Error(folder.string(), "more than 10000 files", "a folder with results of kvcast");
    }
    paths.push_back(entry->path());
  }
  if (ec) throw Error(folder.string() + ": " + ec.message(), Fault::Run);
  std::sort(paths.begin(), paths.end());

  std::vector<ResultFile> files;
  std::set<fs::path> pictures;
  for (const fs::path& path : paths) {
    ResultFile file;
    file.path = path.lexically_relative(folder);
    file.bytes = fs::file_size(path, ec);
    try {
      recognise(path, file);
    } catch (const Error& e) {
      unreadable(file, e.what());
    }
    if (file.kind == ResultKind::Picture) pictures.insert(fs::path(path).replace_extension());
    files.push_back(std::move(file));
  }
  for (ResultFile& file : files) {
    if (file.kind == ResultKind::Csv &&
        pictures.contains((folder / file.path).replace_extension())) {
      file.kind = ResultKind::PictureCsv;
    }
  }
  return files;
}

}  // namespace kvcast::reports
