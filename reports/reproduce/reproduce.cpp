#include "reports/reproduce/reproduce.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include "model/base/error.h"
#include "reports/plot/study_plots.h"

namespace kvcast::reports {
namespace {

/// A number as printed: digits / 10^decimals · unit.
struct PrintedNumber {
  double digits = 0;
  int decimals = 0;
  double unit = 1;

  double scale() const { return unit / std::pow(10, decimals); }
  double value() const { return digits * scale(); }
};

PrintedNumber parse_printed(std::string_view text, std::string_view place) {
  const auto fail = [&] {
    throw Error(place, "'" + std::string(text) + "'", "a number such as 3.60, 134M or 4.3B");
  };
  PrintedNumber number;
  std::string_view rest = text;
  if (rest.ends_with('K')) number.unit = 1e3;
  if (rest.ends_with('M')) number.unit = 1e6;
  if (rest.ends_with('B')) number.unit = 1e9;
  if (number.unit > 1) rest.remove_suffix(1);
  std::string digits(rest);
  if (const std::size_t point = digits.find('.'); point != std::string::npos) {
    digits.erase(digits.begin() + static_cast<std::ptrdiff_t>(point));
    number.decimals = static_cast<int>(digits.size()) - static_cast<int>(point);
  }
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  // Above 15 digits a double no longer tells neighbours apart.
  const bool readable = !digits.empty() && digits.size() <= 15 && is_digit(rest.front()) &&
                        std::all_of(digits.begin(), digits.end(), is_digit);
  if (!readable) fail();
  std::from_chars(digits.data(), digits.data() + digits.size(), number.digits);
  return number;
}

bool rounds_to(double ours, const PrintedNumber& printed) {
  return std::floor(ours / printed.scale() + 0.5) == printed.digits;
}

double relative_error(double ours, double published) {
  if (ours == published) return 0;
  return published == 0 ? std::numeric_limits<double>::infinity() : ours / published - 1;
}

/// True if `row` has every value of a key "COLUMN=VALUE;COLUMN=VALUE".
bool matches(const CsvRow& row, std::string_view key, const std::string& place) {
  while (!key.empty()) {
    const std::size_t end = std::min(key.find(';'), key.size());
    const std::string_view condition = key.substr(0, end);
    const std::size_t equals = condition.find('=');
    if (equals == std::string_view::npos) {
      throw Error(place, "'" + std::string(condition) + "'", "COLUMN=VALUE");
    }
    if (row.text(condition.substr(0, equals)) != condition.substr(equals + 1)) return false;
    key.remove_prefix(std::min(end + 1, key.size()));
  }
  return true;
}

std::string file_of(const CsvRow& row) {
  return std::filesystem::path(row.table().name()).filename().string();
}

}  // namespace

std::vector<const PublishedTable*> select_tables(std::span<const PublishedTable> tables,
                                                 std::span<const std::string> names) {
  std::vector<std::string> known{"all"};
  for (const PublishedTable& table : tables) {
    for (const std::string& name : {table.group, table.name}) {
      if (std::find(known.begin(), known.end(), name) == known.end()) known.push_back(name);
    }
  }
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      if (nearest(name, known).empty()) {
        throw Error("unknown table '" + name + "'; see kvcast reproduce --help");
      }
      throw unknown_name("table", name, known);
    }
  }
  std::vector<const PublishedTable*> selected;
  for (const PublishedTable& table : tables) {
    const bool meant = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return name == "all" || name == table.group || name == table.name;
    });
    if (meant || names.empty()) selected.push_back(&table);
  }
  return selected;
}

ReproductionSummary summarize(const PublishedTable& table, std::span<const ReproducedRow> rows) {
  ReproductionSummary s;
  s.table = table.name;
  s.kind = table.kind;
  s.cells = rows.size();
  for (const ReproducedRow& row : rows) {
    if (!row.erratum.empty()) ++s.errata;
    if (row.corrected) {
      ++s.corrected;
    } else if (row.exact) {
      ++s.exact;
      if (row.agrees) ++s.exact_agree;
    } else if (row.fitted) {
      ++s.fitted;
    } else {
      s.mape += std::abs(row.relative_error);
      s.worst = std::max(s.worst, std::abs(row.relative_error));
    }
  }
  if (s.measured() > 0) s.mape /= static_cast<double>(s.measured());
  return s;
}

ReproducedTable reproduced(const PublishedTable& table, const Catalog& catalog,
                           const std::string& engine) {
  ReproducedTable t{&table, table.rows(catalog, engine)};
  t.summary = summarize(table, t.rows);
  return t;
}

std::vector<PaperSummary> summarize_papers(std::span<const ReproducedTable> tables,
                                           std::span<const PublishedGap> gaps) {
  std::vector<PaperSummary> papers;
  for (const ReproducedTable& t : tables) {
    const std::string& group = t.table->group;
    auto paper = std::find_if(papers.begin(), papers.end(),
                              [&](const PaperSummary& p) { return p.group == group; });
    if (paper == papers.end()) {
      const auto of_paper = std::count_if(gaps.begin(), gaps.end(), [&](const PublishedGap& gap) {
        return !gap.elsewhere && gap.file.starts_with(group + "_");
      });
      paper = papers.insert(papers.end(),
                            {group, t.table->paper, 0, {}, static_cast<std::size_t>(of_paper)});
    }
    const ReproductionSummary& s = t.summary;
    ReproductionSummary& sums = paper->sums;
    const double before = sums.mape * static_cast<double>(sums.measured());
    ++paper->tables;
    sums.cells += s.cells;
    sums.exact += s.exact;
    sums.exact_agree += s.exact_agree;
    sums.corrected += s.corrected;
    sums.errata += s.errata;
    sums.fitted += s.fitted;
    sums.worst = std::max(sums.worst, s.worst);
    if (sums.measured() > 0) {
      sums.mape = (before + s.mape * static_cast<double>(s.measured())) /
                  static_cast<double>(sums.measured());
    }
  }
  return papers;
}

Published::Published(const Catalog& catalog)
    : folder_(catalog.folder("published")), errata_(read("errata.csv")) {
  const CsvTable left_out = read("left_out.csv");
  for (const CsvRow& row : left_out.rows()) {
    gaps_.push_back({row.text("file"), row.text("claim"), row.text("reason"),
                     row.text("compared_elsewhere") == "yes"});
  }
}

std::string_view Published::left_out(std::string_view claim) const {
  const auto found = std::find_if(gaps_.begin(), gaps_.end(), [&](const PublishedGap& g) {
    return !claim.empty() && g.claim == claim;
  });
  return found == gaps_.end() ? std::string_view{} : found->reason;
}

double Published::claim(std::string_view file, std::string_view claim_id) const {
  const CsvTable claims = read(file);
  for (const CsvRow& row : claims.rows()) {
    if (row.text("claim_id") == claim_id) return row.number("value");
  }
  throw Error(claims.name() + ": no claim_id '" + std::string(claim_id) + "'");
}

std::optional<Erratum> Published::erratum(const CsvRow& row, std::string_view column) const {
  const std::string file = file_of(row);
  for (const CsvRow& e : errata_.rows()) {
    if (e.text("file") != file || e.text("column") != column) continue;
    if (!matches(row, e.text("key"), e.place("key"))) continue;
    if (e.text("printed") != row.text(column)) continue;
    return Erratum{e.text("id"), e.text("corrected"), e.text("reason")};
  }
  return {};
}

ReproducedRow Published::compare(const CsvRow& row, std::string_view column, std::string cell,
                                 double ours, TableKind kind) const {
  const std::string place = row.place(column);
  const PrintedNumber printed = parse_printed(row.text(column), place);
  ReproducedRow result;
  set_origin(row, result);
  result.cell = std::move(cell);
  result.published = row.text(column);
  result.ours = ours;
  result.relative_error = relative_error(ours, printed.value());
  result.exact = kind == TableKind::Exact;
  result.agrees = rounds_to(ours, printed);
  if (const auto known = erratum(row, column)) {
    result.erratum = known->id + ": " + known->reason;
    if (known->corrected.empty()) throw Error(place, result.erratum, "a cell that can be compared");
    if (!result.agrees && rounds_to(ours, known->corrected, place + " (corrected)")) {
      result.agrees = true;
      result.corrected = result.exact;
    }
  }
  return result;
}

void set_origin(const CsvRow& row, ReproducedRow& result) {
  result.source = row.text("source");
  result.file = file_of(row);
  result.line = row.line();
  if (row.table().has_column("claim_id")) result.claim = row.text("claim_id");
}

bool rounds_to(double ours, std::string_view printed, std::string_view place) {
  return rounds_to(ours, parse_printed(printed, place));
}

std::string catalog_spelling(std::string_view printed) {
  std::string name;
  for (const char c : printed) {
    name += c == ' ' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return name;
}

Plot reproduced_ttft_plot(const PublishedTable& table, std::span<const ReproducedRow> rows) {
  std::vector<TtftPoint> points;
  for (const ReproducedRow& row : rows) {
    if (row.prompt_len == 0) continue;
    points.push_back({"forecast", row.prompt_len, row.ours, false});
    points.push_back({"published", row.prompt_len, std::stod(row.published), true});
  }
  if (points.empty()) {
    throw Error("--plot: " + table.name +
                " has no TTFTs over prompt lengths; expected a table "
                "such as kvr-table3-base");
  }
  return ttft_plot(points, table.title);
}

}  // namespace kvcast::reports
