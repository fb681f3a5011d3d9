/// Texts of a plot: made printable, cut to a width, and quoted for gnuplot.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvcast::reports {

/// Characters of a UTF-8 text, not bytes.
std::size_t num_characters(std::string_view utf8);

/// Printable: line ends and control characters become blanks, bytes that are not UTF-8 U+FFFD.
std::string printable(std::string_view text);

/// The first `columns` characters of a text, the last one an ellipsis if some were left out.
std::string shortened(const std::string& text, std::size_t columns);

/// Lines of at most `columns` characters, broken at blanks.
std::vector<std::string> wrapped(const std::string& text, std::size_t columns);

/// A gnuplot string. Between single quotes only the quote itself is special.
std::string literal(std::string_view text);

/// A file in gnuplot's working folder. A name such as "<x" or "|x" would start a program.
std::string file_literal(const std::filesystem::path& file);

}  // namespace kvcast::reports
