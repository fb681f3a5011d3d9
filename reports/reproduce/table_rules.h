/// A published table's rules: which cells its CSV files have, and what each is compared with.
/// data/published/README.md describes the form of the JSON files.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/io/weights/catalog.h"
#include "reports/reproduce/reproduce.h"

namespace kvcast::reports {

using Words = std::map<std::string, std::string>;

/// A rule of a file, with what the rules around it say. Without rules of its own it is a cell.
struct Rule {
  // Which rows, of its own.
  std::string file;    ///< each row of it; empty: the row around
  std::string where;   ///< the conditions of a row, see `holds`
  std::string one_of;  ///< column of rows that must meet the conditions of one of `rules`
  std::map<std::string, std::vector<std::string>> each;  ///< a name's values, one after another
  Words words;                                           ///< what other names stand for
  std::vector<std::shared_ptr<const Rule>> rules;

  // How a cell is compared, inherited.
  Words cell;
  Words with;  ///< what the names in the printed formula stand for
  std::vector<std::string> at;
};

/// What all tables of a file share.
struct Paper {
  std::string file;
  Words words;
  Words catalog_names;  ///< by how the paper spells them, where catalog_spelling() does not
};

/// One computation of a table (table_evaluation.cpp). Throws Error, with file and row, for names,
/// files and columns that are not there.
std::vector<ReproducedRow> evaluate_table(const Rule& table, const Paper& paper,
                                          const Catalog& catalog, const std::string& engine);

}  // namespace kvcast::reports
