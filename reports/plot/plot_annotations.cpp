#include "reports/plot/plot_annotations.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "reports/plot/plot_text.h"

namespace kvcast::reports {
namespace {

constexpr double text_height_px = 17;
constexpr std::size_t annotation_columns = 60;

struct Box {
  double left = 0;
  double top = 0;
  double right = 0;
  double bottom = 0;

  bool overlaps(const Box& o) const {
    return left < o.right && o.left < right && top < o.bottom && o.top < bottom;
  }
  bool inside(const Box& o) const {
    return left >= o.left && right <= o.right && top >= o.top && bottom <= o.bottom;
  }
};

Box box_at(double x, double y, double half_width, double half_height) {
  return {x - half_width, y - half_height, x + half_width, y + half_height};
}

/// Small boxes between two points, both ends left out.
void add_segment(std::vector<Box>& boxes, double x0, double y0, double x1, double y1) {
  const double steps = std::ceil(std::hypot(x1 - x0, y1 - y0) / 6);
  for (double k = 1; k < steps; ++k) {
    boxes.push_back(box_at(x0 + (x1 - x0) * k / steps, y0 + (y1 - y0) * k / steps, 2, 2));
  }
}

/// Small boxes along everything drawn as a line or a mark.
std::vector<Box> drawn_boxes(const Plot& plot, const Layout& layout) {
  std::vector<Box> boxes;
  for (const Series& s : plot.series) {
    const bool line = s.style == Style::Line || s.style == Style::Dashed;
    double x0 = no_value;
    double y0 = no_value;
    for (const Point& p : s.points) {
      if (!can_show(p.x, plot.x) || !can_show(p.y, plot.y)) continue;
      const double x = layout.pixel_x(p.x / plot.x.unit);
      const double y = layout.pixel_y(p.y / plot.y.unit);
      boxes.push_back(box_at(x, y, line ? 2 : 6, line ? 2 : 6));
      if (line && !std::isnan(x0)) add_segment(boxes, x0, y0, x, y);
      x0 = x;
      y0 = y;
    }
  }
  return boxes;
}

double num_overlaps(const Box& box, const std::vector<Box>& boxes) {
  return static_cast<double>(
      std::count_if(boxes.begin(), boxes.end(), [&](const Box& b) { return box.overlaps(b); }));
}

/// A place for a text, and the thin line from its point if they are apart.
struct Place {
  Box box;
  double to_x = 0;
  double to_y = 0;
  std::vector<Box> leader;  ///< empty: none
  double cost = 0;          ///< how far from its point, how much drawn is covered
};

std::vector<Place> places_around(double x, double y, std::size_t characters, const Box& area,
                                 const std::vector<Box>& drawn) {
  const double half_width = 0.5 * character_px * static_cast<double>(characters);
  const double half_height = 0.5 * text_height_px;
  std::vector<Place> places;
  for (const double distance : {9.0, 18.0, 30.0, 44.0, 64.0, 90.0}) {
    for (const double dy : {0.0, -1.0, 1.0}) {
      for (const double dx : {0.0, 0.6, -0.6, 1.0, -1.0}) {
        if (dy == 0 && std::fabs(dx) != 1) continue;
        const double aside = dy == 0 ? distance : 6;  // texts above and below keep to their point
        Place p;
        p.box = box_at(x + dx * (aside + half_width), y + dy * (distance + half_height), half_width,
                       half_height);
        p.to_x = std::clamp(x, p.box.left, p.box.right);
        p.to_y = std::clamp(y, p.box.top, p.box.bottom);
        if (std::hypot(p.to_x - x, p.to_y - y) > 14) add_segment(p.leader, x, y, p.to_x, p.to_y);
        p.cost = distance / 10 + 12 * std::fabs(dx * dy) + 4 * num_overlaps(p.box, drawn) +
                 (p.box.inside(area) ? 0 : 5000);
        for (const Box& b : p.leader) p.cost += 0.5 * num_overlaps(b, drawn);
        places.push_back(std::move(p));
      }
    }
  }
  return places;
}

double clash(const Place& a, const Place& b) {
  const auto crossed = [](const Place& line, const Place& other) {
    return std::any_of(line.leader.begin(), line.leader.end(), [&](const Box& piece) {
      return piece.overlaps(other.box) || num_overlaps(piece, other.leader) > 0;
    });
  };
  return (a.box.overlaps(b.box) ? 1000 : 0) + (crossed(a, b) || crossed(b, a) ? 400 : 0);
}

/// One place for each text, from its candidates. Texts near each other compete, so taking the best
/// place for one after the other fails; the most promising beginnings are followed side by side.
std::vector<Place> choose(const std::vector<std::vector<Place>>& candidates) {
  constexpr std::size_t num_followed = 200;
  struct Beginning {
    double cost = 0;
    std::vector<const Place*> places;
  };
  std::vector<Beginning> beginnings(1);
  for (const std::vector<Place>& places : candidates) {
    std::vector<Beginning> longer;
    for (const Beginning& b : beginnings) {
      for (const Place& p : places) {
        longer.push_back(b);
        longer.back().cost += p.cost;
        for (const Place* other : b.places) longer.back().cost += clash(p, *other);
        longer.back().places.push_back(&p);
      }
    }
    std::stable_sort(longer.begin(), longer.end(),
                     [](const Beginning& a, const Beginning& b) { return a.cost < b.cost; });
    longer.resize(std::min(longer.size(), num_followed));
    beginnings = std::move(longer);
  }
  std::vector<Place> chosen;
  for (const Place* p : beginnings[0].places) chosen.push_back(*p);
  return chosen;
}

}  // namespace

std::string annotation_commands(const Plot& plot, const Layout& layout, double font_size) {
  std::string commands;
  const auto screen = [&](double x, double y) {
    return fmt::format("screen {:.5f}, screen {:.5f}", x / width_px, 1 - y / layout.height);
  };
  const Box area{left_px + 3, layout.top + 3, width_px - 4, layout.height - layout.bottom - 3};
  const std::vector<Box> drawn = drawn_boxes(plot, layout);
  std::vector<std::string> texts;
  std::vector<const Annotation*> annotations;
  std::vector<std::vector<Place>> candidates;
  for (const Annotation& a : plot.annotations) {
    if (!can_show(a.x, plot.x) || !can_show(a.y, plot.y)) continue;
    annotations.push_back(&a);
    texts.push_back(shortened(printable(a.text), annotation_columns));
    candidates.push_back(places_around(layout.pixel_x(a.x / plot.x.unit),
                                       layout.pixel_y(a.y / plot.y.unit),
                                       num_characters(texts.back()), area, drawn));
  }
  const std::vector<Place> places = choose(candidates);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Annotation& a = *annotations[i];
    const Place& p = places[i];
    commands += fmt::format(
        "set label {} at {} center font ',{:g}' textcolor rgb '{}'\n", literal(texts[i]),
        screen((p.box.left + p.box.right) / 2, (p.box.top + p.box.bottom) / 2), font_size,
        a.color < 0 ? "#333333" : color_of(static_cast<std::size_t>(a.color)));
    if (p.leader.empty()) continue;
    commands += fmt::format(
        "set arrow from first {:g}, first {:g} to {} nohead back lc rgb '#aaaaaa' lw 1\n",
        a.x / plot.x.unit, a.y / plot.y.unit, screen(p.to_x, p.to_y));
  }
  return commands;
}

}  // namespace kvcast::reports
