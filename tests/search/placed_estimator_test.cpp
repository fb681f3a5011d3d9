#include "search/placed_estimator.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include "model/record/rank_recording.h"
#include "simulate/collectives.h"
#include "simulate/device_programs.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/roofline/test_models.h"
#include "tests/source_catalog.h"

namespace kvcast::search {
namespace {

using roofline::Bound;
using roofline::Configuration;
using roofline::DesignPoint;
using roofline::Estimate;

Configuration configuration(const std::string& methods, const std::string& model = "llama-7b",
                            Kernels kernels = Kernels::Fused) {
  return a100_configuration(model, methods, kernels);
}

Configuration on_platform(const std::string& methods, const std::string& platform,
                          const Parallelism& plan) {
  Configuration c = configuration(methods, "llama-3.1-8b");
  c.hardware = roofline::load_hardware(catalog(), "h100-sxm");
  c.parallelism = plan;
  c.interconnect = std::make_shared<const roofline::Interconnect>(
      roofline::load_interconnect(catalog(), platform));
  return c;
}

HardwareLink link_of(double bytes_per_s) {
  HardwareLink link;
  link.link = {bytes_per_s, 1e-5};
  return link;
}

TEST_CASE("placement: an estimate on one device is that of the other methods") {
  const DesignPoint p{3, 700, 9};
  const Estimate plain = PlacedEstimator(configuration("plain")).at(p);
  CHECK(plain.ttft_s == roofline::Estimator(configuration("plain")).at(p).ttft_s);
  for (const char* method : {"kvr:p=1", "tsp:p=1"}) {
    const PlacedEstimator estimator(configuration(method));
    CHECK(!estimator.is_placed());
    const Estimate e = estimator.at(p);
    CHECK(e.ttft_s == plain.ttft_s);
    CHECK(e.ttft_speedup == 1);
    CHECK(e.prefill_flops == plain.prefill_flops);
    CHECK(e.peak_memory_bytes == plain.peak_memory_bytes);
  }
}

TEST_CASE("placement: TSP goes at the pace of the hardware's lockstep, and says so") {
  const auto estimator = [](const char* method, roofline::Mode mode, bool has_lockstep) {
    Configuration c = configuration(method);
    c.mode = mode;
    if (has_lockstep) c.hardware.lockstep = {0.5, roofline::Source::Measured, "by hand", ""};
    return PlacedEstimator(c);
  };
  const DesignPoint p{1, 3000, 9};
  for (const char* method : {"tsp:p=3", "kvr:p=3"}) {
    const bool waits = method[0] == 't';
    for (const auto mode : {roofline::Mode::Calibrated, roofline::Mode::SpeedOfLight}) {
      const PlacedEstimator with = estimator(method, mode, true);
      const double even_s = estimator(method, mode, false).at(p).ttft_s;
      const bool counts = waits && mode == roofline::Mode::Calibrated;
      CAPTURE(method);
      CAPTURE(counts);
      const bool is_named =
          std::any_of(with.link().factors.begin(), with.link().factors.end(),
                      [](const roofline::UsedFactor& f) { return f.name == "lockstep"; });
      CHECK(is_named == counts);
      if (counts) {
        CHECK(with.at(p).ttft_s > 1.5 * even_s);  // all but messages and head twice
        CHECK(with.at(p).ttft_s < 2 * even_s);
      } else {
        CHECK(with.at(p).ttft_s == even_s);
      }
    }
  }
}

TEST_CASE("placement: an estimate's TTFT is that of the recursion, which it does not use") {
  for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
    for (const std::uint64_t batch : {1u, 3u}) {
      const Configuration c = configuration("plain", "llama-7b", kernels);
      const ChainLink link = link_of(20e9).link;
      const auto rates = roofline::make_rates(c.hardware, c.lowering, c.mode);
      const auto times =
          simulate::LayerTimes(c.architecture, {}, c.lowering, rates).for_batch(batch);
      const DesignPoint p{batch, 3000, 9};
      const double plain = roofline::Estimator(c).at(p).ttft_s;
      const auto check = [&](const char* method, double ttft_s) {
        CAPTURE(method);
        const PlacedEstimator placed(configuration(method, "llama-7b", kernels), link_of(20e9));
        const Estimate e = placed.at(p);
        CHECK(e.ttft_s == near(ttft_s).epsilon(1e-9));
        CHECK(e.ttft_speedup == near(plain / ttft_s).epsilon(1e-9));
      };
      const Runahead chain(times, link);
      check("kvr:p=4,partition=even", chain.ttft_s(Partition{750, 750, 750, 750}));
      check("kvr:p=3,partition=1300/900/800", chain.ttft_s(Partition{1300, 900, 800}));
      check("tsp:p=3", tsp_ttft_s(times, link, Partition{1000, 1000, 1000}));
    }
  }
}

TEST_CASE("placement: partition=search takes one that is faster than even parts, the default") {
  const DesignPoint p{1, 8192, 2};
  const PlacedEstimator searched(configuration("kvr:p=4,partition=search"));
  const PlacedPrefill found = searched.at(p).prefill.value();
  REQUIRE(found.found);
  const double even = PlacedEstimator(configuration("kvr:p=4,partition=even")).at(p).ttft_s;
  CHECK(searched.at(p).ttft_s < even);
  const PlacedPrefill by_default = PlacedEstimator(configuration("kvr:p=4")).at(p).prefill.value();
  CHECK_FALSE(by_default.found);
  CHECK(by_default.tokens == Partition{2048, 2048, 2048, 2048});
  CHECK(by_default.run.ttft_s == even);
  CHECK(searched.at(p).ttft_s >= *found.found->lower_bound_s);
  CHECK(found.run.ttft_s == near(found.found->ttft_s).epsilon(1e-9));
}

TEST_CASE("placement: FLOPs and bytes are those of the ranks' recordings") {
  const DesignPoint p{2, 23, 5};
  for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
    for (const char* model : {"pythia-160m", "mistral-7b"}) {
      for (const char* method : {"kvr:p=3,partition=11/8/4", "tsp:p=3", "kvr:p=2,partition=20/3",
                                 "random-prune:keep=1+kvr:p=3"}) {
        CAPTURE(method);
        CAPTURE(model);
        const Configuration c = configuration(method, model, kernels);
        const PlacedEstimator estimator(c);
        const Partition parts = estimator.at(p).prefill.value().tokens;
        std::uint64_t flops = 0;
        std::uint64_t bytes = 0;
        for (std::size_t rank = 0; rank < parts.size(); ++rank) {
          const RankShare share{parts, rank};
          const Recording r = record_rank(c.architecture, c.methods, c.lowering, share);
          const Work work = total_work(roofline::fold(r.prefill(), c.lowering));
          const SymbolValues values = r.symbols.resolve({p.batch, share.tokens(), share.end()});
          flops += work.flops.at(values);
          bytes += work.bytes().at(values);
        }
        const Estimate e = estimator.at(p);
        CHECK(e.prefill_flops == static_cast<double>(flops));
        CHECK(e.prefill_bytes == static_cast<double>(bytes));
      }
    }
  }
}

TEST_CASE("placement: ranks of several devices, played on their platform") {
  const DesignPoint p{1, 8192, 9};
  for (const auto& [method, engine] :
       {std::pair{"kvr:p=2", "ideal"},
        {"kvr:p=4,partition=3000/2200/1700/1292", "ideal"},
        {"tsp:p=2", "ideal"},
        {"specprefill:speculator=llama-3.2-1b,keep=0.5+kvr:p=2", "ideal"},
        {"kvr:p=2", "pytorch"},
        {"tsp:p=2", "pytorch"}}) {
    for (const std::uint64_t tp : {1u, 2u}) {
      CAPTURE(method);
      CAPTURE(engine);
      CAPTURE(tp);
      Configuration c = on_platform(method, "hgx-h100", {.tp = tp});
      c.engine = roofline::load_engine(catalog(), engine);
      roofline::apply(c.engine, true, true, c.lowering);
      c.find_model = [](const std::string& name) { return load_model(catalog(), name); };
      const auto played = [&](std::uint64_t output_len, const Partition& tokens) {
        const simulate::Simulation simulation(
            simulate::node_platform(c.interconnect->data()),
            simulate::device_programs(c, {p.batch, p.prompt_len, output_len}, tokens));
        return simulation.run({.send_order = simulate::SendOrder::Fifo});
      };
      const PlacedEstimate e = PlacedEstimator(c).at(p);
      const Partition& tokens = e.prefill.value().tokens;
      const simulate::RunResult first = played(1, tokens);
      const double tpot_s = (played(p.output_len, tokens).makespan_s - first.makespan_s) /
                            (static_cast<double>(p.output_len) - 1);
      CAPTURE(first.ttft_s);
      CAPTURE(e.ttft_s);
      CAPTURE(tpot_s);
      CAPTURE(e.tpot_s);
      CHECK(e.ttft_s / first.ttft_s == near(1).epsilon(0.05));
      CHECK(e.tpot_s / tpot_s == near(1).epsilon(0.05));
      // Ranks end one after the other, each with all of its devices.
      const std::size_t last = tokens.size() * tp;
      CHECK(first.ttft_s == first.finish_s[last - 1]);
      CHECK(std::count_if(first.finish_s.begin(), first.finish_s.end(),
                          [](double s) { return s > 0; }) == static_cast<std::ptrdiff_t>(last));
    }
  }
}

// In a ring nothing is computed between a layer's messages, so the host is waited for once a layer:
// in each from its attention to the next one's keys and values.
TEST_CASE("placement: a slow host's gatherings of keys take what is played") {
  Configuration c = on_platform("tsp:p=8", "hgx-h100", {});
  c.engine = roofline::load_engine(catalog(), "pytorch");
  roofline::apply(c.engine, true, true, c.lowering);
  const PlacedEstimator estimator(c);
  for (const std::uint64_t prompt_len : {512u, 2048u, 8192u}) {
    CAPTURE(prompt_len);
    const DesignPoint p{1, prompt_len, 1};
    const PlacedEstimate e = estimator.at(p);
    const simulate::Simulation simulation(
        simulate::node_platform(c.interconnect->data()),
        simulate::device_programs(c, p, e.prefill.value().tokens));
    CHECK(e.ttft_s / simulation.run().ttft_s == near(1).epsilon(0.002));
  }
}

TEST_CASE("placement: the device that decodes has the whole cache and the steps of one device") {
  const DesignPoint p{2, 4000, 50};
  for (const char* method : {"kvr:p=4", "tsp:p=4"}) {
    const PlacedEstimator estimator(configuration(method, "llama-7b", Kernels::Eager));
    const Estimate e = estimator.at(p);
    const Estimate one = estimator.one_device().at(p);
    CHECK(e.tpot_s == one.tpot_s);
    CHECK(e.tpot_speedup == 1);
    CHECK(e.kv_cache_ratio == 1);
    // 2·32 layers of 4096 fp16 numbers a token, 4050 of them in each of 2 sequences.
    CHECK(e.kv_cache_bytes == 2.0 * 4050 * 2 * 32 * 4096 * 2);
    CHECK(e.peak_memory_bytes > e.weight_bytes + e.kv_cache_bytes);
    CHECK(e.peak_memory_bytes < one.peak_memory_bytes);  // its scores are those of fewer tokens
  }
}

TEST_CASE("placement: slow links bind, and less the faster they are") {
  const DesignPoint p{1, 4096, 2};
  const PlacedEstimator slow(configuration("kvr:p=4,partition=even"), link_of(1e9));
  const PlacedEstimator fast(configuration("kvr:p=4,partition=even"), link_of(1e12));
  CHECK(slow.at(p).ttft_bound == Bound::Link);
  CHECK(fast.at(p).ttft_bound != Bound::Link);
  CHECK(slow.at(p).ttft_s > fast.at(p).ttft_s);
  CHECK(slow.at(p).prefill.value().without_links_s == fast.at(p).prefill.value().without_links_s);
}

TEST_CASE("placement: composes with what is cached, whose bytes are what is sent") {
  const DesignPoint p{1, 900, 2};
  const std::string kvr = "kvr:p=3,partition=400/300/200";
  const auto sent = [&](const std::string& methods) {
    return PlacedEstimator(configuration(methods)).at(p).prefill.value().run.message_bytes;
  };
  // Slim's caches keep one of keys and values.
  CHECK(sent(kvr + "+slim:option=kcache") * 2 == sent(kvr));
  // A quarter of the layers with a quarter of the heads.
  CHECK(sent(kvr + "+mlkv:layers=8,heads=8") * 16 == sent(kvr));
}

TEST_CASE("placement: a sweep's rows are those of its points") {
  const std::vector<DesignPoint> points{{1, 900, 2}, {1, 900, 7}, {2, 900, 7}, {2, 400, 7}};
  for (const char* method : {"kvr:p=3,partition=search", "tsp:p=3", "plain", "kvr:p=1"}) {
    const PlacedEstimator estimator(configuration(method));
    std::vector<Estimate> rows(points.size());
    estimator.sweep(points, rows);
    for (std::size_t i = 0; i < points.size(); ++i) {
      const Estimate e = estimator.at(points[i]);
      CHECK(rows[i].ttft_s == e.ttft_s);
      CHECK(rows[i].tpot_s == e.tpot_s);
      CHECK(rows[i].prefill_bytes == e.prefill_bytes);
      CHECK(rows[i].peak_memory_bytes == e.peak_memory_bytes);
    }
  }
}

TEST_CASE("placement: what cannot be estimated is refused in one line") {
  const auto reason = [](const std::string& methods, const std::string& model = "llama-7b") {
    return message_of([&] { PlacedEstimator(configuration(methods, model)).at({1, 100, 2}); });
  };
  CHECK(reason("kvp:auxiliary=lp-0.50+kvr:p=2").find("cannot be combined with kvp") !=
        std::string::npos);
  CHECK(reason("kvr:p=2", "whisper-base").find("encoder-decoder") != std::string::npos);
  CHECK(reason("kvr:p=2,partition=60/50") ==
        "method kvr:p=2,partition=60/50: got a prompt of 100 tokens, expected 110, the sum of "
        "60/50");
  CHECK(reason("tsp:p=101") ==
        "method tsp:p=101: got a prompt of 100 tokens, expected at least one token per rank (101)");
  CHECK(reason("kvr:p=1,partition=99").find("expected 99") != std::string::npos);
  CHECK(reason("kvr:p=2000") == "method kvr:p=2000: got 2000 devices, expected at most 1024");
  CHECK(reason("kvr:p=17,partition=search") ==
        "method kvr:p=17,partition=search: got 17 devices to search a partition for, expected at "
        "most 16, or partition=even or A/B/...");
  CHECK(reason("kvr:p=17") == "(no Error was thrown)");
  Configuration c = configuration("kvr:p=2");
  c.hardware.links.clear();
  CHECK(message_of([&] { PlacedEstimator{c}; }).find("no links") != std::string::npos);
  c = on_platform("kvr:p=2", "hgx-h100", {.tp = 8});
  CHECK(message_of([&] { PlacedEstimator{c}; }) ==
        "method kvr:p=2: got hgx-h100 of 8 devices, expected a platform of at least 16");
}

TEST_CASE("placement: ranks send over the links of their platform") {
  const DesignPoint p{1, 8192, 1};
  const auto ttft_s = [&](const char* method, const char* platform) {
    return PlacedEstimator(on_platform(method, platform, {})).at(p).ttft_s;
  };
  // PCIe takes longer than NVLink; of 16 ranks on two nodes one message alone is between nodes. A
  // rank's messages to the next node and those inside it are on different links.
  for (const auto& [method, tp, platform] : {std::tuple{"kvr:p=8", 1, "l40s-8"},
                                             {"tsp:p=8", 1, "l40s-8"},
                                             {"tsp:p=8", 1, "hgx-h100"},
                                             {"kvr:p=12", 1, "hgx-h100-2"},
                                             {"kvr:p=16", 1, "hgx-h100-2"},
                                             {"tsp:p=12", 1, "hgx-h100-2"},
                                             {"kvr:p=8", 2, "hgx-h100-2"},
                                             {"tsp:p=8", 2, "hgx-h100-2"}}) {
    CAPTURE(method);
    CAPTURE(tp);
    CAPTURE(platform);
    const Configuration c = on_platform(method, platform, {.tp = static_cast<std::uint64_t>(tp)});
    const PlacedEstimate e = PlacedEstimator(c).at(p);
    const simulate::Simulation simulation(
        simulate::node_platform(c.interconnect->data()),
        simulate::device_programs(c, p, e.prefill.value().tokens));
    CHECK(e.ttft_s / simulation.run().ttft_s == near(1).epsilon(0.01));
  }
  CHECK(ttft_s("tsp:p=4", "l40s-8") > 1.2 * ttft_s("tsp:p=4", "hgx-h100"));
  CHECK(ttft_s("kvr:p=16", "hgx-h100-2") < ttft_s("kvr:p=8", "hgx-h100-2"));
  Configuration light = on_platform("kvr:p=16", "hgx-h100-2", {});
  light.mode = roofline::Mode::SpeedOfLight;
  CHECK(PlacedEstimator(light).link().link.bytes_per_s ==
        light.interconnect->data().network_bytes_per_s);
  CHECK(PlacedEstimator(light).link().link.latency_s == 0);
  // A searched partition is never below its bound, also where one way alone is slow.
  const PlacedPrefill found =
      PlacedEstimator(on_platform("kvr:p=12,partition=search", "hgx-h100-2", {}))
          .at({1, 512, 1})
          .prefill.value();
  CHECK(found.run.ttft_s >= found.found.value().lower_bound_s.value() * (1 - 1e-12));
  // What messages cost is what they add.
  const PlacedEstimate e = PlacedEstimator(on_platform("tsp:p=4", "l40s-8", {})).at(p);
  CHECK(e.communication_s == near(e.ttft_s - e.prefill.value().without_links_s).epsilon(1e-12));
}

TEST_CASE("placement: beyond what is simulated, ranks are a ring of the same messages") {
  const DesignPoint p{1, 16384, 1};
  const auto ttft_s = [&](const char* method) {
    return PlacedEstimator(on_platform(method, "hgx-h100-1024", {.tp = 8})).at(p).ttft_s;
  };
  CHECK(ttft_s("tsp:p=129") / ttft_s("tsp:p=128") == near(1).epsilon(0.1));
}

TEST_CASE("placement: what kernels convert beside their work counts in each rank") {
  const DesignPoint p{1, 8192, 1};
  Configuration c = on_platform("kvr:p=2", "hgx-h100", {});
  c.lowering.attention = c.lowering.elementwise = Kernels::Eager;
  const auto ttft_s = [&](DType dtype) {
    c.lowering.weights = c.lowering.activations = c.lowering.cache = dtype;
    const PlacedEstimate e = PlacedEstimator(c).at(p);
    const simulate::Simulation simulation(
        simulate::node_platform(c.interconnect->data()),
        simulate::device_programs(c, p, e.prefill.value().tokens));
    CHECK(e.ttft_s / simulation.run().ttft_s == near(1).epsilon(0.01));
    return e.ttft_s;
  };
  // PyTorch's softmax of bf16 widens its input.
  CHECK(ttft_s(DType::BF16) > 1.1 * ttft_s(DType::FP16));
}

TEST_CASE("placement: ranks on several nodes send over the network") {
  const Configuration one_node = on_platform("kvr:p=2", "hgx-h100-8", {.tp = 4});
  const Configuration two_nodes = on_platform("kvr:p=2", "hgx-h100-8", {.tp = 8});
  CHECK(PlacedEstimator(one_node).link().name == "node");
  const PlacedEstimator spread(two_nodes);
  CHECK(spread.link().name == "network");
  CHECK(spread.link().link.bytes_per_s ==
        two_nodes.interconnect->data().network_payload_bytes_per_s);
  // Of two links: to the fabric, and from there.
  CHECK(spread.link().link.latency_s == 2 * two_nodes.interconnect->data().network_latency_s);
  CHECK(spread.link().link.latency_s > PlacedEstimator(one_node).link().link.latency_s);
}

}  // namespace
}  // namespace kvcast::search
