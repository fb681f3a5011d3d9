/// Checked reading of JSON: every error names the file and the place in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace kvcast {

/// Parses a file of at most 16 MiB. Throws Error naming the file, and the line of a syntax error.
nlohmann::json read_json_file(const std::filesystem::path& path);

/// Parses a text given on the command line; `place` names the flag in errors.
nlohmann::json parse_json(std::string_view text, const std::string& place);

/// The document as text, on one line or indented; U+FFFD stands for bytes that are not UTF-8, which
/// names of files may hold.
std::string json_text(const nlohmann::json& document, int indent = -1);
std::string json_text(const nlohmann::ordered_json& document, int indent = -1);

/// The same, for a message: at most 60 bytes of it.
std::string shown(const nlohmann::json& value);

/// An object inside a JSON document, with the place where it stands ("FILE: /rope_scaling").
/// Remembers which keys were asked for, so that a reader can reject the others.
class JsonObject {
 public:
  /// Throws Error when `json` is no object.
  JsonObject(const nlohmann::json& json, std::string place);

  const std::string& place() const { return place_; }
  /// "FILE: /key"
  std::string place_of(std::string_view key) const;
  /// True if the key is there and not null.
  bool has(std::string_view key) const;
  /// True if the key is there and null, which switches some options off.
  bool is_null(std::string_view key) const;
  const nlohmann::json& at(std::string_view key) const;  ///< throws Error when missing

  /// A whole number of at least `minimum` and at most 2^40.
  std::uint64_t whole(std::string_view key, std::uint64_t minimum = 1) const;
  std::uint64_t whole_or(std::string_view key, std::uint64_t fallback,
                         std::uint64_t minimum = 1) const;
  std::vector<std::uint64_t> wholes(std::string_view key) const;
  /// A number above zero, see is_computable.
  double positive(std::string_view key) const;
  double positive_or(std::string_view key, double fallback) const;
  std::vector<double> positives(std::string_view key) const;
  /// Any number, see is_computable.
  double number_or(std::string_view key, double fallback) const;
  std::string text(std::string_view key) const;
  std::vector<std::string> texts(std::string_view key) const;
  std::string text_or(std::string_view key, std::string fallback) const;
  bool flag_or(std::string_view key, bool fallback) const;  ///< null is false, as in Python
  JsonObject object(std::string_view key) const;
  std::vector<std::string> keys() const;

  /// Keys asked for so far.
  const std::set<std::string, std::less<>>& asked() const { return asked_; }
  /// Throws Error naming the first key that nobody asked for, with the nearest that was.
  void reject_unknown_keys() const;

  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;

 private:
  const nlohmann::json* find(std::string_view key) const;
  const nlohmann::json* json_;
  std::string place_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace kvcast
