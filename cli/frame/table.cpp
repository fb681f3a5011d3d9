#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "cli/frame/command.h"
#include "cli/frame/text_width.h"

namespace kvcast::cli {
namespace {

using Cells = std::vector<std::string>;

constexpr std::size_t gap = 2;
/// Words are not cut below this.
constexpr std::size_t least_words = 12;
/// What a row is of is not cut below this while the columns behind it can have room.
constexpr std::size_t least_name = 24;
/// The last column of a table that wraps its words.
constexpr std::size_t least_wrapped = 24;

bool is_numeric(const std::string& cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) != 0 ||
                           ((cell[0] == '-' || cell[0] == '+') && cell.size() > 1));
}

/// The rows as they are printed.
class Layout {
 public:
  explicit Layout(const std::vector<Cells>& rows) : headings_(rows.front()) {
    body_.assign(rows.begin() + 1, rows.end());
    std::size_t columns = 0;
    for (const Cells& row : rows) columns = std::max(columns, row.size());
    headings_.resize(columns);
    for (Cells& row : body_) row.resize(columns);
    for (std::size_t i = 0; i < columns; ++i) {
      Column c;
      c.heading = {headings_[i]};
      const auto first = std::find_if(body_.begin(), body_.end(),
                                      [i](const Cells& row) { return !row[i].empty(); });
      // A heading stands over its column the way the column's first cell does.
      c.is_right = is_numeric(first == body_.end() ? headings_[i] : (*first)[i]);
      c.is_words = std::any_of(body_.begin(), body_.end(), [i](const Cells& row) {
        return !row[i].empty() && !is_numeric(row[i]);
      });
      for (const Cells& row : body_) c.cells = std::max(c.cells, text_width(row[i]));
      c.width = std::max(c.cells, text_width(headings_[i]));
      columns_.push_back(std::move(c));
    }
    if (columns_.empty()) return;
    // Sentences, of which some begin with a number.
    if (columns_.back().is_words) columns_.back().is_right = false;
    const auto words =
        std::find_if(columns_.begin(), columns_.end(), [](const Column& c) { return c.is_words; });
    if (words != columns_.end()) words->is_name = true;
  }

  bool fits() const { return total() <= table_width; }

  /// Breaks headings that are wider than their columns, first those that this helps most.
  void wrap_headings() {
    const auto broken = [](const Column& c) {
      Column narrow = c;
      narrow.width = c.cells;
      if (c.heading.size() == 1) narrow.heading = wrapped(c.heading.front(), c.cells);
      for (const std::string& line : narrow.heading) {
        narrow.width = std::max(narrow.width, text_width(line));
      }
      return narrow;
    };
    while (!fits()) {
      const auto gain = [&](const Column& c) { return c.width - broken(c).width; };
      const auto most =
          std::max_element(columns_.begin(), columns_.end(),
                           [&](const Column& a, const Column& b) { return gain(a) < gain(b); });
      if (gain(*most) == 0) return;
      *most = broken(*most);
    }
  }

  /// Takes from the last column down to `least`, for words that go on in more lines.
  void narrow_last(std::size_t least) {
    Column& last = columns_.back();
    if (fits() || !last.is_words || last.width <= least) return;
    last.width = std::max(least, last.width - std::min(last.width, total() - table_width));
  }

  /// Takes from the widest column of words until all have room. Names keep `least_of_name` columns;
  /// 0: all they have.
  void narrow_words(std::size_t least_of_name) {
    while (!fits()) {
      Column* widest = nullptr;
      for (Column& c : columns_) {
        const std::size_t least = !c.is_name           ? least_words
                                  : least_of_name == 0 ? c.width
                                                       : least_of_name;
        if (!c.is_words || c.width <= least) continue;
        if (widest == nullptr || c.width >= widest->width) widest = &c;
      }
      if (widest == nullptr) return;
      --widest->width;
    }
  }

  /// Whether names that differ still do when they are cut.
  bool tells_names_apart() const {
    const auto names =
        std::find_if(columns_.begin(), columns_.end(), [](const Column& c) { return c.is_name; });
    if (names == columns_.end() || names->width >= names->cells) return true;
    const auto i = static_cast<std::size_t>(names - columns_.begin());
    std::map<std::string, std::string> whole;  // by what is left of them
    return std::all_of(body_.begin(), body_.end(), [&](const Cells& row) {
      return whole.emplace(shortened_inside(row[i], names->width), row[i]).first->second == row[i];
    });
  }

  /// Puts the sign in the place of columns that have no room.
  void drop_columns() {
    if (fits()) return;
    const std::string sign = "...";
    constexpr std::size_t fewest = 3;
    while (columns_.size() > fewest && total() + gap + sign.size() > table_width) {
      columns_.pop_back();
    }
    for (Cells& row : body_) {
      row.resize(columns_.size());
      row.push_back(sign);
    }
    columns_.push_back({.heading = {sign}, .width = sign.size()});
  }

  std::string text(Table::Long long_words) const {
    std::size_t lines = 1;
    for (const Column& c : columns_) lines = std::max(lines, c.heading.size());
    std::string out;
    for (std::size_t l = 0; l < lines; ++l) {
      Cells row;
      for (const Column& c : columns_) {
        const std::size_t above = lines - c.heading.size();  // short ones stand at the bottom
        row.push_back(l < above ? "" : c.heading[l - above]);
      }
      out += line(row);
    }
    for (const Cells& row : body_) {
      out += long_words == Table::Long::Cut ? line(row) : wrapped_lines(row);
    }
    return out;
  }

 private:
  struct Column {
    std::vector<std::string> heading;  ///< its lines
    std::size_t cells = 0;             ///< of the widest cell
    std::size_t width = 0;
    bool is_right = false;
    bool is_words = false;  ///< may be cut
    bool is_name = false;   ///< the first of these, which says what a row is of
  };

  std::size_t total() const {
    std::size_t sum = 0;
    for (const Column& c : columns_) sum += c.width + gap;
    return sum < gap ? 0 : sum - gap;
  }

  std::string line(const Cells& row) const {
    std::string out;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const Column& c = columns_[i];
      const std::string cell =
          c.is_name ? shortened_inside(row[i], c.width) : shortened(row[i], c.width);
      const std::string padding(c.width - std::min(c.width, text_width(cell)), ' ');
      if (i > 0) out.append(gap, ' ');
      out += c.is_right ? padding + cell : cell + padding;
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    return out + "\n";
  }

  std::string wrapped_lines(const Cells& row) const {
    std::vector<std::vector<std::string>> cells;
    std::size_t lines = 1;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      cells.push_back(wrapped(row[i], columns_[i].width, LongWords::Broken));
      lines = std::max(lines, cells.back().size());
    }
    std::string out;
    for (std::size_t l = 0; l < lines; ++l) {
      Cells part;
      for (const auto& cell : cells) part.push_back(l < cell.size() ? cell[l] : "");
      out += line(part);
    }
    return out;
  }

  Cells headings_;
  std::vector<Cells> body_;
  std::vector<Column> columns_;
};

}  // namespace

std::string Table::text() const {
  Layout layout(rows_);
  layout.wrap_headings();
  if (long_words_ == Long::Wrap) layout.narrow_last(least_wrapped);
  // Other words are cut before names, and names lose their middle before columns are left out.
  Layout narrowed = layout;
  for (const std::size_t least_of_name :
       {long_words_ == Long::Wrap ? least_words : 0, least_name}) {
    narrowed.narrow_words(least_of_name);
    if (narrowed.fits() && narrowed.tells_names_apart()) return narrowed.text(long_words_);
  }
  layout.drop_columns();
  layout.narrow_words(least_words);
  return layout.text(long_words_);
}

}  // namespace kvcast::cli
