#include "cli/parallel_options.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "cli/command.h"
#include "cli/request_options.h"
#include "model/error.h"
#include "model/quantity.h"
#include "simulate/platform.h"

namespace kvcast::cli {
namespace {

constexpr std::uint64_t most_devices = 4096;

search::ChainLink parse_link(const ParallelOptions& o, const roofline::Hardware& hw,
                             roofline::Mode mode) {
  const bool calibrated = mode == roofline::Mode::Calibrated;
  search::ChainLink link;
  if (hw.links.empty() && (o.link_gb_per_s.empty() || o.link_latency_s.empty())) {
    throw Error("hardware " + hw.name, "no link", "--link-gb-per-s and --link-latency-s");
  }
  if (!hw.links.empty()) {
    const auto nvlink = hw.links.find("nvlink");
    const roofline::Link& first =
        nvlink == hw.links.end() ? hw.links.begin()->second : nvlink->second;
    link.bytes_per_s =
        first.bandwidth.value * (calibrated && hw.link_rate ? hw.link_rate->value : 1);
    link.latency_s = first.latency.value;
  }
  if (!o.link_gb_per_s.empty()) {
    link.bytes_per_s = parse_link_rate(o.link_gb_per_s);
  }
  if (!o.link_latency_s.empty()) {
    link.latency_s = parse_number(o.link_latency_s, "--link-latency-s", true);
  }
  link.order = parse_flag("--send-order", o.send_order, search::parse_send_order);
  const auto host_s = [&](const auto& latency) {
    return calibrated && latency ? latency->value : 0;
  };
  link.host_message_s = host_s(hw.host_message_latency);
  link.host_exchange_s = host_s(hw.host_exchange_latency);
  return link;
}

}  // namespace

double parse_number(const std::string& text, const char* flag, bool zero) {
  double number = -1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const bool whole = error == std::errc() && stop == end && std::isfinite(number);
  if (!whole || number < 0 || (number == 0 && !zero)) {
    throw Error(flag, "'" + text + "'", zero ? "a number of at least 0" : "a number above 0");
  }
  return number;
}

double parse_link_rate(const std::string& text) {
  constexpr const char* flag = "--link-gb-per-s";
  constexpr double giga = 1e9;
  const double bytes_per_s = giga * parse_number(text, flag, false);
  if (bytes_per_s < simulate::least_bytes_per_s || !std::isfinite(bytes_per_s)) {
    throw Error(flag, "'" + text + "'",
                fmt::format("at least {:g}, a byte a second, and what a number can hold in bytes",
                            simulate::least_bytes_per_s / giga));
  }
  return bytes_per_s;
}

std::size_t parse_devices(const std::string& text, const char* flag) {
  const std::uint64_t devices = parse_token_count(text, flag);
  if (devices > most_devices) {
    throw Error(flag, "'" + text + "'", fmt::format("at most {} devices", most_devices));
  }
  return devices;
}

void ParallelOptions::add_to(CLI::App& c, bool required) {
  c.add_option("--model,-m", model, "catalog name, config.json, or a folder with one")
      ->required(required)
      ->type_name("MODEL");
  c.add_option("--hardware", hardware, "catalog name or a JSON file; of each device")
      ->required(required)
      ->type_name("HW");
  c.add_option("--attention", attention, "eager or tiled")
      ->type_name("KIND")
      ->capture_default_str();
  c.add_option("--dtype", dtype, "of weights, activations and cache")
      ->type_name("DTYPE")
      ->capture_default_str();
  c.add_option("--mode", mode, "calibrated or speed-of-light")
      ->type_name("MODE")
      ->capture_default_str();
  c.add_option("--link-gb-per-s", link_gb_per_s,
               "from each device to the next, 1e9 bytes a second; default: the hardware's link")
      ->type_name("GB/S");
  c.add_option("--link-latency-s", link_latency_s,
               "of a whole message, from device to device; default: the hardware's link")
      ->type_name("SECONDS");
  c.add_option("--send-order", send_order,
               "fifo: messages leave one at a time; async: they share the link; block: a device "
               "waits until its message has left")
      ->type_name("ORDER")
      ->capture_default_str();
}

void ParallelOptions::add_algorithm_to(CLI::App& c) {
  c.add_option("--algorithm", algorithm,
               "balance, coordinate, golden (2 devices) or grid (the paper's)")
      ->type_name("NAME")
      ->capture_default_str();
}

search::Runahead make_runahead(const ParallelOptions& o, const Catalog& catalog) {
  RequestOptions request;
  request.model = o.model;
  request.hardware = o.hardware;
  request.attention = o.attention;
  request.dtype = o.dtype;
  request.mode = o.mode;
  const roofline::Configuration c = parse_configuration(request, catalog);
  const search::ChainLink link = parse_link(o, c.hardware, c.mode);
  return {simulate::LayerTimes(c.architecture, {}, c.lowering,
                               roofline::make_rates(c.hardware, c.lowering, c.mode)),
          link};
}

search::TableSettings table_settings(const ParallelOptions& o, const search::Runahead& runahead) {
  return {{"kvcast", KVCAST_VERSION},
          {"model", o.model},
          {"hardware", o.hardware},
          {"attention", o.attention},
          {"dtype", o.dtype},
          {"mode", o.mode},
          {"link_bytes_per_s", shortest(runahead.link().bytes_per_s)},
          {"link_latency_s", shortest(runahead.link().latency_s)},
          {"send_order", o.send_order},
          {"algorithm", o.algorithm}};
}

}  // namespace kvcast::cli
