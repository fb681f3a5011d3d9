// The closed form of a chain against the event simulator, which knows nothing of it.
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "model/io/weights/catalog.h"
#include "roofline/hardware.h"
#include "search/runahead.h"
#include "simulate/layer_times.h"
#include "simulate/simulation.h"
#include "simulate/topologies.h"
#include "tests/near.h"

namespace kvcast::search {
namespace {

TEST_CASE("search: the closed form ends when the simulator does") {
  const Catalog catalog(std::string(KVCAST_SOURCE_DIR) + "/data");
  const Lowering eager{Kernels::Eager, Kernels::Eager, DType::FP16, DType::FP16, DType::FP16};
  const roofline::Rates rates = roofline::make_rates(roofline::load_hardware(catalog, "a100-80gb"),
                                                     eager, roofline::Mode::Calibrated);
  const simulate::LayerTimes times(load_model(catalog, "llama-7b"), {}, eager, rates);
  const std::vector<std::vector<std::uint64_t>> partitions{
      {1024, 1024, 1024, 1024}, {1900, 1000, 700, 496}, {3000, 96}, {600, 500, 400, 300, 200, 96}};
  for (const SendOrder order : {SendOrder::Fifo, SendOrder::Async, SendOrder::Block}) {
    for (const double bytes_per_s : {1e9, 10e9, 300e9}) {
      for (const auto& partition : partitions) {
        CAPTURE(name(order));
        CAPTURE(bytes_per_s);
        const ChainLink link{bytes_per_s, 2e-5, order, 1e-5, 2e-3, 0.9};
        simulate::RunOptions options;
        options.send_order = order;
        const auto simulated = [&](simulate::Schedule schedule) {
          simulate::PrefillWork work = prefill_work(times, schedule, partition, {1e-5, 2e-3, 0.9});
          work.send_order = order;
          const auto devices = static_cast<std::uint32_t>(partition.size());
          const simulate::Platform ring =
              simulate::make_platform({simulate::TopologyKind::Ring}, devices, bytes_per_s, 2e-5);
          return simulate::Simulation(ring, prefill_programs(work)).run(options).ttft_s;
        };
        CHECK(Runahead(times, link).ttft_s(partition) ==
              near(simulated(simulate::Schedule::Kvr)).epsilon(1e-9));
        if (order == SendOrder::Async) continue;
        CHECK(tsp_ttft_s(times, link, partition) ==
              near(simulated(simulate::Schedule::Tsp)).epsilon(1e-9));
      }
    }
  }
}

}  // namespace
}  // namespace kvcast::search
