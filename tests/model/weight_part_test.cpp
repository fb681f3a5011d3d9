// A device's part of a weight, whatever form its file stores the weight in.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/io/weights/checkpoint.h"
#include "model/record/recording.h"
#include "tests/model/message_of.h"

namespace kvcast {
namespace {

std::map<std::string, TensorInfo> weights_in(const Checkpoint& checkpoint) {
  std::map<std::string, TensorInfo> weights;
  const Recording r = record(checkpoint.architecture(), {}, {});
  for (const Graph* graph : graphs_of(r)) {
    for (const TensorInfo& t : graph->tensors()) {
      if (t.storage == Storage::Weights && !t.producer) weights.emplace(t.name, t);
    }
  }
  return weights;
}

std::size_t elements(const TensorInfo& t) { return t.elements().constant(); }

/// All numbers, read a few rows at a time as a packed matrix does.
std::vector<double> numbers_of(const Checkpoint& checkpoint, const TensorInfo& t,
                               std::size_t together) {
  const WeightReader reader = checkpoint.reader(t);
  const std::size_t rows = t.shape[0].constant();
  const std::size_t row = elements(t) / rows;
  std::vector<double> numbers(rows * row);
  for (std::size_t first = 0; first < rows; first += together) {
    const std::size_t n = std::min(together, rows - first);
    reader.read_rows(first, std::span(numbers).subspan(first * row, n * row));
  }
  return numbers;
}

/// The part by its definition: row r of it is a row of a block of the whole.
std::vector<double> cut(const std::vector<double>& whole, const TensorInfo& t) {
  const WeightPart& p = *t.part;
  const std::size_t columns = t.shape.size() > 1 ? t.shape[1].constant() : 1;
  const std::size_t all_columns = t.shape.size() > 1 ? p.whole[1].constant() : 1;
  const std::size_t inner = elements(t) / t.shape[0].constant() / columns;
  const std::size_t rows = p.whole[0].constant();
  const std::size_t block = t.shape[0].constant() / p.blocks_here;
  std::vector<double> part;
  for (std::size_t b = 0; b < p.blocks_here; ++b) {
    for (std::size_t r = 0; r < block; ++r) {
      const std::size_t row = (p.first_block + b) * (rows / p.blocks) + p.first_row + r;
      for (std::size_t i = 0; i < columns * inner; ++i) {
        const std::size_t at = (row * all_columns + p.first_column) * inner + i;
        part.push_back(row < rows ? whole[at] : 0);
      }
    }
  }
  return part;
}

TEST_CASE("weight parts: rows, columns and blocks of every stored weight") {
  const auto folder = std::filesystem::path(KVCAST_SOURCE_DIR) / "tests" / "oracle";
  std::size_t parts = 0;
  const auto check_all = [&](const Checkpoint& checkpoint) {
    for (const auto& [name, info] : weights_in(checkpoint)) {
      CAPTURE(name);
      const std::vector<double> whole = numbers_of(checkpoint, info, 1000);
      const auto check = [&](TensorInfo part) {
        checkpoint.check(part);
        const std::vector<double> expected = cut(whole, part);
        for (const std::size_t together : {std::size_t{1}, std::size_t{3}, std::size_t{1000}}) {
          REQUIRE(numbers_of(checkpoint, part, together) == expected);
        }
        ++parts;
      };
      TensorInfo part = info;
      const std::uint64_t rows = info.shape[0].constant();
      // The second of two parts, which ends beyond an odd number of rows.
      part.shape[0] = (rows + 1) / 2;
      part.part = WeightPart{info.shape};
      part.part->first_row = (rows + 1) / 2;
      check(part);
      if (info.shape.size() > 1 && info.shape[1].constant() > 2) {
        part = info;
        const std::uint64_t first = info.shape[1].constant() / 3;
        part.shape[1] = info.shape[1] - first;
        part.part = WeightPart{info.shape};
        part.part->first_column = first;
        check(part);
      }
      for (const std::uint64_t blocks : std::vector<std::uint64_t>{3, 4, 7}) {
        if (rows % blocks != 0 || rows < 2 * blocks) continue;
        part = info;
        part.part = WeightPart{info.shape, blocks, 1, 2, 1};  // of two blocks all but a row
        part.shape[0] = 2 * (rows / blocks - 1);
        check(part);
      }
    }
  };
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!std::filesystem::exists(entry.path() / "expected.json")) continue;
    CAPTURE(entry.path().filename().string());
    const Checkpoint checkpoint(entry.path());
    check_all(checkpoint);
    if (entry.path().filename() == "llama_mha") check_all(Checkpoint(checkpoint.architecture(), 3));
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "gguf")) {
    if (entry.path().extension() != ".gguf") continue;
    CAPTURE(entry.path().filename().string());
    check_all(Checkpoint(entry.path()));
  }
  CHECK(parts > 5000);
}

TEST_CASE("weight parts: the whole tensor is what a file must hold") {
  const Checkpoint checkpoint(std::filesystem::path(KVCAST_SOURCE_DIR) / "tests" / "oracle" /
                              "llama_mha");
  TensorInfo gate = weights_in(checkpoint).at("layers.0.gate.weight");
  gate.part = WeightPart{{54, 24}};
  gate.shape[0] = 27;
  CHECK(message_of([&] { checkpoint.check(gate); }).find("shape [53, 24], expected [54, 24]") !=
        std::string::npos);
}

}  // namespace
}  // namespace kvcast
