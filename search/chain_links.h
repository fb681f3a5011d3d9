/// The links of a chain of ranks, from a hardware file or from a platform.
#pragma once

#include <string>
#include <vector>

#include "roofline/interconnect.h"
#include "roofline/rates.h"
#include "search/runahead.h"
#include "simulate/platform.h"

namespace kvcast::search {

/// What an exchange costs on the hardware: nothing in mode speed-of-light, which has no measured
/// factors.
simulate::ExchangeCost exchange_cost(const roofline::Hardware& hardware, roofline::Mode mode);

struct HardwareLink {
  std::string name;
  ChainLink link;
  std::vector<roofline::UsedFactor> factors;  ///< what its rate and latency rest on
};

/// The hardware's link of that name; without one "nvlink", or else the first. In mode calibrated
/// its rate is the share of its bandwidth that payload reaches (`link_rate`). Throws Error with the
/// nearest name, and where the file lists no links.
HardwareLink hardware_link(const roofline::Hardware& hardware, roofline::Mode mode,
                           const std::string& name = {});

/// How a platform's device i reaches device i + stride.
struct PlatformChain {
  ChainLink link;  ///< of the narrowest way and of the longest one
  /// All ways are like that and share no link, so the closed form equals the simulator.
  bool exact = true;
};
PlatformChain platform_chain(const simulate::Platform& platform, SendOrder order,
                             const simulate::ExchangeCost& cost, std::uint32_t devices,
                             std::uint32_t stride = 1);

}  // namespace kvcast::search
