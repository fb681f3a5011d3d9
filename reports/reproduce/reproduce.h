/// Published tables, side by side with what kvcast computes.
///
/// The printed numbers come from `data/published/`, mistakes included, and what is known to be
/// wrong in them from its `errata.csv`; our numbers come from the catalog's models and the
/// recorder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/io/files/csv_table.h"
#include "model/io/weights/catalog.h"
#include "reports/plot/plot.h"

namespace kvcast::reports {

struct ServingStudy;

/// One published number and ours.
struct ReproducedRow {
  std::string source;     ///< paper and table
  std::string cell;       ///< row and column of the table, and how it was read
  std::string published;  ///< as printed; where formulas are printed, their value
  double ours = 0;
  double relative_error = 0;  ///< ours / published - 1
  bool exact = false;         ///< must agree to the printed digits; otherwise it was measured
  /// Ours, rounded half up to the printed digits, is the printed number, or the one that the
  /// erratum puts in its place.
  bool agrees = false;
  std::string erratum;           ///< "E11: labels swapped ..."; empty if none
  std::uint64_t prompt_len = 0;  ///< if the cell is a TTFT; 0: it is not
  std::string file = {};         ///< where the published number stands: "kvp_prose.csv"
  std::string claim = {};        ///< its `claim_id` in a "..._prose.csv"; empty: none
  bool fitted = false;  ///< measured, and a factor of ours was fitted to it: no check of it
  /// Exact, and it agrees with what the erratum puts in the place of the print, not with the print.
  bool corrected = false;
  std::size_t line = 0;  ///< in `file`
};

enum class TableKind {
  Exact,     ///< a correct model reproduces the printed digits
  Measured,  ///< a model can come near
};

struct PublishedTable {
  std::string name;  ///< "kvp-table5"
  std::string
      group;  ///< the paper: "kvp", "slim", "specprefill", "mlkv", "kvr"; "models", "measurements"
  std::string title;
  TableKind kind = TableKind::Exact;
  /// `engine`: of all TTFTs and TPOTs of one device; empty: of each row's own engine, or ideal.
  std::function<std::vector<ReproducedRow>(const Catalog&, const std::string& engine)> rows;
  std::string paper = {};  ///< "KV Prediction"; a group that is no paper: its name
  /// Of a table about a server: what its rows cannot say; empty for all others.
  std::function<ServingStudy(const Catalog&)> serving = {};
};

/// All tables, in the order in which they are shown. Throws Error for broken files.
std::vector<PublishedTable> published_tables(const Catalog& catalog);

/// The tables meant by names of tables, names of groups and "all"; each once, in the order above.
/// No name means all. Throws Error with the nearest name.
std::vector<const PublishedTable*> select_tables(std::span<const PublishedTable> tables,
                                                 std::span<const std::string> names);

struct ReproductionSummary {
  std::string table;
  TableKind kind = TableKind::Exact;
  std::size_t cells = 0;
  std::size_t exact = 0;        ///< cells that must agree with the print
  std::size_t exact_agree = 0;  ///< those that do
  std::size_t corrected = 0;    ///< cells that agree with an erratum in the place of the print
  std::size_t errata = 0;       ///< cells with an erratum, the measured ones too
  std::size_t fitted = 0;       ///< measured cells that a factor was fitted to
  double mape = 0;   ///< measured cells but the fitted ones: mean absolute relative error
  double worst = 0;  ///< the same cells: largest absolute relative error

  /// Measured cells that check something.
  std::size_t measured() const { return cells - exact - corrected - fitted; }
};
ReproductionSummary summarize(const PublishedTable& table, std::span<const ReproducedRow> rows);

/// A table with what was computed of it.
struct ReproducedTable {
  const PublishedTable* table;
  std::vector<ReproducedRow> rows;
  ReproductionSummary summary = {};
};
ReproducedTable reproduced(const PublishedTable& table, const Catalog& catalog,
                           const std::string& engine = {});

/// What of a file of `data/published/` is compared nowhere, and why: a row of left_out.csv.
struct PublishedGap {
  std::string file;
  std::string claim;  ///< `claim_id` of a row; empty: columns or rows that `reason` names
  std::string reason;
  bool elsewhere = false;  ///< compared all the same, from another file
};

/// A paper's tables together.
struct PaperSummary {
  std::string group;
  std::string title;  ///< "KV Prediction"
  std::size_t tables = 0;
  ReproductionSummary sums;  ///< over all its cells; `table` is empty
  std::size_t gaps = 0;      ///< what is compared nowhere
};
/// In the order of the tables' first appearance.
std::vector<PaperSummary> summarize_papers(std::span<const ReproducedTable> tables,
                                           std::span<const PublishedGap> gaps);

/// TTFT over prompt length, ours as a line and the published values as marks. Throws Error when no
/// row has a prompt length.
Plot reproduced_ttft_plot(const PublishedTable& table, std::span<const ReproducedRow> rows);

// ---- For the tables themselves.

struct Erratum {
  std::string id;
  std::string corrected;  ///< empty: nobody knows what the cell should say
  std::string reason;
};

/// The folder `data/published/`.
class Published {
 public:
  /// Throws Error when errata.csv or left_out.csv cannot be read.
  explicit Published(const Catalog& catalog);

  CsvTable read(std::string_view file) const { return CsvTable::read(folder_ / file); }
  /// The value of a row of a "..._prose.csv" by its `claim_id`. Throws Error when it is not there.
  double claim(std::string_view file, std::string_view claim_id) const;
  /// In order of files. Claims of the kind "setting" are inputs of the papers' experiments and of
  /// our tables, and are not listed.
  const std::vector<PublishedGap>& gaps() const { return gaps_; }
  /// Why no table compares a claim; empty if one does or nothing is known.
  std::string_view left_out(std::string_view claim) const;
  /// What is known of the number that stands in a cell; of another number nothing is known.
  std::optional<Erratum> erratum(const CsvRow& row, std::string_view column) const;
  /// Holds `ours` against the number printed in `column` ("3.60", "134M", "4.3B"), its erratum
  /// considered. Throws Error when no number stands there, or one that is wrong and for which the
  /// erratum has no other: a table leaves such cells out.
  ReproducedRow compare(const CsvRow& row, std::string_view column, std::string cell, double ours,
                        TableKind kind = TableKind::Exact) const;

 private:
  std::filesystem::path folder_;
  CsvTable errata_;
  std::vector<PublishedGap> gaps_;
};

/// Names the row's file, source and claim in a result.
void set_origin(const CsvRow& row, ReproducedRow& result);

/// True if `ours`, rounded half up, prints as `printed`: digits, perhaps a decimal point, perhaps
/// one of the suffixes K, M, B (thousand, million, billion). Throws Error starting with `place`.
bool rounds_to(double ours, std::string_view printed, std::string_view place);

/// How the papers' model names become catalog names: "Llama 7B" -> "llama-7b".
std::string catalog_spelling(std::string_view printed);

}  // namespace kvcast::reports
