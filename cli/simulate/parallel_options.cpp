#include "cli/simulate/parallel_options.h"

#include <utility>

#include <fmt/format.h>

#include "cli/frame/command.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/io/files/number_text.h"
#include "model/methods/placement.h"
#include "simulate/platform.h"

namespace kvcast::cli {
namespace {

constexpr std::uint64_t most_devices = 4096;

/// --link-gb-per-s, in bytes per second.
double parse_link_rate(const std::string& text) {
  constexpr const char* flag = "--link-gb-per-s";
  constexpr double giga = 1e9;
  const double bytes_per_s = giga * parse_flag_number(text, flag, false);
  if (bytes_per_s < simulate::least_bytes_per_s) {
    throw Error(
        flag, "'" + text + "'",
        fmt::format("at least {:g}, one byte per second", simulate::least_bytes_per_s / giga));
  }
  return bytes_per_s;
}

}  // namespace

void LinkFlags::add_to(Command c) {
  c.add("--link", name);
  c.add("--link-gb-per-s", gb_per_s);
  c.add("--link-latency-s", latency_s);
}

search::HardwareLink parse_link(const LinkFlags& flags, const roofline::Hardware& hw,
                                roofline::Mode mode) {
  search::HardwareLink link;
  const bool both_numbers = !flags.gb_per_s.empty() && !flags.latency_s.empty();
  if (!flags.name.empty()) {
    if (both_numbers) {
      throw Error(
          "--link: cannot be combined with both --link-gb-per-s and --link-latency-s, which "
          "replace all of it");
    }
    link = parse_flag("--link", flags.name, [&](const std::string& name) {
      return search::hardware_link(hw, mode, name);
    });
  } else if (!both_numbers) {
    link = search::hardware_link(hw, mode);
  } else {
    link.link.exchange = search::exchange_cost(hw, mode);
  }
  const auto forget = [&](const char* what) {
    std::erase_if(link.factors,
                  [&](const roofline::UsedFactor& f) { return f.name.ends_with(what); });
  };
  if (!flags.gb_per_s.empty()) {
    link.link.bytes_per_s = parse_link_rate(flags.gb_per_s);
    forget("bandwidth");
  }
  if (!flags.latency_s.empty()) {
    link.link.latency_s = parse_flag_number(flags.latency_s, "--link-latency-s", true);
    forget("latency");
  }
  return link;
}

std::optional<search::HardwareLink> parse_placement_link(const LinkFlags& flags,
                                                         const roofline::Configuration& c) {
  for (const auto& [flag, value] :
       {std::pair{"--link", &flags.name}, std::pair{"--link-gb-per-s", &flags.gb_per_s},
        std::pair{"--link-latency-s", &flags.latency_s}}) {
    if (value->empty()) continue;
    if (!find_placement(c.methods)) {
      throw Error(
          flag, "method " + to_string(c.methods),
          "kvr:p=P or tsp:p=P among the methods; --platform is what joins the devices of --tp, "
          "--pp, --ep and --dp");
    }
    return parse_link(flags, c.hardware, c.mode);
  }
  return {};
}

double parse_flag_number(const std::string& text, const char* flag, bool zero) {
  double number = -1;
  const bool whole = parse_number(text, number);
  if (!whole || !(number >= 0) || (number == 0 && !zero)) {
    throw Error(flag, "'" + text + "'", zero ? "a number of at least 0" : "a number above 0");
  }
  if (number != 0 && !is_computable(number)) throw Error(flag, "'" + text + "'", computable_range);
  return number;
}

std::size_t parse_devices(const std::string& text, const char* flag) {
  const std::uint64_t devices = parse_token_count(text, flag);
  if (devices > most_devices) {
    throw Error(flag, "'" + text + "'", fmt::format("at most {} devices", most_devices));
  }
  return devices;
}

void ParallelOptions::add_to(Command c, bool required) {
  request.add_device_flags_to(c, required);
  link.add_to(c);
  c.add("--send-order", send_order);
}

void ParallelOptions::add_algorithm_to(Command c) {
  c.add("--algorithm NAME", algorithm,
        "balance, coordinate, golden (2 devices) or grid (the paper's)");
}

search::Runahead make_runahead(const ParallelOptions& o, const Catalog& catalog) {
  const roofline::Configuration c = parse_configuration(o.request, catalog);
  search::ChainLink link = parse_link(o.link, c.hardware, c.mode).link;
  link.order = parse_flag("--send-order", o.send_order, simulate::parse_send_order);
  return {simulate::LayerTimes(c.architecture, {}, c.lowering,
                               roofline::make_rates(c.hardware, c.lowering, c.mode)),
          link};
}

search::TableSettings table_settings(const ParallelOptions& o, const Catalog& catalog,
                                     const search::Runahead& runahead) {
  const DType dtype = parse_dtype_of(o.request, load_model(catalog, o.request.model));
  return {{"kvcast", KVCAST_VERSION},
          {"model", o.request.model},
          {"hardware", o.request.hardware},
          {"attention", o.request.attention},
          {"dtype", std::string(name(dtype))},
          {"mode", o.request.mode},
          {"link_bytes_per_s", shortest(runahead.link().bytes_per_s)},
          {"link_latency_s", shortest(runahead.link().latency_s)},
          {"send_order", o.send_order},
          {"algorithm", o.algorithm}};
}

}  // namespace kvcast::cli
