/// Generated workloads: how long requests are and which prefixes they share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "simulate/serving/arrivals.h"
#include "simulate/serving/requests.h"

namespace kvcast::simulate {

enum class LengthKind { Fixed, Uniform, Normal, LogNormal, Empirical };

/// Numbers of tokens.
struct Lengths {
  LengthKind kind = LengthKind::Fixed;
  std::uint64_t low = 1;   ///< fixed, uniform
  std::uint64_t high = 1;  ///< uniform: may be drawn too
  double mean = 1;         ///< normal, lognormal
  double sigma = 0;        ///< normal: deviation; lognormal: deviation of the logarithm
  std::uint64_t most = max_request_tokens;
  std::filesystem::path file = {};  ///< empirical
};

/// "1024" or "fixed:1024"; "uniform:LO,HI": each from LO to HI as likely as the others;
/// "normal:mean=M,sd=S[,max=N]"; "lognormal:mean=M,p50=P[,max=N]" or, with the deviation of the
/// logarithm, "lognormal:mean=M,sigma=S[,max=N]"; "empirical:FILE": drawn from the requests of a
/// file (see open_requests), or from a file with one length on each line. Mean and P50 are those
/// before numbers are rounded and cut to 1 and N. Throws Error starting with `place`.
Lengths parse_lengths(std::string_view text, const std::string& place);
std::string to_string(const Lengths& lengths);

/// Each prompt begins with one of `groups` prefixes, each as likely as the others; 0: none does.
struct SharedPrefixes {
  std::uint64_t groups = 0;
  std::uint64_t tokens = 0;  ///< of each, in addition to the prompt's drawn length
};

/// "prefix:groups=G,tokens=T". Throws Error starting with `place`.
SharedPrefixes parse_shared_prefixes(std::string_view text, const std::string& place);
std::string to_string(const SharedPrefixes& prefixes);

struct GeneratedLoad {
  Arrivals arrivals;
  Lengths prompt;
  Lengths output;
  SharedPrefixes prefixes = {};
  std::uint64_t block_tokens = 16;  ///< of the ids that shared prefixes give; at least 1
  std::uint64_t count = 0;          ///< of requests
  std::uint64_t seed = 1;
};

/// The same requests on every platform. Arrivals, prompts, outputs and prefixes are drawn
/// independently of each other, so another rate has the same lengths; but when both lengths come
/// from the same file of requests, they are those of one request. In a closed loop all arrive at 0.
/// With prefixes, a request's ids are those of its full blocks. Throws Error: a count of 0, and
/// what is wrong with a file of lengths.
std::unique_ptr<RequestSource> generate_requests(const GeneratedLoad& load);

}  // namespace kvcast::simulate
