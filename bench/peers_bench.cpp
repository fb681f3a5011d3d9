// The executor beside other programs on the same file: each round runs kvcast and then each peer,
// so that a host that changes speed changes it for all of them; medians of the rounds.
//
// A peer is a program with the arguments and the JSON output of llama.cpp's llama-bench; a
// whisper peer prints the "encode time" line of whisper.cpp's whisper-bench.
#include <cstdio>
#include <functional>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/command_output.h"
#include "bench/guarded.h"
#include "bench/shapes.h"
#include "model/base/error.h"
#include "model/execute/machine_probe.h"
#include "model/graph/work.h"

namespace kvcast::execute {
namespace {

struct Options {
  std::vector<std::string> models;
  std::vector<std::string> arithmetic{"fp32"};
  std::vector<std::string> peers;
  std::vector<std::size_t> prompts{128, 512, 1024};
  std::size_t generated = 32;
  std::string whisper;
  std::vector<std::string> whisper_peers;
  int rounds = 5;
  int threads = 0;
};

struct Peer {
  std::string name;
  std::string command;
};

/// Of NAME=COMMAND.
std::vector<Peer> parse_peers(const std::vector<std::string>& texts) {
  std::vector<Peer> peers;
  for (const std::string& text : texts) {
    const std::size_t sign = text.find('=');
    if (sign == std::string::npos || sign == 0 || sign + 1 == text.size()) {
      throw Error("--peer", "'" + text + "'", "NAME=COMMAND");
    }
    peers.push_back({text.substr(0, sign), text.substr(sign + 1)});
  }
  return peers;
}

/// Tokens a second of one llama-bench run: prefill of `prompt` tokens, or `generated` tokens.
double llama_bench(const Peer& peer, const Options& o, const std::string& model, std::size_t prompt,
                   std::size_t generated) {
  const std::string command =
      fmt::format("{} -m '{}' -p {} -n {} -t {} -r 1 -o json 2>/dev/null", peer.command, model,
                  prompt, generated, use_threads(o.threads));
  const auto j = nlohmann::json::parse(output_of(command), nullptr, false);
  if (!j.is_array() || j.empty() || !j[0].contains("avg_ts")) {
    throw Error(command, "another output", "llama-bench's JSON with avg_ts");
  }
  return j[0]["avg_ts"].get<double>();
}

/// Seconds of one encoder pass as whisper-bench prints them.
double whisper_bench(const Peer& peer, const Options& o) {
  const std::string command = fmt::format("{} -t {} 2>&1", peer.command, use_threads(o.threads));
  const std::string text = output_of(command);
  std::smatch found;
  if (!std::regex_search(text, found, std::regex(R"(encode time = +([0-9.]+) ms)"))) {
    throw Error(command, "another output", "a line 'encode time = ... ms'");
  }
  return std::stod(found[1]) / 1e3;
}

/// One way in which kvcast runs.
struct Ours {
  std::string name;
  std::function<double()> measure;
  double bytes = 0;  ///< that a token reads; 0: not a matter of reading
};

/// A line for each of ours: all of them and each peer in turns, medians. `theirs` and Ours::measure
/// measure once; `higher`: more is faster, tokens a second.
void compare(const std::string& what, const char* unit, bool higher, int rounds,
             const std::vector<Peer>& peers, const std::vector<Ours>& ours,
             const std::function<double(const Peer&)>& theirs) {
  std::vector<std::vector<double>> own(ours.size());
  std::vector<std::vector<double>> others(peers.size());
  std::vector<double> reads;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < ours.size(); ++i) own[i].push_back(ours[i].measure());
    for (std::size_t p = 0; p < peers.size(); ++p) others[p].push_back(theirs(peers[p]));
    if (ours[0].bytes > 0) reads.push_back(measure_read_bandwidth());
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double value = median(own[i]);
    std::printf("%-8s %-5s %9.2f %s", what.c_str(), ours[i].name.c_str(), value, unit);
    if (ours[i].bytes > 0) {
      std::printf(", %.0f %% of the read rate", 100 * value * ours[i].bytes / median(reads));
    }
    for (std::size_t p = 0; p < peers.size(); ++p) {
      const double other = median(others[p]);
      std::printf("   %s %.2f, %.2f x", peers[p].name.c_str(), other,
                  higher ? value / other : other / value);
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

/// Bytes of a decode step with so many tokens in the cache.
double step_bytes(const Session& session, std::uint64_t kv_len) {
  const Recording& r = session.recording();
  const SymbolValues values = r.symbols.resolve({1, 1, kv_len});
  return static_cast<double>(total_work(r.decode()).bytes().at(values));
}

void compare_llama(const Options& o, const std::string& model) {
  const std::vector<Peer> peers = parse_peers(o.peers);
  const Checkpoint checkpoint(model);
  std::vector<std::unique_ptr<Session>> sessions;
  for (const std::string& name : o.arithmetic) {
    // llama.cpp's graphs leave these rows out too.
    sessions.push_back(std::make_unique<Session>(
        checkpoint, SessionOptions{.skip_unread_rows = true,
                                   .weights = stored_weight_types(checkpoint),
                                   .arithmetic = parse_arithmetic(name, "--arithmetic")}));
  }
  const Architecture& a = checkpoint.architecture();
  std::printf("%s, %d threads, median of %d rounds, tokens a second; x: kvcast over the peer\n",
              model.c_str(), use_threads(o.threads), o.rounds);
  const auto all = [&](const Request& request, bool decodes) {
    std::vector<Ours> ours;
    for (std::size_t i = 0; i < sessions.size(); ++i) {
      const Session& session = *sessions[i];
      session.run(request);  // touches memory; llama-bench warms up itself
      const auto tokens = static_cast<double>(request.tokens[0].size());
      ours.push_back({o.arithmetic[i],
                      [&session, &request, decodes, tokens] {
                        const Generation g = session.run(request);
                        return decodes ? 1 / g.tpot_s : tokens / g.ttft_s;
                      },
                      decodes ? step_bytes(session, 1 + o.generated / 2) : 0});
    }
    return ours;
  };
  for (const std::size_t prompt : o.prompts) {
    const Request request = made_up_request(a, prompt, 1);
    compare(fmt::format("pp{}", prompt), "tok/s", true, o.rounds, peers, all(request, false),
            [&](const Peer& peer) { return llama_bench(peer, o, model, prompt, 0); });
  }
  if (o.generated == 0) return;
  const Request request = made_up_request(a, 1, o.generated + 1);
  compare(fmt::format("tg{}", o.generated), "tok/s", true, o.rounds, peers, all(request, true),
          [&](const Peer& peer) { return llama_bench(peer, o, model, 0, o.generated); });
}

/// Ours is the whole prefill: the encoder, every layer's cross keys and values, a decoder token.
void compare_whisper(const Options& o) {
  const std::vector<Peer> peers = parse_peers(o.whisper_peers);
  const Checkpoint checkpoint(o.whisper);
  const Session session(checkpoint, {});
  const Architecture& a = session.architecture();
  const Request request = made_up_request(a, a.max_source_positions, 1);
  session.run(request);
  std::printf("%s, %d threads, median of %d rounds, seconds of an encoder pass\n", a.name.c_str(),
              use_threads(o.threads), o.rounds);
  compare("encode", "s", false, o.rounds, peers,
          {{"fp32", [&] { return session.run(request).ttft_s; }}},
          [&](const Peer& peer) { return whisper_bench(peer, o); });
}

}  // namespace
}  // namespace kvcast::execute

int main(int argc, char** argv) {
  kvcast::execute::Options o;
  CLI::App app("kvcast beside other programs");
  app.add_option("--gguf", o.models, "the models that all of them run");
  app.add_option("--arithmetic", o.arithmetic, "kvcast's: fp32, bf16, int8")->delimiter(',');
  app.add_option("--peer", o.peers, "NAME=COMMAND, a llama-bench; repeatable");
  app.add_option("--prompt-len", o.prompts, "prompt lengths")->delimiter(',');
  app.add_option("--output-len", o.generated, "tokens to generate; 0: none");
  app.add_option("--whisper", o.whisper, "a Whisper checkpoint");
  app.add_option("--whisper-peer", o.whisper_peers, "NAME=COMMAND, a whisper-bench; repeatable");
  app.add_option("--rounds", o.rounds, "")->check(CLI::PositiveNumber);
  app.add_option("--threads", o.threads, "")->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  if (o.models.empty() && o.whisper.empty()) {
    std::printf("peers: none given; see peers_bench --help\n");
    return 0;
  }
  return kvcast::run_guarded(argv[0], [&] {
    for (const std::string& model : o.models) compare_llama(o, model);
    if (!o.whisper.empty()) compare_whisper(o);
  });
}
