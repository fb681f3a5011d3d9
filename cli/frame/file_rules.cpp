#include "cli/frame/file_rules.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/frame/data_folder.h"
#include "model/base/error.h"
#include "model/io/files/atomic_file.h"
#include "reports/plot/plot.h"

namespace kvcast::cli {
namespace {

namespace fs = std::filesystem;

std::map<const CLI::Option*, FlagRules>& all_rules() {
  static thread_local std::map<const CLI::Option*, FlagRules> rules;
  return rules;
}

struct File {
  std::string flag;
  std::string value;  ///< of the flag, of which the path may be one of several files
  fs::path path;
};

/// What the flag's value makes a command write; nothing of standard output, which --csv alone
/// takes.
std::vector<File> written(const CLI::Option& o) {
  const std::string value = o.results().front();
  if (value == "-" && o.get_name() == "--csv") return {};
  if (value == "-") throw Error(o.get_name(), value, "a file");
  std::vector<File> files;
  for (const fs::path& path : rules_of(&o).writes(value)) {
    files.push_back({o.get_name(), value, path});
  }
  return files;
}

/// By name, where one of them is not there yet; links are followed.
bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code ec;
  if (fs::equivalent(a, b, ec)) return true;
  const auto resolved = [](const fs::path& path) {
    std::error_code problem;
    const fs::path absolute = fs::absolute(path, problem);
    fs::path found = fs::weakly_canonical(absolute, problem);
    if (problem) found = absolute;
    return found.has_filename() ? found : found.parent_path();  // "folder/" is "folder"
  };
  return resolved(a) == resolved(b);
}

/// What else is printed would be mixed into such a file. /dev/null may stand for both.
void check_is_not_standard_output(const File& file) {
  struct stat output {};
  struct stat named {};
  if (::fstat(STDOUT_FILENO, &output) != 0 || ::stat(file.path.c_str(), &named) != 0) return;
  const auto same = [](const struct stat& a, const struct stat& b) {
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
  };
  struct stat null {};
  if (!same(output, named) || (::stat("/dev/null", &null) == 0 && same(output, null))) return;
  throw Error(file.flag, file.path.string() + ", which is standard output", "a file");
}

/// Whether the text of another flag, or a part of it as in "predictor=FOLDER", names the file, or a
/// checkpoint's folder that it is in.
bool reads(const std::string& text, const fs::path& file) {
  std::error_code ec;
  constexpr std::string_view separators = ",;+=: ";
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    for (const std::string& part : {text, text.substr(begin, end - begin)}) {
      if (part.empty() || !fs::exists(part, ec)) continue;
      if (same_file(part, file)) return true;
      if (fs::exists(fs::path(part) / "config.json", ec) && fs::exists(file, ec) &&
          same_file(part, fs::weakly_canonical(fs::absolute(file, ec), ec).parent_path())) {
        return true;
      }
    }
    begin = end + 1;
  }
  return false;
}

void check_is_no_input(const CLI::App& command, const File& file) {
  for (const CLI::Option* o : command.get_options()) {
    if (o->count() == 0 || rules_of(o).writes || rules_of(o).is_free_text) continue;
    for (const std::string& text : o->results()) {
      const std::string reader = o->get_name();
      if (!(reader == "OUT" ? same_file(text, file.path) : reads(text, file.path))) continue;
      throw Error(file.flag,
                  file.path.string() + (reader == "OUT" ? ", the name of the new folder"
                                                        : ", which " + reader + " reads"),
                  "another file");
    }
  }
}

void check_is_not_in_catalog(const File& file, const fs::path& data) {
  std::error_code ec;
  if (!fs::exists(file.path, ec)) return;
  const fs::path folder = fs::weakly_canonical(fs::absolute(file.path, ec), ec).parent_path();
  for (const char* part :
       {"models", "hardware", "engines", "platforms", "published", "measurements"}) {
    if (!fs::exists(data / part, ec) || !same_file(folder, data / part)) continue;
    throw Error(file.flag, file.path.string() + ", a file of the catalog", "another file");
  }
}

/// Throws Error where a list "[NAME:]KEY=VALUE,..." or "WORD,..." has a key or word twice.
void check_keys(const CLI::Option& o, const std::string& text) {
  std::set<std::string> keys;
  for (std::size_t begin = text.find(':') + 1; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string key = text.substr(begin, std::min(text.find('=', begin), end) - begin);
    if (!keys.insert(key).second) throw Error(o.get_name(), "'" + key + "' twice", "each once");
    begin = end + 1;
  }
}

/// CLI11's own needs() wants all of several flags, and its lines do not say what would be right.
void check_other_flags(const CLI::App& command, const CLI::Option& o) {
  const auto is_given = [&](const std::string& flag) {
    return command.get_option(flag)->count() > 0;
  };
  const FlagRules& rules = rules_of(&o);
  const bool changes = o.results().size() != 1 || o.results().front() != o.get_default_str();
  const bool lacks = std::none_of(rules.needs.begin(), rules.needs.end(), is_given);
  if (changes && !rules.needs.empty() && lacks) {
    const std::string needed = fmt::format("{}", fmt::join(rules.needs, " or "));
    throw Error(o.get_name(), "no " + needed, needed + " beside it");
  }
  for (const auto& [flag, why] : rules.excludes) {
    if (!is_given(flag)) continue;
    throw Error(fmt::format("{}: cannot be combined with {}; {}", o.get_name(), flag, why));
  }
}

}  // namespace

FlagRules& rules_of(const CLI::Option* flag) { return all_rules()[flag]; }
void forget_rules() { all_rules().clear(); }

std::vector<fs::path> drawn(const std::vector<fs::path>& pictures) {
  std::vector<fs::path> files;
  for (const fs::path& picture : pictures) {
    const reports::PlotFiles parts = reports::plot_files(picture);
    files.insert(files.end(), {parts.picture, parts.csv, parts.script});
  }
  return files;
}

void check_files(const CLI::App& command) {
  const CLI::App* program = &command;
  while (program->get_parent() != nullptr) program = program->get_parent();
  const CLI::Option* data = program->get_option("--data");
  const fs::path catalog = data_folder(data->count() > 0 ? data->results().front() : "");
  std::vector<File> files;
  for (const CLI::Option* o : command.get_options()) {
    if (o->count() == 0 || !rules_of(o).writes) continue;
    for (File& file : written(*o)) {
      for (const File& other : files) {
        if (!same_file(file.path, other.path)) continue;
        const std::string path = file.path.string();
        throw Error(file.flag,
                    (file.value == path ? path : file.value + " with " + path) + ", which " +
                        other.flag + " writes too",
                    "another file");
      }
      check_is_not_standard_output(file);
      check_is_no_input(command, file);
      check_is_not_in_catalog(file, catalog);
      check_writable(file.path);
      files.push_back(std::move(file));
    }
  }
}

void check_texts(const CLI::App& command) {
  if (command.get_parent() != nullptr) check_texts(*command.get_parent());
  for (const CLI::Option* o : command.get_options()) {
    if (o->count() == 0) continue;
    check_other_flags(command, *o);
    if (o->get_items_expected_max() == 0) continue;
    for (const std::string& text : o->results()) {
      if (text.empty() && !rules_of(o).is_free_text) {
        throw Error(o->get_name(), "an empty text", o->get_type_name());
      }
      if (rules_of(o).has_keys) check_keys(*o, text);
    }
  }
}

}  // namespace kvcast::cli
