#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "model/io/weights/catalog.h"
#include "roofline/estimator.h"
#include "roofline/interconnect.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/source_catalog.h"
#include "tests/test_folder.h"

using namespace kvcast;
using roofline::Configuration;
using roofline::DesignPoint;
using roofline::Estimate;
using roofline::Estimator;
using roofline::Mode;

namespace {

Configuration on_h100(const std::string& model, const Parallelism& p,
                      const std::string& engine = "ideal") {
  Configuration c;
  c.architecture = load_model(catalog(), model);
  c.hardware = roofline::load_hardware(catalog(), "h100-sxm");
  c.engine = roofline::load_engine(catalog(), engine);
  c.parallelism = p;
  c.find_model = [](const std::string& name) { return load_model(catalog(), name); };
  c.interconnect = std::make_shared<const roofline::Interconnect>(
      roofline::load_interconnect(catalog(), p.devices() > 8 ? "hgx-h100-8" : "hgx-h100"));
  return c;
}

Estimate at(const Configuration& c, const DesignPoint& p) { return Estimator(c).at(p); }

/// Measured loads of Mixtral 8x7B, the same in all layers.
ConfigOverride loads_of(const TestFolder& folder, const std::vector<double>& tokens) {
  const std::filesystem::path file = folder / "tokens.csv";
  std::string text = "layer,expert,tokens\n";
  for (int layer = 0; layer < 32; ++layer) {
    for (std::size_t expert = 0; expert < 8; ++expert) {
      text += fmt::format("{},{},{:.0f}\n", layer, expert, tokens[expert]);
    }
  }
  std::ofstream(file) << text;
  return {std::string(expert_tokens_key), file.string()};
}
/// Tokens choose the last expert, and one of the others.
ConfigOverride all_choose_the_last(const TestFolder& folder) {
  return loads_of(folder, {100, 100, 100, 100, 100, 100, 100, 700});
}

}  // namespace

TEST_CASE("several devices: tp 1, pp 1, ep 1 give the bits of one device") {
  for (const char* model : {"llama-3.1-8b", "qwen3-30b-a3b"}) {
    Configuration one = on_h100(model, {});
    const DesignPoint p{3, 700, 50};
    const Estimate with = at(one, p);
    one.interconnect = nullptr;
    const Estimate without = at(one, p);
    CHECK(static_cast<const roofline::Forecast&>(with) == without);
    CHECK(with.devices == 1);
    CHECK(with.communication_s == 0);
    CHECK(with.weight_bytes_per_device == with.weight_bytes);
  }
}

TEST_CASE("several devices: more of them never raise what one has") {
  for (const char* model : {"llama-3.1-70b", "qwen3-30b-a3b", "deepseek-v3"}) {
    double last = 1e30;
    for (const std::uint64_t tp : {1U, 2U, 4U, 8U}) {
      const Estimate e = at(on_h100(model, {.tp = tp}), {1, 512, 16});
      CHECK(e.weight_bytes_per_device <= last);
      CHECK(e.weight_bytes >= at(on_h100(model, {}), {1, 512, 16}).weight_bytes);
      last = e.weight_bytes_per_device;
    }
  }
}

TEST_CASE("several devices: half of T5, encoder and cross-attention too, but for its norms") {
  // Of t5-small's 60,506,624 parameters norms of 512 are whole: 2 in each of 6 encoder layers, 3 in
  // each of 6 decoder layers, and the 2 last ones.
  const std::uint64_t norms = 512 * (6 * 2 + 6 * 3 + 2);
  const Configuration c = on_h100("t5-small", {.tp = 2});
  const Estimate e = at(c, {1, 128, 16});
  CHECK(e.weight_bytes_per_device == 2 * ((60506624 - norms) / 2 + norms));
  // All-reduces after the embedding and each branch, and the gathered logits. The encoder's sums
  // are of 128 tokens, and the first token's alone.
  const auto seconds = [&](CollectiveKind kind, double bytes) {
    return c.interconnect->curve(kind, {2, 1, 0}, "", Mode::Calibrated).at(bytes) +
           c.engine.collective_wait.value;
  };
  const double of_token = (1 + 6 * 3) * seconds(CollectiveKind::AllReduce, 2 * 512) +
                          seconds(CollectiveKind::AllGather, 2 * 32128);
  CHECK(e.tpot_communication_s == near(of_token).epsilon(1e-9));
  CHECK(e.communication_s ==
        near(of_token + (1 + 6 * 2) * seconds(CollectiveKind::AllReduce, 2 * 128 * 512))
            .epsilon(1e-9));
}

TEST_CASE("several devices: an infinitely fast link leaves computation alone") {
  Configuration c = on_h100("llama-3.1-8b", {.tp = 4});
  c.mode = Mode::SpeedOfLight;
  roofline::InterconnectData data = c.interconnect->data();
  data.link_bytes_per_s = 1e300;
  c.interconnect = std::make_shared<const roofline::Interconnect>(data);
  const Estimate four = at(c, {1, 1000, 10});
  CHECK(four.communication_s < 1e-200);
  // Without messages: the same pass of a quarter, to which norms and residuals add.
  Configuration one = on_h100("llama-3.1-8b", {});
  one.mode = Mode::SpeedOfLight;
  const Estimate whole = at(one, {1, 1000, 10});
  CHECK(four.ttft_s > whole.ttft_s / 4);
  CHECK(four.ttft_s < whole.ttft_s / 3);
  CHECK(four.tpot_s < whole.tpot_s / 3);
}

TEST_CASE("several devices: messages are part of both times, and the curve's") {
  const Configuration c = on_h100("llama-3.1-8b", {.tp = 8}, "vllm");
  const Estimate e = at(c, {4, 512, 2});
  // 2 · 32 + 1 all-reduces of [4, 1, 4096] in 2 bytes, and the gathered logits.
  const RankGroup all{8, 1, 0};
  const auto curve = [&](CollectiveKind kind, double bytes) {
    return c.interconnect->curve(kind, all, "vllm", Mode::Calibrated).at(bytes) +
           c.engine.collective_wait.value;
  };
  const double expected = 65 * curve(CollectiveKind::AllReduce, 4.0 * 4096 * 2) +
                          curve(CollectiveKind::AllGather, 4.0 * 128256 * 2);
  CHECK(e.tpot_communication_s == near(expected).epsilon(1e-9));
  CHECK(e.communication_s < e.ttft_s);
  // Products in fp8 send what they sum in 16 bits.
  Configuration narrow = c;
  narrow.lowering.activations = DType::FP8;
  roofline::apply(narrow.engine, true, true, narrow.lowering);
  CHECK(at(narrow, {4, 512, 2}).communication_s == near(e.communication_s).epsilon(1e-12));
}

TEST_CASE("several devices: a measured link joins those that no platform names") {
  roofline::Hardware h = roofline::load_hardware(catalog(), "x86-server-cpu");
  h.links["mpi"].bandwidth = {5e9, roofline::Source::Datasheet, "", ""};
  h.links["mpi"].latency = {20e-6, roofline::Source::Datasheet, "", ""};
  CHECK(message_of([&] {
          roofline::find_interconnect(catalog(), "", h, 3);
        }).find("mpirun -n 2 kvcast calibrate") != std::string::npos);
  h.links["mpi"].bandwidth.source = roofline::Source::Measured;
  const auto joined = roofline::find_interconnect(catalog(), "", h, 3);
  CHECK(joined->devices() == 3);
  // A ring of three: four messages, one after another, of a third each.
  const auto sum = joined->curve(CollectiveKind::AllReduce, {3, 1, 0}, "", Mode::Calibrated);
  CHECK(sum.at(3 << 20) == near(4 * (20e-6 + (1 << 20) / 5e9)).epsilon(0.01));
  CHECK(joined->point_to_point(0, 1, Mode::Calibrated).at(1 << 20) ==
        near(20e-6 + (1 << 20) / 5e9).epsilon(0.01));
}

TEST_CASE("several devices: those that wait for each other work at lockstep's share") {
  const DesignPoint p{1, 4000, 2};
  Configuration c = on_h100("llama-3.1-8b", {.tp = 2});
  const Estimate alone = at(c, p);
  c.hardware.lockstep = roofline::Sourced{0.5, roofline::Source::Measured, "", ""};
  const Estimate waits = at(c, p);
  CHECK(waits.communication_s == alone.communication_s);
  const double ratio =
      (waits.ttft_s - waits.communication_s) / (alone.ttft_s - alone.communication_s);
  CHECK(ratio > 1.95);  // latencies do not wait
  CHECK(ratio <= 2);
  // Decode steps may have a share of their own.
  CHECK(waits.tpot_s > alone.tpot_s);
  c.hardware.lockstep->by_length = {{1, 1}};
  const Estimate decodes_alone = at(c, p);
  CHECK(decodes_alone.ttft_s == waits.ttft_s);
  CHECK(decodes_alone.tpot_s == alone.tpot_s);
  Configuration one = on_h100("llama-3.1-8b", {});
  const Estimate without = at(one, p);
  one.hardware.lockstep = c.hardware.lockstep;
  CHECK(at(one, p).ttft_s == without.ttft_s);
}

TEST_CASE("several devices: replicas share the sequences") {
  const DesignPoint one{8, 256, 32};
  const DesignPoint all{32, 256, 32};
  const Estimate alone = at(on_h100("llama-3.1-8b", {}), one);
  const Estimate four = at(on_h100("llama-3.1-8b", {.dp = 4}), all);
  CHECK(four.ttft_s == alone.ttft_s);
  CHECK(four.tpot_s == alone.tpot_s);
  CHECK(four.decode_flops_per_token == alone.decode_flops_per_token);
  CHECK(four.prefill_flops == 4 * alone.prefill_flops);
  CHECK(four.kv_cache_bytes == 4 * alone.kv_cache_bytes);
  CHECK(four.kv_cache_bytes_per_device == alone.kv_cache_bytes);
  CHECK(four.weight_bytes == 4 * alone.weight_bytes);
}

TEST_CASE(
    "several devices: a pipeline of one sequence takes the sum of its stages, more a step each") {
  const Estimate whole = at(on_h100("llama-3.1-8b", {}), {1, 2048, 16});
  const Estimate piped = at(on_h100("llama-3.1-8b", {.pp = 4}), {1, 2048, 16});
  // The same operators one after another, and three hops.
  CHECK(piped.ttft_s >= whole.ttft_s);
  CHECK(piped.ttft_s == near(whole.ttft_s + piped.communication_s).epsilon(1e-9));
  CHECK(piped.tpot_s == near(whole.tpot_s + piped.tpot_communication_s).epsilon(1e-9));
  CHECK(piped.weight_bytes == whole.weight_bytes);
  CHECK(piped.prefill_flops == whole.prefill_flops);
  // Four sequences in four micro-batches: the bubble is three of seven slots.
  const Estimate four = at(on_h100("llama-3.1-8b", {.pp = 4}), {4, 2048, 16});
  // Messages to the next stage go beside its work, those of its devices are in each slot.
  CHECK(four.communication_s == near(piped.communication_s).epsilon(1e-9));
  const auto waits_s = [](std::uint64_t batch) {
    return at(on_h100("llama-3.1-8b", {.tp = 2, .pp = 4}), {batch, 2048, 16}).communication_s;
  };
  const double slots = waits_s(4) / waits_s(1);
  CHECK(slots < 7.0 / 4);  // the messages to the next stages are there once
  CHECK(slots > 1.65);
  // A token more in a step of an engine adds to its messages.
  const auto of_steps_s = [](std::uint64_t prompt_len) {
    Configuration c = on_h100("llama-3.1-8b", {.tp = 2, .pp = 2});
    c.engine = roofline::load_engine(catalog(), "vllm");
    roofline::apply(c.engine, true, true, c.lowering);
    return at(c, {1, prompt_len, 16}).communication_s;
  };
  CHECK(of_steps_s(8193) >= of_steps_s(8192));
  CHECK(four.ttft_s > 1.74 * piped.ttft_s);
  CHECK(four.ttft_s < 2 * piped.ttft_s);
  CHECK(at(on_h100("llama-3.1-8b", {.tp = 16}), {1, 1, 1}).devices == 16);  // over two nodes
  CHECK(message_of([&] {
          Configuration c = on_h100("llama-3.1-8b", {.tp = 8, .dp = 2});
          c.interconnect = std::make_shared<const roofline::Interconnect>(
              roofline::load_interconnect(catalog(), "hgx-h100"));
          at(c, {1, 1, 1});
        }) == "tp 8, dp 2: got hgx-h100 of 8 devices, expected a platform of at least 16");
}

TEST_CASE("several devices: replicas without a sequence are named") {
  const Estimator e(on_h100("llama-3.1-8b", {.dp = 8}));
  CHECK(e.warnings({8, 128, 2}).empty());
  CHECK(e.warnings({3, 128, 2}) ==
        std::vector<std::string>{
            "5 of 8 replicas have no sequence of their own and are taken to have one"});
  CHECK(e.warnings({16, 128, 2}).empty());
  CHECK(e.warnings({17, 128, 2}) ==
        std::vector<std::string>{
            "17 sequences do not divide evenly among 8 replicas: each is taken to have 3"});
}

TEST_CASE("several devices: a request is read and its text tokenised once, whatever the stages") {
  for (const std::uint64_t micro_batches : {1u, 4u}) {
    for (const Parallelism& p : {Parallelism{.pp = 4}, Parallelism{.tp = 4}}) {
      CAPTURE(to_string(p));
      Configuration c = on_h100("llama-3.1-8b", p, "vllm");
      c.micro_batches = micro_batches;
      c.engine.host.request = Seconds{0};
      c.engine.host.token = Seconds{0};
      const DesignPoint point{4, 1000, 10};
      const double without_s = at(c, point).ttft_s;
      c.engine.host.request = Seconds{1};
      c.engine.host.token = Seconds{1e-3};
      CHECK(at(c, point).ttft_s == near(without_s + 1 + 4).epsilon(1e-12));
    }
  }
}

TEST_CASE("several devices: micro-batches on one stage overlap messages with work") {
  for (const Parallelism& p : {Parallelism{.tp = 4}, Parallelism{.ep = 8, .dp = 8}}) {
    Configuration c = on_h100("qwen3-30b-a3b", p);
    c.engine = roofline::load_engine(catalog(), "vllm");
    const Estimate half = at(c, {32, 512, 16});
    const Estimate all = at(c, {64, 512, 16});
    const Estimate one_each = at(c, {p.dp, 512, 16});
    c.micro_batches = 2;
    const Estimate both = at(c, {64, 512, 16});
    CHECK(at(c, {p.dp, 512, 16}).ttft_s == one_each.ttft_s);  // nothing to cut
    const auto longer = [](double all_s, double messages_s) {
      return 2 * std::max(messages_s, all_s - messages_s);
    };
    const double request_s = c.engine.host.request.value;
    CHECK(both.ttft_s ==
          near(request_s + longer(half.ttft_s - request_s, half.communication_s)).epsilon(1e-9));
    CHECK(both.tpot_s == near(longer(half.tpot_s, half.tpot_communication_s)).epsilon(1e-9));
    CHECK(both.ttft_s < all.ttft_s);
    CHECK(both.kv_cache_bytes == all.kv_cache_bytes);
    CHECK(both.prefill_flops == all.prefill_flops);
    CHECK(both.decode_bytes_per_token > all.decode_bytes_per_token);  // weights are read twice
    double parts_s = 0;
    for (const double part_s : both.ttft_parts_s) parts_s += part_s;
    CHECK(parts_s == near(both.ttft_s).epsilon(1e-9));
  }
}

TEST_CASE("several devices: micro-batches differ by one where they do not divide a batch") {
  // 7 sequences are 3, 2 and 2. What is played of unequal ones is within 1 % (device programs).
  const Configuration one = on_h100("llama-3.1-8b", {.pp = 3});
  const auto seconds = [&](std::uint64_t batch, std::uint64_t parts) {
    Configuration c = one;
    c.micro_batches = parts;
    return at(c, {batch, 256, 2}).ttft_s;
  };
  const double more_s = seconds(4, 2) - seconds(2, 1);  // the slowest stage's time for two
  CHECK(seconds(7, 3) > seconds(6, 3));
  CHECK(seconds(7, 3) < seconds(9, 3));
  // Behind the first one no stage takes longer for the others than the slowest.
  CHECK(seconds(7, 3) <= seconds(3, 1) + 2 * more_s);
  CHECK(seconds(9, 3) == near(seconds(3, 1) + 2 * (seconds(6, 2) - seconds(3, 1))).epsilon(1e-9));
}

TEST_CASE("several devices: all wait for the one whose experts are chosen most") {
  // Each token chooses the last of Mixtral's experts, and one of the others: of 8 devices the last
  // multiplies all 8 x 64 tokens by an expert, where loads that are alike make 2/8 of them.
  const TestFolder folder;
  const ConfigOverride loads = all_choose_the_last(folder);
  Configuration c = on_h100("mixtral-8x7b", {.ep = 8, .dp = 8});
  const DesignPoint p{8, 64, 2};
  const Estimate alike = at(c, p);
  c.architecture = load_model(catalog(), "mixtral-8x7b", {loads});
  const Estimate uneven = at(c, p);
  const double of_a_pair = 6.0 * 4096 * 14336 * 32;
  CHECK(uneven.prefill_flops - alike.prefill_flops ==
        near(8 * (8 * 64 * 0.75) * of_a_pair).epsilon(1e-3));
  CHECK(uneven.ttft_s > alike.ttft_s);
  // All tokens go there, where a device of loads that are alike gets a quarter of them.
  const DesignPoint long_prompts{64, 4096, 2};
  const auto messages_s = [&](const std::vector<ConfigOverride>& overrides) {
    c.architecture = load_model(catalog(), "mixtral-8x7b", overrides);
    return at(c, long_prompts).communication_s;
  };
  const double alike_s = messages_s({});
  CHECK(messages_s({loads}) / alike_s == near(4).epsilon(0.02));
  // The pairs of 262,144 tokens have a variance of 2 · 1/8 · 7/8 · 6/7 a token.
  const double more =
      1.4236 * std::sqrt(0.1875 * 64 * 4096) / (0.25 * 64 * 4096);  // the largest of 8 draws
  const double drawn_s = messages_s({{std::string(expert_draws_key), "1"}});
  CHECK(drawn_s / alike_s - 1 == near(more).epsilon(0.1));
}

// Of 28 pairs of Mixtral's experts a token takes one, as likely as the product of their weights.
TEST_CASE("several devices: tokens that reach the device with most pairs, counted") {
  const TestFolder folder;
  const auto messages_s = [&](std::uint64_t devices, const std::vector<ConfigOverride>& overrides) {
    Configuration c = on_h100("mixtral-8x7b", {.ep = devices, .dp = devices});
    c.architecture = load_model(catalog(), "mixtral-8x7b", overrides);
    return at(c, {16 * devices, 4096, 2}).communication_s;
  };
  using Weights = std::vector<double>;
  for (const Weights& weight :
       {Weights{1, 1, 1, 1, 1, 1, 1, 1}, Weights{1, 1, 1, 1, 1, 1, 2, 4},
        Weights{1, 2, 1, 2, 1, 2, 1, 20}, Weights{1, 1, 1, 1, 9, 9, 40, 40}}) {
    for (const std::uint64_t devices : {2U, 4U, 8U}) {
      CAPTURE(devices);
      CAPTURE(weight.back());
      const std::size_t here = 8 / devices;
      double all = 0;
      double reach = 0;  // the last device
      double even = 0;
      Weights chosen(8);
      for (std::size_t i = 0; i < 8; ++i) {
        for (std::size_t j = i + 1; j < 8; ++j) {
          const double p = weight[i] * weight[j];
          all += p;
          chosen[i] += p;
          chosen[j] += p;
          if (j >= 8 - here) reach += p;
          if (j >= 8 - here) even += 1.0 / 28;
        }
      }
      reach /= all;
      for (double& p : chosen) p *= 1e6 / all;
      CHECK(messages_s(devices, {loads_of(folder, chosen)}) / messages_s(devices, {}) ==
            near(reach / even).epsilon(0.05));
    }
  }
  // Alike loads with copies, of which a device may have one.
  const ConfigOverride alike = loads_of(folder, Weights(8, 100));
  const ConfigOverride copies{std::string(expert_copies_key), "8"};
  for (const std::uint64_t devices : {4U, 8U, 16U}) {
    CAPTURE(devices);
    CHECK(messages_s(devices, {copies, alike}) ==
          near(messages_s(devices, {copies})).epsilon(1e-6));
  }
}

TEST_CASE("several devices: the fullest of drawn steps") {
  // 8 x 64 tokens choose 2 of 8 experts, one on each of 8 devices: 128 pairs each in the mean, with
  // a variance of 512 · 2 · 1/8 · 7/8 · 6/7 = 96. The largest of 8 normal draws lies 1.4236
  // deviations above the mean.
  Configuration c = on_h100("mixtral-8x7b", {.ep = 8, .dp = 8});
  const DesignPoint p{8, 64, 2};
  const Estimate mean = at(c, p);
  const double of_a_pair = 6.0 * 4096 * 14336 * 32;
  const auto more_pairs = [&](const char* draws) {
    c.architecture =
        load_model(catalog(), "mixtral-8x7b", {{std::string(expert_draws_key), draws}});
    return (at(c, p).prefill_flops - mean.prefill_flops) / of_a_pair / 8;
  };
  CHECK(more_pairs("1") == near(std::ceil(128 + 1.4236 * std::sqrt(96.0)) - 128).epsilon(1e-3));
  CHECK(more_pairs("100") > more_pairs("1"));
}

TEST_CASE("several devices: the fullest one of drawn steps is never faster than the mean") {
  Configuration c = on_h100("qwen3-30b-a3b", {.ep = 8, .dp = 8});
  double before_s = 0;
  double before_bytes = 0;
  for (const char* draws : {"", "1", "10", "1000"}) {
    std::vector<ConfigOverride> overrides;
    if (*draws != 0) overrides.push_back({std::string(expert_draws_key), draws});
    c.architecture = load_model(catalog(), "qwen3-30b-a3b", overrides);
    const Estimate e = at(c, {8, 64, 8});
    CAPTURE(draws);
    CHECK(e.tpot_s > before_s);
    CHECK(e.decode_bytes_per_token > before_bytes);  // more pairs are of more experts
    before_s = e.tpot_s;
    before_bytes = e.decode_bytes_per_token;
  }
}

TEST_CASE("several devices: copies of the experts with most tokens even out the devices") {
  // All tokens choose the last expert. Seven of it have as many as each other expert, one in seven
  // tokens. Two of 16 lie on each device, which makes 2/7 of the tokens' pairs instead of all.
  const TestFolder folder;
  const ConfigOverride loads = all_choose_the_last(folder);
  Configuration c = on_h100("mixtral-8x7b", {.ep = 8, .dp = 8});
  const DesignPoint p{8, 64, 2};
  const ConfigOverride copies{std::string(expert_copies_key), "8"};
  c.architecture = load_model(catalog(), "mixtral-8x7b", {loads});
  const Estimate uneven = at(c, p);
  c.architecture = load_model(catalog(), "mixtral-8x7b", {loads, copies});
  const Estimate even = at(c, p);
  const double of_a_pair = 6.0 * 4096 * 14336 * 32;
  CHECK(uneven.prefill_flops - even.prefill_flops ==
        near(8 * (8 * 64 * (1 - 2.0 / 7)) * of_a_pair).epsilon(5e-3));
  CHECK(even.weight_bytes_per_device - uneven.weight_bytes_per_device ==
        3.0 * 4096 * 14336 * 2 * 32);
  CHECK(even.ttft_s < uneven.ttft_s);
  // Devices with like loads still have a fullest one in a step.
  const ConfigOverride draws{std::string(expert_draws_key), "1"};
  c.architecture = load_model(catalog(), "mixtral-8x7b", {loads, copies, draws});
  CHECK(at(c, p).ttft_s > even.ttft_s);

  c = on_h100("mixtral-8x7b", {.tp = 8});
  c.architecture = load_model(catalog(), "mixtral-8x7b", {copies});
  CHECK(message_of([&] { at(c, p); }) ==
        "expert_copies: got 8 copies for no device of their own, expected --ep above 1");
  c = on_h100("mixtral-8x7b", {.ep = 8, .dp = 8});
  c.architecture = load_model(catalog(), "mixtral-8x7b", {{std::string(expert_copies_key), "3"}});
  CHECK(message_of([&] { at(c, p); }).find("11 experts and copies") != std::string::npos);
}

TEST_CASE("several devices: each collective waits as long as the engine says") {
  Configuration c = on_h100("llama-3.1-8b", {.tp = 2});
  const DesignPoint p{1, 512, 8};
  const Estimate before = at(c, p);
  c.engine.collective_wait = {1e-3};
  const Estimate after = at(c, p);
  // Two all-reduces in each of 32 layers, one of the embedding's rows, and the logits.
  CHECK(after.tpot_s - before.tpot_s == near(66e-3).epsilon(1e-9));
  CHECK(after.tpot_communication_s - before.tpot_communication_s == near(66e-3).epsilon(1e-9));
  CHECK(after.ttft_s - before.ttft_s == near(66e-3).epsilon(1e-9));
  c.mode = Mode::SpeedOfLight;
  const double light_s = at(c, p).tpot_s;
  c.engine.collective_wait = {};
  CHECK(light_s == at(c, p).tpot_s);
}

/// What two operators of DeepSeek-V3 published of a node of eight (open-infra-index, day 6; LMSYS
/// blog of 2025-05-05): 32 of 256 experts are there twice, and two micro-batches overlap.
TEST_CASE("several devices: DeepSeek V3 on nodes of experts makes its published tokens a second") {
  const auto tokens_of_node = [](const std::string& hardware, std::uint64_t devices,
                                 const DesignPoint& of_device) {
    Configuration c = on_h100("deepseek-v3", {.ep = devices, .dp = devices});
    c.architecture = load_model(catalog(), "deepseek-v3", {{std::string(expert_copies_key), "32"}});
    c.hardware = roofline::load_hardware(catalog(), hardware);
    c.interconnect = std::make_shared<const roofline::Interconnect>(
        roofline::load_interconnect(catalog(), "hgx-h100-128"));
    c.lowering.weights = c.lowering.activations = DType::FP8;
    c.engine = roofline::load_engine(catalog(), "sglang");
    roofline::apply(c.engine, true, true, c.lowering);
    c.micro_batches = 2;
    DesignPoint all = of_device;
    all.batch *= devices;
    const Estimate e = at(c, all);
    CHECK(e.fits);
    return 8 * static_cast<double>(of_device.batch) / e.tpot_s;
  };
  // As many sequences as fit, 2,000 tokens and 1,000 of output.
  CHECK(tokens_of_node("h100-sxm", 72, {224, 2000, 1000}) == near(22300).epsilon(0.25));
  // 21 tokens a second for each user, so 14,800 / 8 / 21 = 88 sequences; 4,989 tokens in the mean.
  CHECK(tokens_of_node("h800", 144, {88, 4489, 1000}) == near(14800).epsilon(0.25));
}

TEST_CASE("several devices: a sweep gives what single estimates give") {
  for (const Parallelism& p :
       {Parallelism{.tp = 2}, Parallelism{.tp = 2, .pp = 2}, Parallelism{.ep = 4, .dp = 4}}) {
    const Estimator estimator(on_h100("qwen3-30b-a3b", p));
    const std::vector<DesignPoint> points{{1, 100, 10}, {7, 300, 1}, {64, 1000, 200}};
    std::vector<Estimate> rows(points.size());
    estimator.sweep(points, rows);
    for (std::size_t i = 0; i < points.size(); ++i) {
      const Estimate e = estimator.at(points[i]);
      CHECK(rows[i].ttft_s == near(e.ttft_s).epsilon(1e-12));
      CHECK(rows[i].tpot_s == near(e.tpot_s).epsilon(1e-12));
      CHECK(rows[i].peak_memory_bytes == near(e.peak_memory_bytes).epsilon(1e-12));
    }
  }
}

TEST_CASE("several devices: a speculator is split as the base is, or whole where it cannot be") {
  const DesignPoint p{1, 4000, 2};
  const auto with = [&](const std::string& base, const std::string& speculator,
                        const Parallelism& plan = {.tp = 4}) {
    Configuration c = on_h100(base, plan);
    c.methods = parse_methods("specprefill:keep=0.1,lookahead=2,speculator=" + speculator);
    return at(c, p);
  };
  const auto speculating_s = [](const Estimate& e) {
    return e.ttft_parts_s[static_cast<std::size_t>(TtftPart::Speculator)];
  };
  const Estimate split = with("llama-3.1-8b", "llama-3.2-1b");
  const Estimate small = at(on_h100("llama-3.2-1b", {.tp = 4}), p);
  CHECK(split.weight_bytes_per_device ==
        at(on_h100("llama-3.1-8b", {.tp = 4}), p).weight_bytes_per_device +
            small.weight_bytes_per_device);
  // A speculator keeps its last query beside.
  CHECK(speculating_s(split) == near(small.ttft_s).epsilon(0.01));
  // 9 heads
  const Estimate whole = with("smollm2-1.7b", "smollm2-135m");
  const Estimate one = at(on_h100("smollm2-135m", {}), p);
  CHECK(whole.weight_bytes_per_device ==
        at(on_h100("smollm2-1.7b", {.tp = 4}), p).weight_bytes_per_device + one.weight_bytes);
  CHECK(speculating_s(whole) == speculating_s(with("smollm2-1.7b", "smollm2-135m", {})));
  // The first stage of a pipeline chooses for all.
  const Estimate alone = with("llama-3.1-8b", "llama-3.2-1b", {});
  const Estimate stages = with("llama-3.1-8b", "llama-3.2-1b", {.pp = 4});
  CHECK(speculating_s(stages) == speculating_s(alone));
  CHECK(stages.prefill_flops == near(alone.prefill_flops).epsilon(1e-9));
  CHECK(stages.weight_bytes == alone.weight_bytes);
}
