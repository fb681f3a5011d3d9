/// Text of unknown origin made fit for HTML.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace kvcast::reports {

/// For element content and for attributes in double quotes. What is no UTF-8, and control
/// characters other than tabs and line ends, become U+FFFD.
std::string html_escape(std::string_view text);

/// A relative address, its special characters percent-encoded; "./" in front, so that no name can
/// be taken for a scheme.
std::string html_href(const std::filesystem::path& relative);

/// Lower-case letters, digits and hyphens; other characters become hyphens.
std::string html_id(std::string_view text);

/// RFC 4648.
std::string base64(std::string_view bytes);

/// All of `text` as a finite decimal number, however small; empty if it is none.
std::optional<double> number_of(std::string_view text);
bool is_number(std::string_view text);

/// A number for a person: four significant digits of a fraction, all digits of a whole number, in
/// groups of three from 5 digits on. Other text as it is.
std::string shown_number(std::string_view text);

/// The same with the unit that a column or key name ends in: ttft_s, kv_cache_bytes, prefill_flops,
/// ..._bytes_per_s; errors (relative_error, mape, ...) in percent. Other names: as `shown_number`.
std::string shown_quantity(std::string_view name, std::string_view text);

/// "kv cache bytes" for kv_cache_bytes; "ttft" for ttft_s, whose value is shown with its unit.
std::string shown_name(std::string_view name);

}  // namespace kvcast::reports
