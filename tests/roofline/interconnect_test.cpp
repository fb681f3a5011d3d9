#include "roofline/interconnect.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/io/files/csv_table.h"
#include "tests/model/message_of.h"
#include "tests/source_catalog.h"

#define CHECK_NEAR(a, b, tolerance) CHECK(std::abs((a) - (b)) <= (tolerance))

namespace kvcast::roofline {
namespace {

constexpr std::array all_kinds{CollectiveKind::AllReduce, CollectiveKind::ReduceScatter,
                               CollectiveKind::AllGather, CollectiveKind::AllToAll};
constexpr double gib = 1024.0 * 1024 * 1024;

/// 1 GB/s and 1 us a link, so 2 us a step.
InterconnectData plain(std::uint64_t devices) {
  InterconnectData data;
  data.name = "plain";
  data.devices_per_node = devices;
  data.link_bytes_per_s = 1e9;
  data.link_latency_s = 1e-6;
  return data;
}

double at(const Interconnect& interconnect, CollectiveKind kind, std::uint64_t devices,
          double bytes, const std::string& library = "") {
  return interconnect.curve(kind, {devices}, library, Mode::Calibrated).at(bytes);
}

TEST_CASE("interconnect: a ring of 4 takes its steps and its bytes") {
  const Interconnect ring(plain(4));
  // 2·3 steps of 2 us, and 2·3/4 of 1 MiB at 1 GB/s.
  CHECK_NEAR(at(ring, CollectiveKind::AllReduce, 4, 1 << 20), 6 * 2e-6 + 1.5 * 1048576e-9, 1e-9);
  CHECK_NEAR(at(ring, CollectiveKind::AllGather, 4, 1 << 20), 3 * 2e-6 + 0.75 * 1048576e-9, 1e-9);
  CHECK_NEAR(at(ring, CollectiveKind::ReduceScatter, 4, 1 << 20), 3 * 2e-6 + 0.75 * 1048576e-9,
             1e-9);
  CHECK_NEAR(at(ring, CollectiveKind::AllToAll, 4, 1 << 20), 2e-6 + 0.75 * 1048576e-9, 1e-9);
  // All of it at twice the size and at a size between the points of the curve.
  CHECK_NEAR(at(ring, CollectiveKind::AllReduce, 4, 1234567), 12e-6 + 1.5 * 1234567e-9, 1e-9);
  CHECK_NEAR(at(ring, CollectiveKind::AllReduce, 4, 0x1p43), 12e-6 + 1.5 * 0x1p43 * 1e-9, 1e-6);
}

TEST_CASE("interconnect: what no measured algorithm takes follows the links") {
  InterconnectData data = plain(4);
  AlgorithmCost small{CollectiveAlgorithm::Ring, 0, {{1e-9, 1e12}}};
  small.limits = {{4, 1024}};
  AlgorithmCost whole{CollectiveAlgorithm::Direct, 0, {{1e-9, 1e12}}};
  whole.whole_node = true;
  data.libraries["nccl"] = {small, whole};
  const Interconnect measured(data);
  const Interconnect links(plain(4));
  CHECK(at(measured, CollectiveKind::AllReduce, 4, 1 << 20) ==
        at(links, CollectiveKind::AllReduce, 4, 1 << 20));
  CHECK(at(measured, CollectiveKind::AllToAll, 2, 1 << 20) ==
        at(links, CollectiveKind::AllToAll, 2, 1 << 20));
  CHECK(at(measured, CollectiveKind::AllToAll, 4, 1 << 20) <
        at(links, CollectiveKind::AllToAll, 4, 1 << 20));
}

TEST_CASE("interconnect: two nodes of two overlap their stages") {
  InterconnectData data = plain(2);
  data.nodes = 2;
  data.network_bytes_per_s = data.network_payload_bytes_per_s = 0.5e9;
  data.network_latency_s = 5e-6;
  const Interconnect two(data);
  // Small: reduce-scatter 2 us, two steps of 10 us between nodes, all-gather 2 us.
  CHECK_NEAR(at(two, CollectiveKind::AllReduce, 4, 1), 24e-6, 1e-8);
  // 1 GiB in 16 parts of b = 64 MiB: inside b/2 at 1 GB/s; between 2·1/2·b/2 at 0.5 GB/s = b, as
  // long as both inner stages. 1 slot of b/2, 16 of b, 1 of b/2; the latency is 0.03 %.
  const double part = gib / 16 * 1e-9;
  CHECK_NEAR(at(two, CollectiveKind::AllReduce, 4, gib), 17 * part, 17 * part * 1e-3);
  const CollectivePlan plan = two.plan(CollectiveKind::AllReduce, {4}, "", gib);
  CHECK(plan.members == 2);
  CHECK(plan.nodes == 2);
  CHECK(plan.chunks == 16);
  // All-to-all: half of the buffer crosses at 0.5 GB/s; a quarter stays inside.
  CHECK_NEAR(at(two, CollectiveKind::AllToAll, 4, gib), gib * 1e-9 + 12e-6, 2e-5);
  // One rank of each node: all of it crosses.
  const RankGroup across{2, 2};
  CHECK_NEAR(two.curve(CollectiveKind::AllReduce, across, "", Mode::Calibrated).at(gib),
             2 * gib * 1e-9, 1e-4);
  CHECK_NEAR(two.point_to_point(0, 3, Mode::Calibrated).at(gib), 2 * gib * 1e-9, 1e-4);
  CHECK_NEAR(two.point_to_point(0, 1, Mode::Calibrated).at(gib), gib * 1e-9, 1e-4);
}

TEST_CASE("interconnect: one rank takes nothing, and speed of light has no latency") {
  const Interconnect hgx = load_interconnect(catalog(), "hgx-h100");
  for (const CollectiveKind kind : all_kinds) {
    for (const Mode mode : {Mode::Calibrated, Mode::SpeedOfLight}) {
      CHECK(hgx.curve(kind, {1, 1, 3}, "", mode).at(1e9) == 0);
      const double eight = hgx.curve(kind, {8}, "", mode).at(1e6);
      CHECK(eight > 0);
      CHECK(eight >= hgx.curve(kind, {8}, "", Mode::SpeedOfLight).at(1e6));
    }
  }
  // 7/8 of the buffer at 450 GB/s; in-switch sums: 9/8 of it.
  CHECK_NEAR(hgx.curve(CollectiveKind::AllGather, {8}, "", Mode::SpeedOfLight).at(450e9), 7.0 / 8,
             1e-9);
  CHECK_NEAR(hgx.curve(CollectiveKind::AllReduce, {8}, "", Mode::SpeedOfLight).at(450e9), 9.0 / 8,
             1e-9);
  InterconnectData fast = plain(8);
  fast.link_bytes_per_s = std::numeric_limits<double>::infinity();
  const Interconnect infinite(fast);
  for (const CollectiveKind kind : all_kinds) {
    CHECK(infinite.curve(kind, {8}, "", Mode::SpeedOfLight).at(1e12) == 0);
  }
}

std::vector<CsvRow> measured(const CsvTable& csv, const std::string& hardware) {
  std::vector<CsvRow> rows;
  for (const CsvRow& row : csv.rows()) {
    if (row.text("hardware") == hardware) rows.push_back(row);
  }
  return rows;
}

const CsvTable& table() {
  static const CsvTable csv = CsvTable::read(catalog().root() / "platforms" / "collectives.csv");
  return csv;
}

CollectiveKind kind_of(const CsvRow& row) {
  for (const CollectiveKind kind : all_kinds) {
    if (name(kind) == row.text("operation")) return kind;
  }
  FAIL("unknown operation");
  return CollectiveKind::AllReduce;
}

std::string library_of(const CsvRow& row) {
  const std::string& text = row.text("library");
  return text.substr(0, text.find(' '));
}

TEST_CASE("interconnect: measured times come back, but for what noise added") {
  for (const auto& [platform, hardware] : {std::pair{std::string("hgx-h100"), "h100-sxm"},
                                           {"hgx-h200", "h100-sxm"},
                                           {"dgx-a100", "a100-80gb"},
                                           {"hgx-b200", "b200"},
                                           {"hgx-b300", "b300"},
                                           {"gb200-nvl72", "gb200"},
                                           {"rtx-pro-6000-8", "rtx-pro-6000"},
                                           {"l40s-8", "l40s"}}) {
    const Interconnect interconnect = load_interconnect(catalog(), platform);
    const std::vector<CsvRow> rows = measured(table(), hardware);
    REQUIRE(rows.size() > 100);
    std::size_t same = 0;
    for (const CsvRow& row : rows) {
      const double seconds = at(interconnect, kind_of(row), row.whole("num_gpus"),
                                row.number("message_bytes"), library_of(row));
      const double us = row.number("latency_us");
      CHECK(seconds <= us * 1e-6 * (1 + 1e-12));
      if (seconds >= us * 1e-6 * (1 - 1e-12)) ++same;
    }
    MESSAGE(platform << ": " << same << " of " << rows.size());
    CHECK(same >= rows.size() * 85 / 100);
  }
}

TEST_CASE("interconnect: more bytes never take less time") {
  for (const char* platform :
       {"hgx-h100", "dgx-a100", "hgx-b200", "l40s-8", "a100-pcie-8", "rtx-4090-8", "rtx-pro-6000-8",
        "hgx-h800", "gb200-nvl72", "hgx-h100-2", "dgx-a100-8", "a100-roce-2", "hgx-h100-128"}) {
    const Interconnect interconnect = load_interconnect(catalog(), platform);
    for (const CollectiveKind kind : all_kinds) {
      for (const std::uint64_t devices : {2U, 3U, 4U, 7U, 8U, 16U, 24U, 256U, 1024U}) {
        if (devices > interconnect.devices()) continue;
        for (const char* library : {"", "vllm", "trtllm"}) {
          const CollectiveCurve curve =
              interconnect.curve(kind, {devices}, library, Mode::Calibrated);
          const CollectiveCurve floor =
              interconnect.curve(kind, {devices}, library, Mode::SpeedOfLight);
          double before = 0;
          bool rises = true;
          bool above_floor = true;
          for (double bytes = 1; bytes < 0x1p44; bytes *= 1.37) {
            rises &= curve.at(bytes) >= before && curve.at(bytes) > 0;
            above_floor &= curve.at(bytes) >= floor.at(bytes);
            before = curve.at(bytes);
          }
          INFO(platform << " " << name(kind) << " " << devices << " " << library);
          CHECK(rises);
          CHECK(above_floor);
        }
      }
    }
  }
}

TEST_CASE("interconnect: nodes reach what is printed of them") {
  // NVIDIA/nccl issue 812: 192 GB/s bus bandwidth over many DGX A100; issue 290: 46-48 GB/s for
  // each of 8 adapters, of which rings of several H100 nodes reach 8 times as much.
  const auto bus = [](const char* platform, std::uint64_t devices) {
    const double p = static_cast<double>(devices);
    return 2 * (p - 1) / p * 8 * gib /
           at(load_interconnect(catalog(), platform), CollectiveKind::AllReduce, devices, 8 * gib);
  };
  CHECK(bus("dgx-a100-8", 64) > 192e9 * 0.8);
  CHECK(bus("dgx-a100-8", 64) < 192e9 * 1.1);
  CHECK(bus("hgx-h100-8", 64) > 8 * 46e9 * 0.8);
  CHECK(bus("hgx-h100-8", 64) < 8 * 48e9 * 1.1);
  // All-to-all over N nodes: N/(N - 1) times an adapter's rate (NVIDIA/nccl-tests issue 130).
  const double s =
      at(load_interconnect(catalog(), "hgx-h100-8"), CollectiveKind::AllToAll, 64, gib);
  CHECK_NEAR(gib / s * 63 / 64, 47e9 * 8 / 7 * 63 / 64, 1e9);
}

// The fits of the platform files, made again with rows left out.

struct Row {
  CollectiveKind kind;
  std::uint64_t ranks;
  double bytes;
  double seconds;
};
using Keep = std::function<bool(const Row&)>;

std::vector<Row> rows_of(const std::string& hardware, const std::string& library,
                         const Keep& keep) {
  std::vector<Row> rows;
  for (const CsvRow& row : measured(table(), hardware)) {
    const Row r{kind_of(row), row.whole("num_gpus"), row.number("message_bytes"),
                row.number("latency_us") * 1e-6};
    if (library_of(row) == library && keep(r)) rows.push_back(r);
  }
  return rows;
}

bool in_ring(const Row& r) { return r.kind != CollectiveKind::AllToAll; }

/// Halving steps along each axis, from the numbers given: the least mean error of the logarithm.
AlgorithmCost fitted(AlgorithmCost cost, const std::vector<Row>& rows) {
  std::vector<double*> numbers{&cost.start_s};
  for (AlgorithmCost::Protocol& p : cost.protocols) {
    numbers.push_back(&p.step_s);
    numbers.push_back(&p.bytes_per_s);
  }
  const auto error = [&] {
    double sum = 0;
    for (const Row& r : rows) {
      sum += std::abs(std::log(cost.seconds(r.kind, r.ranks, r.bytes) / r.seconds));
    }
    return sum;
  };
  double best = error();
  for (double step = 0.5; step > 0.002;) {
    bool better = false;
    for (double* number : numbers) {
      for (const double factor : {1 + step, 1 / (1 + step)}) {
        const double before = *number;
        *number = before * factor;
        const double now = error();
        if (now < best) {
          best = now;
          better = true;
        } else {
          *number = before;
        }
      }
    }
    if (!better) step /= 2;
  }
  return cost;
}

AlgorithmCost first_guess(CollectiveAlgorithm algorithm, double bytes_per_s) {
  AlgorithmCost cost{algorithm, 5e-6, {}};
  if (algorithm == CollectiveAlgorithm::Ring || algorithm == CollectiveAlgorithm::Direct) {
    cost.protocols = {
        {1e-6, 0.1 * bytes_per_s}, {2e-6, 0.4 * bytes_per_s}, {6e-6, 0.7 * bytes_per_s}};
  } else {
    cost.protocols = {{1e-6, 0.7 * bytes_per_s}};
  }
  return cost;
}

double mean_error(const Interconnect& interconnect, const std::string& library,
                  const std::vector<Row>& rows) {
  double sum = 0;
  for (const Row& r : rows) {
    sum += std::abs(at(interconnect, r.kind, r.ranks, r.bytes, library) / r.seconds - 1);
  }
  return sum / static_cast<double>(rows.size());
}

/// The platform's numbers and limits, with NCCL's ring and all-to-all fitted to what is kept, and
/// tables of nothing else.
InterconnectData refitted(const std::string& platform, const std::string& hardware,
                          const Keep& keep) {
  InterconnectData data = load_interconnect(catalog(), platform).data();
  data.tables.clear();
  for (const CsvRow& row : measured(table(), hardware)) {
    const Row r{kind_of(row), row.whole("num_gpus"), row.number("message_bytes"),
                row.number("latency_us") * 1e-6};
    if (keep(r)) data.tables[{library_of(row), r.kind, r.ranks}].emplace_back(r.bytes, r.seconds);
  }
  for (AlgorithmCost& cost : data.libraries.at("nccl")) {
    const bool ring = cost.algorithm == CollectiveAlgorithm::Ring;
    if (!ring && cost.algorithm != CollectiveAlgorithm::Direct) continue;
    cost = fitted(
        first_guess(cost.algorithm, data.link_bytes_per_s),
        rows_of(hardware, "nccl", [&](const Row& r) { return keep(r) && in_ring(r) == ring; }));
  }
  return data;
}

struct Node {
  std::string platform, hardware;
};
const std::vector<Node> measured_nodes{
    {"hgx-h100", "h100-sxm"}, {"dgx-a100", "a100-80gb"}, {"hgx-b200", "b200"}};

TEST_CASE("interconnect: four devices from the tables of two and of eight") {
  for (const Node& node : measured_nodes) {
    const auto left_out = [](const Row& r) { return r.ranks == 4; };
    const Interconnect blind(
        refitted(node.platform, node.hardware, [&](const Row& r) { return !left_out(r); }));
    for (const auto& [library, bound] :
         {std::pair{std::string("nccl"), 0.09}, {"vllm", 0.12}, {"trtllm", 0.22}}) {
      const double error = mean_error(blind, library, rows_of(node.hardware, library, left_out));
      MESSAGE(node.platform << " " << library << ", 4 of 2 and 8: " << error);
      CHECK(error < bound);
    }
  }
}

TEST_CASE("interconnect: 16 KiB and 1 MiB from the other sizes") {
  for (const Node& node : measured_nodes) {
    const auto left_out = [](const Row& r) { return r.bytes == 16384 || r.bytes == 1048576; };
    const Interconnect blind(
        refitted(node.platform, node.hardware, [&](const Row& r) { return !left_out(r); }));
    const double error = mean_error(blind, "nccl", rows_of(node.hardware, "nccl", left_out));
    MESSAGE(node.platform << " nccl, 16 KiB and 1 MiB: " << error);
    CHECK(error < 0.10);
  }
}

TEST_CASE("interconnect: one node from another one's fit, without a table of its own") {
  const auto all = [](const Row&) { return true; };
  const InterconnectData a100 = load_interconnect(catalog(), "dgx-a100").data();
  InterconnectData h100 = load_interconnect(catalog(), "hgx-h100").data();
  h100.tables.clear();
  const double wider = h100.link_bytes_per_s / a100.link_bytes_per_s;
  for (auto& [library, costs] : h100.libraries) {
    std::vector<AlgorithmCost> scaled = a100.libraries.at(library);
    for (AlgorithmCost& cost : scaled) {
      for (AlgorithmCost::Protocol& p : cost.protocols) p.bytes_per_s *= wider;
    }
    costs = scaled;
  }
  const Interconnect blind(h100);
  for (const auto& [library, bound] : {std::pair{std::string("nccl"), 0.42}, {"vllm", 0.27}}) {
    const std::vector<Row> rows = rows_of("h100-sxm", library, all);
    const double error = mean_error(blind, library, rows);
    const double large =
        mean_error(blind, library,
                   rows_of("h100-sxm", library, [](const Row& r) { return r.bytes >= 16 << 20; }));
    MESSAGE("H100 " << library << " of A100's starts and steps: " << error << ", from 16 MiB "
                    << large);
    CHECK(error < bound);
  }
}

TEST_CASE("interconnect: B300 and GB200 from the forms that are fitted to B200") {
  InterconnectData data = load_interconnect(catalog(), "hgx-b200").data();
  data.tables.clear();
  const Interconnect blind(data);
  for (const auto& [hardware, library, bound] :
       {std::tuple{std::string("b300"), std::string("nccl"), 0.10},
        {"b300", "vllm", 0.12},
        {"b300", "trtllm", 0.16},
        {"gb200", "nccl", 0.10},
        {"gb200", "vllm", 0.30},
        {"gb200", "trtllm", 0.20}}) {
    const double error =
        mean_error(blind, library, rows_of(hardware, library, [](const Row&) { return true; }));
    MESSAGE(hardware << " " << library << " of B200's forms: " << error);
    CHECK(error < bound);
  }
}

TEST_CASE("interconnect: nodes with fewer links are slower, and NCCL on H800 is as measured") {
  // 215 GB/s of bus bandwidth: NVIDIA/nccl issue 1374.
  const Interconnect h800 = load_interconnect(catalog(), "hgx-h800");
  const double bus = 14.0 / 8 * gib / at(h800, CollectiveKind::AllReduce, 8, gib, "");
  MESSAGE("8 H800: bus bandwidth " << bus / 1e9 << " GB/s, measured 215");
  CHECK(std::abs(bus / 215e9 - 1) < 0.1);
  for (const auto& [slower, faster] :
       {std::pair{"hgx-h800", "hgx-h100"}, {"hgx-a800", "dgx-a100"}}) {
    const Interconnect few = load_interconnect(catalog(), slower);
    InterconnectData all = load_interconnect(catalog(), faster).data();
    all.tables.clear();
    const Interconnect many(all);
    for (const CollectiveKind kind : all_kinds) {
      for (const std::uint64_t devices : {2U, 4U, 8U}) {
        for (const char* library : {"", "vllm", "trtllm"}) {
          for (double bytes = 64; bytes < 0x1p34; bytes *= 4) {
            CHECK(at(few, kind, devices, bytes, library) >=
                  at(many, kind, devices, bytes, library));
          }
        }
      }
    }
  }
}

TEST_CASE("interconnect: a whole rack is not faster than all but one") {
  const Interconnect rack = load_interconnect(catalog(), "gb200-nvl72");
  for (double bytes = 64; bytes < 0x1p34; bytes *= 4) {
    CHECK(at(rack, CollectiveKind::AllReduce, 72, bytes, "") >=
          at(rack, CollectiveKind::AllReduce, 71, bytes, ""));
  }
}

TEST_CASE("interconnect: without peer-to-peer copies all devices share the host's memory") {
  // All eight together send 8 · 14/8 of the buffer through the host, two of them 2 of it.
  const Interconnect host = load_interconnect(catalog(), "rtx-4090-8");
  CHECK_NEAR(at(host, CollectiveKind::AllReduce, 8, gib, ""), 14 * gib / 38e9, 1e-12);
  CHECK_NEAR(at(host, CollectiveKind::AllToAll, 8, gib, ""), 7 * gib / 38e9, 1e-12);
  CHECK(at(host, CollectiveKind::AllReduce, 2, gib, "") >= 2 * gib / 38e9);
  CHECK(at(host, CollectiveKind::AllReduce, 8, 4096, "") ==
        at(load_interconnect(catalog(), "a100-pcie-8"), CollectiveKind::AllReduce, 8, 4096, ""));
  // The links alone bound what is possible.
  CHECK_NEAR(host.curve(CollectiveKind::AllReduce, {8}, "", Mode::SpeedOfLight).at(gib),
             14.0 / 8 * gib / 32e9, 1e-12);
}

TEST_CASE("interconnect: a device has one node at most, and each node's devices are known") {
  std::map<std::string, std::string> node_of;
  for (const std::string& name : catalog().names("platforms")) {
    const nlohmann::json document =
        platform_document(catalog().find("platforms", "platform", name));
    if (!document.contains("hardware") || document.contains("nodes")) continue;
    const nlohmann::json& of = document["hardware"];
    for (const nlohmann::json& device : of.is_array() ? of : nlohmann::json::array({of})) {
      CAPTURE(name);
      CAPTURE(device);
      CHECK(node_of.emplace(device, name).second);
      const Hardware hardware = load_hardware(catalog(), device);
      CHECK(find_interconnect(catalog(), "", hardware, 2)->name() == name);
    }
  }
  CHECK(node_of.size() > 20);
}

TEST_CASE("interconnect: the forms alone, and the errors that platform files name") {
  for (const Node& node : measured_nodes) {
    InterconnectData data = load_interconnect(catalog(), node.platform).data();
    data.tables.clear();
    const Interconnect forms(data);
    for (const std::string library : {"nccl", "vllm", "trtllm"}) {
      const double error = mean_error(
          forms, library, rows_of(node.hardware, library, [](const Row&) { return true; }));
      MESSAGE(node.platform << " " << library << ", forms alone: " << error);
      CHECK(error < 0.14);
    }
  }
}

TEST_CASE("interconnect: wrong files and groups are refused in one line") {
  const nlohmann::json right = {{"name", "mine"},
                                {"topology", "switch"},
                                {"devices", 8},
                                {"bandwidth", "300 GB/s"},
                                {"latency", "1 us"},
                                {"nodes", 2},
                                {"network", {{"bandwidth", "25 GB/s"}, {"latency", "2 us"}}}};
  const auto refused = [&](const char* patch, const std::vector<std::string_view>& parts) {
    nlohmann::json document = right;
    document.merge_patch(nlohmann::json::parse(patch));
    check_line(message_of([&] { Interconnect(read_interconnect(document, "mine.json", {})); }),
               parts);
  };
  CHECK(Interconnect(read_interconnect(right, "mine.json", {})).devices() == 16);
  refused(R"({"topology": null})", {"mine.json: /topology: missing"});
  refused(R"({"topology": null, "links": []})", {"mine.json", "links one by one", "topology"});
  refused(R"({"topology": "ring"})", {"mine.json: /topology", "ring", "switch or pcie"});
  refused(R"({"network": null})", {"mine.json", "several nodes and no network"});
  refused(R"({"bandwidth": 300})", {"mine.json: /bandwidth", "300"});
  refused(R"({"bandwidth": {"value": "300 GB/s", "source": "guessed", "reference": "x"}})",
          {"/bandwidth", "source", "guessed", "datasheet, measured or fitted"});
  refused(R"({"network": {"payload": "30 GB/s"}})", {"/network", "payload", "at most"});
  refused(R"({"hardware": 4})", {"mine.json: /hardware", "4"});
  refused(R"({"hardware": ["a100-80gb", 4]})", {"mine.json: /hardware", "4"});
  refused(R"({"host_memory": "0 GB/s"})", {"mine", "host memory 0", "more than 0"});
  refused(R"({"nods": 2})", {"nods", "nodes"});
  refused(R"({"libraries": {"nccl": {"rings": {}}}})", {"/libraries/nccl", "rings", "ring"});
  refused(R"({"libraries": {"nccl": {"ring": {"start": "1 us", "steps": ["1 us"],
              "bandwidths": ["1 GB/s", "2 GB/s"], "source": "fitted", "reference": "x"}}}})",
          {"/libraries/nccl/ring", "bandwidths", "one for each step"});
  refused(R"({"libraries": {"nccl": {"ring": {"start": "1 us", "steps": ["1 us"],
              "bandwidths": ["1 GB/s"], "limits": {"two": "1 MiB"}, "source": "fitted",
              "reference": "x"}}}})",
          {"limits", "two", "number of devices"});
  const Interconnect hgx = load_interconnect(catalog(), "hgx-h100");
  check_line(message_of([&] {
               hgx.curve(CollectiveKind::AllReduce, {8, 1, 1}, "", Mode::Calibrated);
             }),
             {"hgx-h100", "rank 8", "8 devices"});
  check_line(
      message_of([&] { hgx.curve(CollectiveKind::AllReduce, {8}, "vlm", Mode::Calibrated); }),
      {"hgx-h100", "library 'vlm'", "vllm"});
  check_line(message_of([&] { load_interconnect(catalog(), "hgx-h1000"); }), {"hgx-h100"});
  check_line(message_of([&] { load_interconnect(catalog(), "ring-4"); }),
             {"ring-4.json", "links one by one"});
}

TEST_CASE("interconnect: a curve's value takes nanoseconds") {
  const CollectiveCurve curve = load_interconnect(catalog(), "hgx-h100")
                                    .curve(CollectiveKind::AllReduce, {8}, "", Mode::Calibrated);
  constexpr int values = 2'000'000;
  double sum = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < values; ++i) sum += curve.at(1000.0 + 97.0 * i);
  const double each =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / values;
  MESSAGE(each * 1e9 << " ns a value, sum " << sum);
  CHECK(each < 200e-9);  // ten times what it takes, for busy machines
}

}  // namespace
}  // namespace kvcast::roofline
