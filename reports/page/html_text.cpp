#include "reports/page/html_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include <fmt/format.h>

#include "model/base/quantity.h"
#include "model/base/utf8_text.h"
#include "model/io/files/number_text.h"

namespace kvcast::reports {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

/// Errors, which people read as percentages.
bool is_share(std::string_view name) {
  return name.ends_with("relative_error") || name.ends_with("error_bound") || name == "mape" ||
         name == "worst" || name == "bias" || name == "bound";
}

bool is_whole(std::string_view text) {
  const std::size_t sign = text.starts_with('-') ? 1 : 0;
  return text.size() > sign && text.find_first_not_of("0123456789", sign) == std::string_view::npos;
}

}  // namespace

std::string html_escape(std::string_view raw) {
  std::string out;
  out.reserve(raw.size() + raw.size() / 8);
  while (!raw.empty()) {
    const text::Utf8Character character = text::first_character(raw);
    const bool whole = character.form == text::Utf8Character::Form::Whole;
    const char c = raw.front();
    const auto byte = static_cast<unsigned char>(c);
    const bool control = (byte < 0x20 && c != '\t' && c != '\n' && c != '\r') || byte == 0x7F;
    if (!whole || control) {
      out += replacement;
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += raw.substr(0, character.length);
    }
    raw.remove_prefix(whole ? character.length : 1);
  }
  return out;
}

std::string html_href(const std::filesystem::path& relative) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/";
  const std::string path = relative.generic_string();
  std::string out = path.starts_with('/') ? "" : "./";
  for (const char c : path) {
    if (plain.find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::string html_id(std::string_view text) {
  std::string id;
  for (const char c : text) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    const bool capital = c >= 'A' && c <= 'Z';
    if (letter || capital) {
      id += capital ? static_cast<char>(c - 'A' + 'a') : c;
    } else if (!id.empty() && id.back() != '-') {
      id += '-';
    }
  }
  while (!id.empty() && id.back() == '-') id.pop_back();
  return id.empty() ? "file" : id;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view group = bytes.substr(i, 3);
    std::array<unsigned char, 3> b{};
    for (std::size_t k = 0; k < group.size(); ++k) b[k] = static_cast<unsigned char>(group[k]);
    const std::uint32_t bits = (std::uint32_t{b[0]} << 16) | (std::uint32_t{b[1]} << 8) | b[2];
    out += digits[bits >> 18];
    out += digits[bits >> 12 & 63];
    out += group.size() > 1 ? digits[bits >> 6 & 63] : '=';
    out += group.size() > 2 ? digits[bits & 63] : '=';
  }
  return out;
}

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  if (!parse_number(text, value) || !std::isfinite(value)) return {};
  return value;
}

bool is_number(std::string_view text) { return number_of(text).has_value(); }

std::string shown_number(std::string_view text) {
  if (!is_number(text)) return std::string(text);
  constexpr double most_fraction = 1e4;  // above it four digits would need an exponent
  if (!is_whole(text)) {
    const double value = *number_of(text);
    const bool large = std::abs(value) >= most_fraction && std::abs(value) < 1e15;
    return large ? shown_number(fmt::format("{:.0f}", value)) : fmt::format("{:.4g}", value);
  }
  constexpr std::size_t shortest_grouped = 5;
  const std::size_t sign = text.starts_with('-') ? 1 : 0;
  const std::string_view digits = text.substr(sign);
  std::string out(text.substr(0, sign));
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool group = i > 0 && (digits.size() - i) % 3 == 0;
    if (group && digits.size() >= shortest_grouped) out += "\xE2\x80\xAF";  // narrow no-break space
    out += digits[i];
  }
  return out;
}

std::string shown_quantity(std::string_view name, std::string_view text) {
  const std::optional<double> value = number_of(text);
  if (!value) return std::string(text);
  if (name.ends_with("bytes_per_s")) return format_quantity(*value, Dimension::BytesPerSecond);
  if (name.ends_with("flops_per_second")) return format_quantity(*value, Dimension::FlopsPerSecond);
  if (name.ends_with("bytes") || name.ends_with("bytes_per_token")) {
    return format_quantity(*value, Dimension::Bytes);
  }
  if (name.ends_with("flops") || name.ends_with("flops_per_token")) {
    return format_count(*value) + "FLOP";
  }
  if (name.ends_with("_s") || name == "seconds") return format_quantity(*value, Dimension::Seconds);
  if (is_share(name)) return fmt::format("{:.3g} %", 100 * *value);
  return shown_number(text);
}

std::string shown_name(std::string_view name) {
  if (name.ends_with("_s") && !name.ends_with("_per_s")) name.remove_suffix(2);
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', ' ');
  return out;
}

}  // namespace kvcast::reports
