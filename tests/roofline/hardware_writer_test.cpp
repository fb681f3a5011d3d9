#include "roofline/hardware_writer.h"

#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

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
  const auto same_maps = [&](const auto& a, const auto& b) {
    REQUIRE(a.size() == b.size());
    for (const auto& [key, value] : a) same(value, b.at(key));
  };
  const auto same_optional = [&](const auto& a, const auto& b) {
    REQUIRE(a.has_value() == b.has_value());
    if (a) same(*a, *b);
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
    same_maps(a.peak_flops_per_second, b.peak_flops_per_second);
    same(a.vector_flops_per_second, b.vector_flops_per_second);
    same(a.memory_bandwidth, b.memory_bandwidth);
    same(a.memory_capacity, b.memory_capacity);
    same(a.on_chip_memory_capacity, b.on_chip_memory_capacity);
    same_optional(a.on_chip_memory_bandwidth, b.on_chip_memory_bandwidth);
    REQUIRE(a.links.size() == b.links.size());
    for (const auto& [key, link] : a.links) {
      same(link.bandwidth, b.links.at(key).bandwidth);
      same(link.latency, b.links.at(key).latency);
    }
    same(a.operator_latency, b.operator_latency);
    same(a.host_operator_latency, b.host_operator_latency);
    same_optional(a.elementwise_latency, b.elementwise_latency);
    same_optional(a.product_latency, b.product_latency);
    same_optional(a.host_message_latency, b.host_message_latency);
    same_optional(a.host_exchange_latency, b.host_exchange_latency);
    same_maps(a.matrix_rate, b.matrix_rate);
    same_maps(a.batched_matrix_rate, b.batched_matrix_rate);
    same_maps(a.tiled_attention_rate, b.tiled_attention_rate);
    same_maps(a.decode_attention_rate, b.decode_attention_rate);
    same_optional(a.memory_bandwidth_factor, b.memory_bandwidth_factor);
    same_optional(a.product_bandwidth, b.product_bandwidth);
    same_optional(a.elementwise_bandwidth, b.elementwise_bandwidth);
    same_optional(a.softmax_bandwidth, b.softmax_bandwidth);
    same_optional(a.decode_attention_bandwidth, b.decode_attention_bandwidth);
    same_optional(a.tiled_attention_bandwidth, b.tiled_attention_bandwidth);
    same_optional(a.overlap, b.overlap);
    same_optional(a.link_rate, b.link_rate);
    same_optional(a.lockstep, b.lockstep);
  }
  CHECK(files >= 20);
}

}  // namespace kvcast::roofline
