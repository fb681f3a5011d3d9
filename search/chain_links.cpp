#include "search/chain_links.h"

#include <algorithm>
#include <limits>
#include <set>

#include "model/base/error.h"

namespace kvcast::search {
namespace {

const std::string& chosen_name(const roofline::Hardware& hardware, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [known, link] : hardware.links) names.push_back(known);
  if (names.empty()) {
    throw Error("hardware " + hardware.name,
                name.empty() ? "no links" : "link '" + name + "', and it lists no links",
                "--link-gb-per-s and --link-latency-s");
  }
  const auto found = hardware.links.find(name.empty() ? "nvlink" : name);
  if (found != hardware.links.end()) return found->first;
  if (!name.empty()) throw unknown_name("link", name, names);
  return hardware.links.begin()->first;
}

}  // namespace

simulate::ExchangeCost exchange_cost(const roofline::Hardware& hardware, roofline::Mode mode) {
  if (mode != roofline::Mode::Calibrated) return {};
  simulate::ExchangeCost cost;
  if (hardware.host_message_latency) cost.message_s = hardware.host_message_latency->value;
  if (hardware.host_exchange_latency) cost.exchange_s = hardware.host_exchange_latency->value;
  if (hardware.lockstep) cost.lockstep = hardware.lockstep->value;
  return cost;
}

HardwareLink hardware_link(const roofline::Hardware& hardware, roofline::Mode mode,
                           const std::string& name) {
  HardwareLink chosen;
  chosen.name = chosen_name(hardware, name);
  const roofline::Link& link = hardware.links.at(chosen.name);
  const bool has_rate = mode == roofline::Mode::Calibrated && hardware.link_rate;
  const roofline::Sourced& rate = has_rate ? *hardware.link_rate : link.bandwidth;
  const double share = has_rate ? rate.value : 1;
  chosen.link.bytes_per_s = share * link.bandwidth.value;
  chosen.link.latency_s = link.latency.value;
  chosen.link.exchange = exchange_cost(hardware, mode);
  chosen.factors = {{chosen.name + " bandwidth", link.bandwidth.value, share,
                     std::string(roofline::name(rate.source)), rate.reference},
                    {chosen.name + " latency", link.latency.value, 1,
                     std::string(roofline::name(link.latency.source)), link.latency.reference}};
  return chosen;
}

PlatformChain platform_chain(const simulate::Platform& platform, SendOrder order,
                             const simulate::ExchangeCost& cost, std::uint32_t devices,
                             std::uint32_t stride) {
  PlatformChain chain;
  chain.link = {std::numeric_limits<double>::max(), 0, order, cost};
  std::set<std::uint32_t> used;
  for (std::uint32_t device = 0; device + stride < devices; device += stride) {
    double bytes_per_s = std::numeric_limits<double>::max();
    double latency_s = 0;
    for (const std::uint32_t l : platform.route(device, platform.routes_to(device + stride))) {
      bytes_per_s = std::min(bytes_per_s, platform.links()[l].bytes_per_s);
      latency_s += platform.links()[l].latency_s;
      chain.exact &= used.insert(l).second;
    }
    const bool first = device == 0;
    chain.exact &=
        first || (bytes_per_s == chain.link.bytes_per_s && latency_s == chain.link.latency_s);
    chain.link.bytes_per_s = std::min(chain.link.bytes_per_s, bytes_per_s);
    chain.link.latency_s = std::max(chain.link.latency_s, latency_s);
  }
  return chain;
}

}  // namespace kvcast::search
