#include "roofline/hardware_writer.h"

#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "roofline/hardware_fields.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::roofline {

TEST_CASE("hardware: every file of the catalog, written again, reads back as it was") {
  const std::filesystem::path data = std::filesystem::path(KVCAST_SOURCE_DIR) / "data/hardware";
  const TestFolder folder;
  std::size_t files = 0;
  const auto same = [](const Sourced& a, const Sourced& b) {
    CHECK(a.value == near(b.value).epsilon(1e-4));
    CHECK(a.source == b.source);
    CHECK(a.reference == b.reference);
    CHECK(a.note == b.note);
    CHECK(a.by_length == b.by_length);
  };
  for (const auto& entry : std::filesystem::directory_iterator(data)) {
    if (entry.path().extension() != ".json") continue;
    ++files;
    CAPTURE(entry.path());
    const Hardware a = read_hardware(entry.path());
    const std::filesystem::path copy = folder / "copy.json";
    std::ofstream(copy) << hardware_entries(a).dump();
    const Hardware b = read_hardware(copy);
    CHECK(a.name == b.name);
    CHECK(a.kind == b.kind);
    for (const Field& field : hardware_fields()) {
      CAPTURE(field.path());
      std::size_t numbers = 0;
      for_each_number(field, a, [&](const std::string&, DType dtype, const Sourced& number) {
        ++numbers;
        REQUIRE(field.find(b, dtype) != nullptr);
        same(number, *field.find(b, dtype));
      });
      for_each_number(field, b, [&](auto&&...) { --numbers; });
      CHECK(numbers == 0);
    }
    REQUIRE(a.links.size() == b.links.size());
    for (const auto& [key, link] : a.links) {
      same(link.bandwidth, b.links.at(key).bandwidth);
      same(link.latency, b.links.at(key).latency);
    }
  }
  CHECK(files >= 20);
}

}  // namespace kvcast::roofline
