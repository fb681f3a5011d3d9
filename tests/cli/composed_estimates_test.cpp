// `estimate` and `sweep` of methods joined by '+'.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/cli/program.h"

namespace kvcast::cli {
namespace {

const std::string device = "--quiet --hardware a100-80gb --batch 2 ";

json estimate(const std::string& model, const std::string& method, std::uint64_t prompt_len = 1000,
              std::uint64_t output_len = 8) {
  return run_json("estimate --json --breakdown " + device + "--model " + model + " --method '" +
                  method + "' --prompt-len " + std::to_string(prompt_len) + " --output-len " +
                  std::to_string(output_len));
}

/// FLOPs of one pass, `op` empty: all of it.
std::uint64_t flops(const json& estimate, const std::string& pass, const std::string& op = "") {
  std::uint64_t sum = 0;
  for (const json& row : estimate["breakdown"]) {
    if (row["pass"] == pass && (op.empty() || row["operator"] == op)) {
      sum += row["flops"].get<std::uint64_t>();
    }
  }
  return sum;
}

/// Everything that a neutral method must leave alone.
void check_same(const json& a, const json& b) {
  for (const char* key :
       {"parameters", "ttft_s", "tpot_s", "prefill_flops", "prefill_bytes",
        "decode_flops_per_token", "decode_bytes_per_token", "kv_cache_bytes", "weight_bytes",
        "peak_memory_bytes", "ttft_speedup", "tpot_speedup", "kv_cache_ratio"}) {
    CAPTURE(key);
    CHECK(a[key].get<double>() == near(b[key].get<double>()).epsilon(1e-12));
  }
}

/// A product of `rows` with a weight and its bias.
std::uint64_t biased(std::uint64_t rows, std::uint64_t out, std::uint64_t in) {
  return rows * out * (2 * in + 1);
}

// pythia-160m: 12 layers of 12 heads of 64, 768 wide, 3072 neurons, 50304 tokens. 4 layers with 2
// heads of keys and values lose 144 - 8 = 136 heads of 64·(2·768 + 2) = 98,432 numbers: 1,115,562 a
// layer, 1453 rows of 768, 726 neurons (up and down) to 3798.
TEST_CASE("composed: pruned prompts of an MLKV model have the FLOPs and the cache of both") {
  const json e = estimate("pythia-160m", "random-prune:keep=0.25+mlkv:layers=4,heads=2");
  const std::uint64_t rows = 2 * 250;
  const std::uint64_t keys_and_values = 2 * 4 * biased(rows, 2 * 64, 768);
  const std::uint64_t query_and_output = 2 * 12 * biased(rows, 768, 768);
  const std::uint64_t mlp = 12 * (biased(rows, 3798, 768) + biased(rows, 768, 3798));
  const std::uint64_t head = 2 * 2 * std::uint64_t{768} * 50304;  // of the last position, no bias
  CHECK(flops(e, "prefill", "linear") == keys_and_values + query_and_output + mlp + head);
  // Each visible pair and head: q·k, p·v and 5 for scale and softmax; a division of each sum.
  const std::uint64_t pairs = 250 * 251 / 2;
  CHECK(flops(e, "prefill", "tiled_attention") ==
        2 * 12 * 12 * (pairs * (4 * 64 + 5) + 250 * std::uint64_t{64}));
  // 250 kept and 8 generated slots of 4 layers with 2 heads of keys and of values, 2 bytes each.
  CHECK(e["kv_cache_bytes"] == 2 * (250 + 8) * 4 * 2 * 2 * 64 * 2);
  CHECK(e["kv_cache_ratio"].get<double>() ==
        near((258.0 / 1008) * (4.0 / 12) * (2.0 / 12)).epsilon(1e-12));
  CHECK(flops(e, "prefill") == e["prefill_flops"]);
}

TEST_CASE("composed: a pruned prefill is the other method's of the kept tokens alone") {
  for (const auto& [model, method] :
       std::vector<std::pair<std::string, std::string>>{{"pythia-160m", "mlkv:layers=4,heads=2"},
                                                        {"opt-1.3b", "slim:option=kcache"},
                                                        {"opt-1.3b", "slim:option=xcache"}}) {
    CAPTURE(method);
    const json both = estimate(model, "random-prune:keep=0.5+" + method);
    const json short_prompt = estimate(model, method, 500);
    check_equal(both, short_prompt,
                {"prefill_flops", "decode_flops_per_token", "kv_cache_bytes", "weight_bytes"});
    // The kept positions are read besides: 4 bytes a token, beside megabytes.
    CHECK(both["ttft_s"].get<double>() == near(short_prompt["ttft_s"].get<double>()).epsilon(1e-3));
    CHECK(both["ttft_speedup"].get<double>() ==
          near(estimate(model, "plain")["ttft_s"].get<double>() / both["ttft_s"].get<double>()));
  }
}

TEST_CASE("composed: speculator, look-ahead and base each cost what they cost alone") {
  const std::string mlkv = "mlkv:layers=4,heads=2";
  const json e =
      estimate("pythia-160m", "specprefill:speculator=pythia-70m,keep=0.25,lookahead=4+" + mlkv);
  const json base = estimate("pythia-160m", mlkv, 250);
  // Three steps after 1000 tokens, as those of 4 generated tokens, the first from the prefill.
  const json speculator = estimate("pythia-70m", "plain", 1000, 4);
  CHECK(flops(e, "speculator prefill") == speculator["prefill_flops"]);
  CHECK(flops(e, "look-ahead") == 3 * flops(speculator, "decode"));
  CHECK(flops(e, "prefill") == base["prefill_flops"]);
  CHECK(e["prefill_flops"] == flops(e, "speculator prefill") + flops(e, "look-ahead") +
                                  flops(e, "score") + flops(e, "prefill"));
  check_equal(e, base, {"decode_flops_per_token", "kv_cache_bytes"});
  CHECK(e["weight_bytes"] == base["weight_bytes"].get<std::uint64_t>() +
                                 speculator["weight_bytes"].get<std::uint64_t>());
  // The speculator's own cache: 6 layers, 512 wide, of at least the prompt.
  CHECK(e["peak_memory_bytes"].get<std::uint64_t>() >
        e["weight_bytes"].get<std::uint64_t>() + 2 * 1000 * 6 * 2 * 512 * 2);

  // Without one the base is its own, with its MLKV layers.
  const json own = estimate("pythia-160m", "specprefill:keep=0.25,lookahead=1+" + mlkv);
  CHECK(flops(own, "speculator prefill") == estimate("pythia-160m", mlkv)["prefill_flops"]);
  CHECK(own["weight_bytes"] == base["weight_bytes"]);
}

TEST_CASE("composed: kept tokens are predicted as a prompt of so many is") {
  const std::string kvp = "kvp:auxiliary=lp-0.50";
  const json predicted = estimate("pythia-160m", kvp, 250);
  const std::string spec = "specprefill:speculator=pythia-70m,keep=0.25,lookahead=4";
  const json pruned = estimate("pythia-160m", spec);
  for (const std::string& both : {spec + "+" + kvp, kvp + "+" + spec}) {
    CAPTURE(both);
    const json e = estimate("pythia-160m", both);
    for (const char* pass : {"speculator prefill", "look-ahead", "score"}) {
      CHECK(flops(e, pass) == flops(pruned, pass));
    }
    CHECK(flops(e, "auxiliary") == flops(predicted, "auxiliary"));
    CHECK(flops(e, "prefill") == flops(predicted, "prefill"));
    CHECK(e["prefill_flops"] == flops(e, "speculator prefill") + flops(e, "look-ahead") +
                                    flops(e, "score") +
                                    predicted["prefill_flops"].get<std::uint64_t>());
    check_equal(e, predicted, {"decode_flops_per_token", "kv_cache_bytes"});
    CHECK(e["weight_bytes"] ==
          predicted["weight_bytes"].get<std::uint64_t>() +
              estimate("pythia-70m", "plain")["weight_bytes"].get<std::uint64_t>());
    CHECK(
        e["ttft_speedup"].get<double>() ==
        near(estimate("pythia-160m", "plain")["ttft_s"].get<double>() / e["ttft_s"].get<double>()));
  }
  const json random = estimate("pythia-160m", "random-prune:keep=0.25+" + kvp);
  CHECK(random["prefill_flops"] == predicted["prefill_flops"]);
}

TEST_CASE("composed: devices share the kept tokens, and each chooses them") {
  const std::string kvr = "kvr:p=2,partition=150/100";
  const json chain = estimate("pythia-160m", kvr, 250);
  const json random = estimate("pythia-160m", "random-prune:keep=0.25+" + kvr);
  const std::string spec = "specprefill:speculator=pythia-70m,keep=0.25,lookahead=4";
  const json one = estimate("pythia-160m", spec);
  const json both = estimate("pythia-160m", spec + "+" + kvr);
  const std::uint64_t chosen =
      flops(one, "speculator prefill") + flops(one, "look-ahead") + flops(one, "score");
  for (const json* e : {&random, &both}) {
    check_equal(*e, chain,
                {"message_bytes", "messages", "partition_tokens", "kv_cache_bytes",
                 "decode_flops_per_token"});
  }
  // Rotations of kept tokens read their positions, 4 bytes each: of 2 sequences, at most 250 tokens
  // in a row on both ranks, queries and keys, 12 layers, at no less than half of 2039 GB/s.
  const double positions_s = random["ttft_s"].get<double>() - chain["ttft_s"].get<double>();
  CHECK(positions_s > 0);
  CHECK(positions_s < 4.0 * 2 * 250 * 2 * 12 / (2039e9 / 2));
  CHECK(random["prefill_flops"] == chain["prefill_flops"]);
  CHECK(both["prefill_flops"] == chain["prefill_flops"].get<std::uint64_t>() + 2 * chosen);
  const double before = one["ttft_s"].get<double>() - one["ttft_parts_s"]["base"].get<double>();
  CHECK(both["ttft_s"].get<double>() ==
        near(before + random["ttft_s"].get<double>()).epsilon(1e-12));
  CHECK(both["ttft_parts_s"]["speculator"] == one["ttft_parts_s"]["speculator"]);
  CHECK(both["ttft_parts_s"]["base"] == random["ttft_s"]);
  // The speculator's weights and cache are on both devices.
  CHECK(both["peak_memory_bytes"].get<std::uint64_t>() >
        both["weight_bytes"].get<std::uint64_t>() + 2 * 1000 * 6 * 2 * 512 * 2);
}

TEST_CASE("composed: the parts of TTFT are what each pass takes alone") {
  const auto seconds = [](const json& e, const char* part) {
    return e["ttft_parts_s"][part].get<double>();
  };
  const auto sum = [](const json& e) {
    double s = 0;
    for (const auto& [part, value] : e["ttft_parts_s"].items()) s += value.get<double>();
    return s;
  };
  const json plain = estimate("pythia-160m", "plain");
  CHECK(plain["ttft_parts_s"].size() == 1);
  CHECK(plain["ttft_parts_s"]["base"] == plain["ttft_s"]);
  const json e = estimate(
      "pythia-160m",
      "specprefill:speculator=pythia-70m,keep=0.25,lookahead=4+kvp:auxiliary=lp-0.50", 30000);
  CHECK(e["ttft_parts_s"].size() == 6);
  CHECK(sum(e) == near(e["ttft_s"].get<double>()).epsilon(1e-12));
  // The speculator keeps its last query besides.
  CHECK(seconds(e, "speculator") ==
        near(estimate("pythia-70m", "plain", 30000)["ttft_s"].get<double>()).epsilon(1e-2));
  std::map<std::string, double> rows;
  for (const json& row : e["breakdown"]) {
    const std::string pass = row["pass"];
    rows[row["phase"] == "predictor" ? "predictor" : pass] += row["seconds"].get<double>();
  }
  for (const auto& [pass, part] :
       std::map<std::string, const char*>{{"auxiliary", "auxiliary"},
                                          {"predictor", "predictor"},
                                          {"score", "score"},
                                          {"speculator prefill", "speculator"}}) {
    CAPTURE(pass);
    CHECK(rows.at(pass) == near(seconds(e, part)).epsilon(1e-9));
  }
  const json probe = estimate("pythia-160m", "static-prune:keep=0.25,probe=0.5");
  CHECK(probe["ttft_parts_s"].size() == 3);
  CHECK(seconds(probe, "probe") > 0);
}

TEST_CASE("composed: Slim attention reads the kept keys once for each head") {
  const json e = estimate("opt-1.3b", "random-prune:keep=0.5+slim:option=kcache");
  const json whole = estimate("opt-1.3b", "slim:option=kcache");
  // 24 layers of keys 2048 wide.
  CHECK(e["kv_cache_bytes"] == 2 * (500 + 8) * 24 * 2048 * 2);
  CHECK(e["kv_cache_ratio"].get<double>() == near((508.0 / 1008) * 0.5).epsilon(1e-12));
  // Each of the 500 dropped tokens would cost each of 32 heads q·k of 64, a sum of 2048 and 5.
  CHECK(whole["decode_flops_per_token"].get<std::uint64_t>() -
            e["decode_flops_per_token"].get<std::uint64_t>() ==
        500 * 24 * 32 * std::uint64_t{2 * 64 + 2 * 2048 + 5});
}

TEST_CASE("composed: devices send what the cache method keeps, and compute the rest anew") {
  const json mlkv = estimate("pythia-160m", "mlkv:layers=4,heads=2");
  const std::string parts = "p=3,partition=500/300/200";
  const json chain = estimate("pythia-160m", "mlkv:layers=4,heads=2+kvr:" + parts);
  // 4 layers of 2 heads of keys and of values; first 500 tokens are sent on, then 800.
  const std::uint64_t token_bytes = 4 * 2 * 2 * 64 * 2;
  CHECK(chain["message_bytes"] == 2 * (500 + 800) * token_bytes);
  CHECK(chain["messages"] == 2 * 4);
  check_equal(
      chain, mlkv,
      {"prefill_flops", "tpot_s", "decode_flops_per_token", "kv_cache_bytes", "weight_bytes"});
  CHECK(chain["ttft_s"] < mlkv["ttft_s"]);
  // A ring of two: each sends its half once.
  const json ring = estimate("pythia-160m", "mlkv:layers=4,heads=2+tsp:p=2");
  CHECK(ring["message_bytes"] == 2 * 1000 * token_bytes);

  // Keys alone travel. Behind the first 600 tokens their values are computed again, and their keys,
  // kept unrotated, rotated (3 FLOPs a number).
  const json plain = estimate("llama-7b", "plain");
  const json slim = estimate("llama-7b", "slim:option=kcache+kvr:p=2,partition=600/400");
  CHECK(slim["message_bytes"] == 2 * std::uint64_t{600} * 32 * 4096 * 2);
  CHECK(slim["prefill_flops"].get<std::uint64_t>() - plain["prefill_flops"].get<std::uint64_t>() ==
        2 * std::uint64_t{600} * 32 * (2 * 4096 * 4096 + 3 * 4096));
  CHECK(slim["kv_cache_ratio"] == 0.5);
}

TEST_CASE("composed: a neutral method changes nothing, on either side of another") {
  for (const std::string method : {"mlkv:layers=4,heads=2", "slim:option=kcache"}) {
    const json alone = estimate("pythia-160m", method);
    for (const std::string neutral : {"plain", "random-prune:keep=1", "kvr:p=1", "tsp:p=1"}) {
      CAPTURE(method);
      CAPTURE(neutral);
      check_same(estimate("pythia-160m", method + "+" + neutral), alone);
      check_same(estimate("pythia-160m", neutral + "+" + method), alone);
    }
  }
  const json kvp = estimate("pythia-160m", "kvp:auxiliary=lp-0.50");
  check_same(estimate("pythia-160m", "kvp:auxiliary=lp-0.50+random-prune:keep=1"), kvp);
  const json pruned = estimate("pythia-160m", "static-prune:keep=0.5");
  check_same(estimate("pythia-160m", "static-prune:keep=0.5+mlkv:layers=12,heads=12"), pruned);
}

const std::vector<std::pair<std::string, std::string>> refusals{
    {"kvp:auxiliary=lp-0.50+mlkv:layers=4,heads=2",
     "cannot be combined with a method that changes the KV cache"},
    {"mlkv:layers=4,heads=2+kvp:auxiliary=lp-0.50",
     "cannot be combined with a method that changes the KV cache"},
    {"kvp:auxiliary=lp-0.50+lazyllm:begin=0.8,end=0.4", "its layers have no tokens to drop"},
    {"specprefill:keep=0.5,reuse=kept+kvp:auxiliary=lp-0.50", "both fill the base model's cache"},
    {"kvp:auxiliary=lp-0.50,mode=likelihood+random-prune:keep=0.5", "have no likelihood"},
    {"kvp:auxiliary=lp-0.50+slim", "cannot be combined with a method that changes the KV cache"},
    {"kvp:auxiliary=lp-0.50+kvr:p=2", "cannot be combined with kvp"},
    {"lazyllm:begin=0.8,end=0.4+kvr:p=2", "cannot be combined with lazyllm"},
    {"specprefill:keep=0.5,reuse=kept+tsp:p=2", "the base model one token to read"},
    {"random-prune:keep=0.5+kvp:auxiliary=lp-0.50+kvr:p=2", "cannot be combined with kvp"},
    {"random-prune:keep=0.5+slim:option=kcache", "rotates by places in the cache"},
    {"lazyllm:begin=0.8,end=0.4+mlkv:layers=4,heads=2", "the model pythia-160m, where layers read"},
    {"specprefill:keep=0.5,reuse=kept+mlkv:layers=4,heads=2", "read the keys and values of others"},
};

TEST_CASE("composed: what does not compose is one line of estimate, and a row of sweep") {
  const TestFolder folder;
  const std::string file = folder.file("sweep.csv");
  const std::string point = device + "--model pythia-160m --prompt-len 1000 --method ";
  std::string methods = "plain";
  for (const auto& [method, words] : refusals) {
    check_refused("estimate " + point + "'" + method + "'", words);
    methods += ";" + method;
  }
  run_well("sweep " + point + "'" + methods + "' --csv " + file);
  const CsvTable table = CsvTable::read(file);
  REQUIRE(table.size() == 1 + refusals.size());
  CHECK(table[0].text("error").empty());
  for (std::size_t i = 0; i < refusals.size(); ++i) {
    const CsvRow row = table[i + 1];
    CHECK(row.text("method") == refusals[i].first);
    CHECK(row.text("ttft_s").empty());
    CHECK(contains(row.text("error"), refusals[i].second));
  }
}

TEST_CASE("composed: a row of sweep is the estimate of the same methods") {
  const TestFolder folder;
  const std::string file = folder.file("sweep.csv");
  const std::vector<std::string> methods{
      "random-prune:keep=0.25+mlkv:layers=4,heads=2",
      "mlkv:layers=4,heads=2+kvr:p=2",
      "specprefill:speculator=pythia-70m,keep=0.25,lookahead=4+mlkv:layers=4,heads=2",
      "static-prune:keep=0.25+kvp:auxiliary=lp-0.50",
      "specprefill:speculator=pythia-70m,keep=0.25+kvr:p=3",
  };
  run_well("sweep " + device + "--model pythia-160m --output-len 8 --prompt-len 1000 --method '" +
           fmt::format("{}", fmt::join(methods, ";")) + "' --csv " + file);
  const CsvTable table = CsvTable::read(file);
  REQUIRE(table.size() == methods.size());
  for (std::size_t i = 0; i < methods.size(); ++i) {
    CAPTURE(methods[i]);
    const CsvRow row = table[i];
    const json e = estimate("pythia-160m", methods[i]);
    check_row(row, e,
              {"ttft_s", "tpot_s", "prefill_flops", "decode_bytes_per_token", "kv_cache_bytes",
               "weight_bytes", "peak_memory_bytes", "ttft_speedup", "kv_cache_ratio"},
              1e-9);
    const json& parts = e["ttft_parts_s"];
    for (const char* part :
         {"speculator", "look_ahead", "score", "probe", "auxiliary", "predictor", "base"}) {
      const std::string cell = row.text("ttft_" + std::string(part) + "_s");
      CAPTURE(part);
      REQUIRE(cell.empty() == (parts.size() == 1 || !parts.contains(part)));
      if (cell.empty()) continue;
      CHECK(std::stod(cell) == near(parts[part].get<double>()).epsilon(1e-9));
    }
  }
}

TEST_CASE("composed: projections of latents are the products that an engine runs") {
  const json e = run_json(
      "estimate --quiet --json --breakdown --model deepseek-v3 --hardware h200 --tp 8 --engine "
      "sglang --prompt-len 100 --output-len 5");
  std::map<std::string, std::string> operators;  // of a step's layers, by label
  for (const json& row : e.at("breakdown")) {
    if (row.at("pass") == "decode") operators[row.at("label")] = row.at("operator");
  }
  // q_a_proj beside kv_a_proj_with_mqa, q_b_proj, and a rotation of both in one kernel.
  CHECK(operators.at("query_latent+kv_latent+key_rotary") == "linear");
  CHECK(operators.at("query_nope+query_rotary") == "linear");
  CHECK(operators.at("query_rope+key_rope") == "rope");
  CHECK_FALSE(operators.contains("kv_latent"));
}

}  // namespace
}  // namespace kvcast::cli
