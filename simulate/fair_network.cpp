#include "simulate/fair_network.h"

#include <algorithm>
#include <utility>

namespace kvcast::simulate {

FairNetwork::FairNetwork(std::vector<double> link_bytes_per_s, std::size_t max_hops,
                         std::uint32_t first_event, OnRate on_rate)
    : max_hops_(max_hops),
      first_event_(first_event),
      on_rate_(std::move(on_rate)),
      links_(link_bytes_per_s.size()) {
  for (std::size_t i = 0; i < links_.size(); ++i) links_[i].bytes_per_s = link_bytes_per_s[i];
}

std::uint32_t FairNetwork::reserve() {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(flows_.size()));
    flows_.emplace_back();
    places_.resize(flows_.size() * max_hops_);
  }
  const std::uint32_t flow = free_.back();
  free_.pop_back();
  return flow;
}

void FairNetwork::mark(std::uint32_t link) {
  if (links_[link].changed) return;
  links_[link].changed = true;
  changed_.push_back(link);
}

void FairNetwork::begin(std::uint32_t flow, std::span<const std::uint32_t> hops, double bytes,
                        double now) {
  Flow& f = flows_[flow];
  f.hops = hops;
  f.bytes = f.remaining = bytes;
  f.since = now;
  f.rate = 0;
  for (std::uint32_t h = 0; h < hops.size(); ++h) {
    std::vector<Passage>& passages = links_[hops[h]].passages;
    place(flow, h) = static_cast<std::uint32_t>(passages.size());
    passages.push_back({flow, h});
    mark(hops[h]);
  }
}

void FairNetwork::end(std::uint32_t flow, double now) {
  Flow& f = flows_[flow];
  for (std::uint32_t h = 0; h < f.hops.size(); ++h) {
    Link& link = links_[f.hops[h]];
    link.carried += f.bytes;
    const Passage last = link.passages.back();
    link.passages[place(flow, h)] = last;
    place(last.flow, last.hop) = place(flow, h);
    link.passages.pop_back();
    mark(f.hops[h]);
  }
  f.hops = {};
  free_.push_back(flow);
  if (on_rate_) on_rate_(flow, now, 0);
}

bool FairNetwork::is_alone(const Flow& flow) const {
  return std::all_of(flow.hops.begin(), flow.hops.end(),
                     [this](std::uint32_t link) { return links_[link].passages.size() == 1; });
}

void FairNetwork::settle(double now, EventHeap& events) {
  ++settlement_;
  for (const std::uint32_t i : changed_) {
    Link& link = links_[i];
    link.changed = false;
    if (link.passages.empty() || link.visited == settlement_) continue;
    const std::uint32_t first = link.passages.front().flow;
    if (link.passages.size() == 1 && is_alone(flows_[first])) {
      double narrowest = link.bytes_per_s;
      for (const std::uint32_t hop : flows_[first].hops) {
        links_[hop].visited = settlement_;
        narrowest = std::min(narrowest, links_[hop].bytes_per_s);
      }
      set_rate(first, narrowest, now, events);
      continue;
    }
    collect(i);
    fill();
    for (const std::uint32_t flow : component_flows_) {
      set_rate(flow, flows_[flow].next_rate, now, events);
    }
  }
  changed_.clear();
}

void FairNetwork::collect(std::uint32_t link) {
  component_links_.assign(1, link);
  component_flows_.clear();
  links_[link].visited = settlement_;
  for (std::size_t i = 0; i < component_links_.size(); ++i) {
    Link& l = links_[component_links_[i]];
    l.left = l.bytes_per_s;
    l.unfixed = static_cast<std::uint32_t>(l.passages.size());
    for (const Passage& passage : l.passages) {
      Flow& f = flows_[passage.flow];
      if (f.visited == settlement_) continue;
      f.visited = settlement_;
      f.next_rate = -1;
      component_flows_.push_back(passage.flow);
      for (const std::uint32_t hop : f.hops) {
        if (links_[hop].visited == settlement_) continue;
        links_[hop].visited = settlement_;
        component_links_.push_back(hop);
      }
    }
  }
}

void FairNetwork::fill() {
  std::size_t fixed = 0;
  double level = 0;
  while (fixed < component_flows_.size()) {
    double least = 0;
    const Link* bottleneck = nullptr;
    for (const std::uint32_t i : component_links_) {
      const Link& link = links_[i];
      if (link.unfixed == 0) continue;
      const double share = link.left / link.unfixed;
      if (bottleneck == nullptr || share < least) {
        least = share;
        bottleneck = &link;
      }
    }
    // Shares never fall from one bottleneck to the next but by rounding.
    level = std::max(level, least);
    for (const Passage& passage : bottleneck->passages) {
      Flow& f = flows_[passage.flow];
      if (f.next_rate >= 0) continue;
      f.next_rate = level;
      ++fixed;
      for (const std::uint32_t hop : f.hops) {
        links_[hop].left -= level;
        --links_[hop].unfixed;
      }
    }
  }
}

void FairNetwork::set_rate(std::uint32_t flow, double rate, double now, EventHeap& events) {
  Flow& f = flows_[flow];
  if (rate == f.rate) return;
  f.remaining = std::max(0.0, f.remaining - f.rate * (now - f.since));
  f.since = now;
  f.rate = rate;
  events.set(first_event_ + flow, now + f.remaining / rate);
  if (on_rate_) on_rate_(flow, now, rate);
}

std::vector<double> FairNetwork::link_bytes(double now) const {
  std::vector<double> bytes;
  bytes.reserve(links_.size());
  for (const Link& link : links_) bytes.push_back(link.carried);
  for (const Flow& f : flows_) {
    const double flowed = f.bytes - std::max(0.0, f.remaining - f.rate * (now - f.since));
    for (const std::uint32_t hop : f.hops) bytes[hop] += flowed;
  }
  return bytes;
}

}  // namespace kvcast::simulate
