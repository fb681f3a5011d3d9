// The executor beside other programs on the same file: each round runs kvcast and then each peer,
// so that a host that changes speed changes it for all of them; medians of the rounds.
//
// A peer is a program with the arguments and the JSON output of llama.cpp's llama-bench; a
// whisper peer prints the "encode time" line of whisper.cpp's whisper-bench.
#include <cstdio>
#include <functional>
#include <regex>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/guarded.h"
#include "bench/shapes.h"
#include "model/base/error.h"
#include "model/execute/machine_probe.h"

namespace kvcast::execute {
namespace {

struct Options {
  std::string model;
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

std::string output_of(const std::string& command) {
  const auto close = [](std::FILE* f) { return pclose(f); };
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw Error(command + ": cannot be started");
  std::string text;
  char piece[4096];
  for (std::size_t n = 0; (n = fread(piece, 1, sizeof piece, pipe)) > 0;) text.append(piece, n);
  if (close(pipe) != 0) throw Error(command + ": failed");
  return text;
}

/// Tokens a second of one llama-bench run: prefill of `prompt` tokens, or `generated` tokens.
double llama_bench(const Peer& peer, const Options& o, std::size_t prompt, std::size_t generated) {
  const std::string command =
      fmt::format("{} -m '{}' -p {} -n {} -t {} -r 1 -o json 2>/dev/null", peer.command, o.model,
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

/// One line of the table: kvcast and each peer in turns, medians. `ours` and `theirs` measure once;
/// `higher`: more is faster.
void compare(const std::string& what, const char* unit, bool higher, int rounds,
             const std::vector<Peer>& peers, const std::function<double()>& ours,
             const std::function<double(const Peer&)>& theirs) {
  std::vector<std::vector<double>> values(1 + peers.size());
  for (int round = 0; round < rounds; ++round) {
    values[0].push_back(ours());
    for (std::size_t p = 0; p < peers.size(); ++p) values[p + 1].push_back(theirs(peers[p]));
  }
  const double own = median(values[0]);
  std::printf("%-8s %9.2f %s", what.c_str(), own, unit);
  for (std::size_t p = 0; p < peers.size(); ++p) {
    const double other = median(values[p + 1]);
    std::printf("   %s %.2f, %.2f x", peers[p].name.c_str(), other,
                higher ? own / other : other / own);
  }
  std::printf("\n");
  std::fflush(stdout);
}

void compare_llama(const Options& o) {
  const std::vector<Peer> peers = parse_peers(o.peers);
  const Checkpoint checkpoint(o.model);
  // llama.cpp's graphs leave these rows out too.
  const Session session(checkpoint, {.skip_unread_rows = true});
  const Architecture& a = session.architecture();
  std::printf("%s, %d threads, median of %d rounds, tokens a second; x: kvcast over the peer\n",
              a.name.c_str(), use_threads(o.threads), o.rounds);
  for (const std::size_t prompt : o.prompts) {
    const Request request = made_up_request(a, prompt, 1);
    session.run(request);  // touches memory; llama-bench warms up itself
    compare(
        fmt::format("pp{}", prompt), "tok/s", true, o.rounds, peers,
        [&] { return static_cast<double>(prompt) / session.run(request).ttft_s; },
        [&](const Peer& peer) { return llama_bench(peer, o, prompt, 0); });
  }
  if (o.generated == 0) return;
  const Request request = made_up_request(a, 1, o.generated + 1);
  session.run(request);
  compare(
      fmt::format("tg{}", o.generated), "tok/s", true, o.rounds, peers,
      [&] { return 1 / session.run(request).tpot_s; },
      [&](const Peer& peer) { return llama_bench(peer, o, 0, o.generated); });
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
  compare(
      "encode", "s", false, o.rounds, peers, [&] { return session.run(request).ttft_s; },
      [&](const Peer& peer) { return whisper_bench(peer, o); });
}

}  // namespace
}  // namespace kvcast::execute

int main(int argc, char** argv) {
  kvcast::execute::Options o;
  CLI::App app("kvcast beside other programs");
  app.add_option("--gguf", o.model, "the model that all of them run");
  app.add_option("--peer", o.peers, "NAME=COMMAND, a llama-bench; repeatable");
  app.add_option("--prompt-len", o.prompts, "prompt lengths")->delimiter(',');
  app.add_option("--output-len", o.generated, "tokens to generate; 0: none");
  app.add_option("--whisper", o.whisper, "a Whisper checkpoint");
  app.add_option("--whisper-peer", o.whisper_peers, "NAME=COMMAND, a whisper-bench; repeatable");
  app.add_option("--rounds", o.rounds, "")->check(CLI::PositiveNumber);
  app.add_option("--threads", o.threads, "")->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  if (o.model.empty() && o.whisper.empty()) {
    std::printf("peers: none given; see peers_bench --help\n");
    return 0;
  }
  return kvcast::run_guarded(argv[0], [&] {
    if (!o.model.empty()) compare_llama(o);
    if (!o.whisper.empty()) compare_whisper(o);
  });
}
