/// Text in columns of a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kvcast::cli {

/// Columns that tables and help take at most.
inline constexpr std::size_t table_width = 100;

/// Columns that the text takes: its UTF-8 characters, each of width 1.
std::size_t text_width(const std::string& text);
/// The text, or its beginning and "..." in so many columns.
std::string shortened(const std::string& text, std::size_t width);
/// The text, or its beginning, "..." and its end in so many columns.
std::string shortened_inside(const std::string& text, std::size_t width);
/// What becomes of words that are longer than a line.
enum class LongWords { Whole, Broken };
/// Lines of at most so many columns, broken at blanks.
std::vector<std::string> wrapped(const std::string& text, std::size_t width,
                                 LongWords long_words = LongWords::Whole);

}  // namespace kvcast::cli
