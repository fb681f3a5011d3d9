/// What tests of reproduced tables share.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "reports/reproduce/reproduce.h"
#include "tests/model/message_of.h"
#include "tests/source_catalog.h"
#include "tests/test_folder.h"

namespace kvcast::reports {

inline const std::filesystem::path data_folder = std::filesystem::path(KVCAST_SOURCE_DIR) / "data";

inline const std::vector<PublishedTable>& all_published() {
  static const std::vector<PublishedTable> all = published_tables(catalog());
  return all;
}

inline const PublishedTable& table(const std::string& name) {
  const std::vector<std::string> names{name};
  const auto selected = select_tables(all_published(), names);
  REQUIRE(selected.size() == 1);
  return *selected.front();
}

inline std::vector<ReproducedRow> rows_of(const std::string& name) {
  return table(name).rows(catalog(), "");
}

/// The row whose cell begins with `cell`.
inline ReproducedRow find(const std::vector<ReproducedRow>& rows, const std::string& cell) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const ReproducedRow& row) {
    return row.cell.starts_with(cell);
  });
  CAPTURE(cell);
  REQUIRE(found != rows.end());
  return *found;
}

/// A data folder with our models and hardware, and published tables that a test may change.
class ChangedData {
 public:
  ChangedData() {
    for (const char* folder : {"models", "hardware"}) {
      std::filesystem::create_directory_symlink(data_folder / folder, root_.path() / folder);
    }
    std::filesystem::copy(data_folder / "published", root_.path() / "published");
  }

  void replace(const std::string& file, const std::string& from, const std::string& to) {
    const std::filesystem::path path = root_.path() / "published" / file;
    std::ifstream in(path);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    std::ofstream(path) << text;
  }
  Catalog open() const { return Catalog(root_.path()); }

 private:
  TestFolder root_;
};

/// What a table says of published data in which one text was replaced.
inline std::string refusal(const std::string& name, const std::string& file,
                           const std::string& from, const std::string& to) {
  ChangedData data;
  data.replace(file, from, to);
  const Catalog changed = data.open();
  return message_of([&] { table(name).rows(changed, ""); });
}

}  // namespace kvcast::reports
