#include "search/plan_choice.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/pareto_front.h"
#include "model/base/quantity.h"
#include "model/base/words.h"
#include "roofline/interconnect.h"
#include "search/placed_estimator.h"

namespace kvcast::search {
namespace {

constexpr Words<PlanGoal, 4> goals = {{{PlanGoal::Ttft, "ttft"},
                                       {PlanGoal::Tpot, "tpot"},
                                       {PlanGoal::Throughput, "throughput"},
                                       {PlanGoal::Fits, "fits"}}};

std::string seconds(double s) { return format_quantity(s, Dimension::Seconds); }

std::vector<Plan> all_plans(const PlanRequest& request) {
  const bool has_experts = layers_with_experts(request.configuration.architecture.decoder) > 0;
  const std::uint64_t most = request.most_devices;
  std::vector<Plan> plans;
  for (std::uint64_t tp = 1; tp <= most; tp *= 2) {
    for (std::uint64_t pp = 1; tp * pp <= most; pp *= 2) {
      for (std::uint64_t dp = 1; tp * pp * dp <= most; dp *= 2) {
        plans.push_back({{.tp = tp, .pp = pp, .dp = dp}});
        if (has_experts && tp * dp > 1) {
          plans.push_back({{.tp = tp, .pp = pp, .ep = tp * dp, .dp = dp}});
        }
      }
    }
    for (std::uint64_t runahead = 2; tp * runahead <= most; runahead *= 2) {
      plans.push_back({{.tp = tp}, runahead});
    }
  }
  return plans;
}

/// Fills in the estimate, or the reason why there is none.
void estimate(const PlanRequest& request, Plan& plan) {
  roofline::Configuration c = request.configuration;
  plan.parallelism.sequence_parallel = c.parallelism.sequence_parallel && plan.parallelism.tp > 1 &&
                                       takes_sequence_parallel(c.architecture);
  c.parallelism = plan.parallelism;
  if (!takes_micro_batches(plan)) c.micro_batches = 0;
  c.methods = methods_of(plan, std::move(c.methods));
  try {
    if (plan.parallelism.dp > request.point.batch) {
      throw Error(
          fmt::format("{} replicas for {} sequences", plan.parallelism.dp, request.point.batch));
    }
    plan.estimate = PlacedEstimator(c).at(request.point);
  } catch (const Error& e) {
    if (e.fault() == Fault::Run) throw;
    plan.reason = e.what();
    return;
  }
  const roofline::Estimate& e = plan.estimate;
  plan.tokens_per_s = tokens_per_s(request.point, e.ttft_s, e.tpot_s);
  if (!e.fits) {
    plan.reason = fmt::format("needs {} of {} a device",
                              format_quantity(e.peak_memory_bytes, Dimension::Bytes),
                              format_quantity(c.hardware.memory_capacity.value, Dimension::Bytes));
  } else if (request.most_ttft_s && e.ttft_s > *request.most_ttft_s) {
    plan.reason = fmt::format("TTFT {} above {}", seconds(e.ttft_s), seconds(*request.most_ttft_s));
  } else if (request.most_tpot_s && e.tpot_s > *request.most_tpot_s) {
    plan.reason = fmt::format("TPOT {} above {}", seconds(e.tpot_s), seconds(*request.most_tpot_s));
  }
}

/// What a goal ranks by first, least first; the others break ties.
std::array<double, 4> rank_of(const Plan& p, PlanGoal goal) {
  const auto devices = static_cast<double>(p.devices());
  const double rate = -p.tokens_per_s_per_device();
  switch (goal) {
    case PlanGoal::Ttft: return {p.estimate.ttft_s, devices, p.estimate.tpot_s, rate};
    case PlanGoal::Tpot: return {p.estimate.tpot_s, devices, p.estimate.ttft_s, rate};
    case PlanGoal::Throughput: return {rate, devices, p.estimate.tpot_s, p.estimate.ttft_s};
    case PlanGoal::Fits: return {devices, p.estimate.tpot_s, p.estimate.ttft_s, rate};
  }
  KVCAST_ASSERT(false);
  return {};
}

/// What the best plan has more of.
std::string worse_than(const Plan& best, const Plan& p, PlanGoal goal) {
  const std::string by = to_string(best);
  switch (goal) {
    case PlanGoal::Ttft:
      return fmt::format("TTFT {:.2f} x that of {}", p.estimate.ttft_s / best.estimate.ttft_s, by);
    case PlanGoal::Tpot:
      return fmt::format("TPOT {:.2f} x that of {}", p.estimate.tpot_s / best.estimate.tpot_s, by);
    case PlanGoal::Throughput:
      return fmt::format("{:.2f} of the tokens a device of {}",
                         p.tokens_per_s_per_device() / best.tokens_per_s_per_device(), by);
    case PlanGoal::Fits:
      return p.devices() > best.devices()
                 ? fmt::format("{} devices more than {}", p.devices() - best.devices(), by)
                 : fmt::format("TPOT {:.2f} x that of {}", p.estimate.tpot_s / best.estimate.tpot_s,
                               by);
  }
  KVCAST_ASSERT(false);
  return {};
}

}  // namespace

PlanGoal parse_plan_goal(std::string_view word) { return parse_word("objective", word, goals); }

std::string to_string(const Plan& plan) {
  std::string text = kvcast::to_string(plan.parallelism);
  if (plan.runahead > 1) {
    text += fmt::format("{}kvr {}", text.empty() ? "" : ", ", plan.runahead);
  }
  return text.empty() ? "one device" : text;
}

std::vector<MethodSpec> methods_of(const Plan& plan, std::vector<MethodSpec> methods) {
  std::erase(methods, MethodSpec{});  // plain
  if (plan.runahead == 1) return methods;
  MethodSpec& kvr = methods.emplace_back(MethodSpec{"kvr", {{"p", std::to_string(plan.runahead)}}});
  if (plan.runahead <= most_searched_ranks) kvr.options.emplace_back("partition", "search");
  return methods;
}

bool takes_micro_batches(const Plan& plan) {
  return !plan.parallelism.is_one() && plan.runahead == 1;
}

double tokens_per_s(const roofline::DesignPoint& point, double ttft_s, double tpot_s) {
  const auto outputs = static_cast<double>(point.output_len);
  return static_cast<double>(point.batch) * outputs / (ttft_s + (outputs - 1) * tpot_s);
}

Plans choose_plan(const PlanRequest& request) {
  if (request.most_devices == 0) throw Error("devices", "0", "at least 1");
  Plans plans;
  for (Plan& plan : all_plans(request)) {
    estimate(request, plan);
    (plan.reason.empty() ? plans.fit : plans.rejected).push_back(std::move(plan));
  }
  std::stable_sort(plans.fit.begin(), plans.fit.end(), [&](const Plan& a, const Plan& b) {
    return rank_of(a, request.goal) < rank_of(b, request.goal);
  });
  std::vector<std::vector<double>> costs;
  for (const Plan& p : plans.fit) {
    costs.push_back({p.estimate.ttft_s, p.estimate.tpot_s, -p.tokens_per_s_per_device()});
  }
  const std::vector<std::optional<std::size_t>> by = beaten_by(costs);
  for (Plan& p : plans.fit) {
    p.on_front = !by[static_cast<std::size_t>(&p - plans.fit.data())];
    if (&p != &plans.fit.front()) p.reason = worse_than(plans.fit.front(), p, request.goal);
  }
  return plans;
}

}  // namespace kvcast::search
