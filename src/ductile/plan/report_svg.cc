// The picture: stage graph above, timeline below.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "ductile/page/assets.h"
#include "ductile/page/html.h"
#include "ductile/page/numbers.h"
#include "ductile/plan/report_impl.h"

namespace ductile::plan {

using page::escape_html;

namespace {

constexpr double kWidth = 1200, kLeft = 150, kRight = 20;
constexpr double kNodeWidth = 172, kNodeHeight = 54, kGapX = 24, kGapXMost = 110, kGapY = 14,
                 kGapLine = 16;
constexpr double kRow = 30, kCompute = 18, kWire = 5;
constexpr double kNarrow = 0.7;  // pixels; narrower boxes are drawn together
constexpr size_t kMaxRows = 64, kMaxNodes = 200;

const char* kind_class(Box::Kind kind) {
  switch (kind) {
    case Box::Kind::forward:
      return "f";
    case Box::Kind::backward:
      return "b";
    case Box::Kind::backward_weight:
      return "w";
    case Box::Kind::transfer:
      return "t";
    case Box::Kind::sync:
      return "s";
  }
  return "";
}

const char* kind_name(Box::Kind kind) {
  switch (kind) {
    case Box::Kind::forward:
      return "forward";
    case Box::Kind::backward:
      return "backward";
    case Box::Kind::backward_weight:
      return "weight gradient";
    case Box::Kind::transfer:
      return "transfer";
    case Box::Kind::sync:
      return "gradient sum";
  }
  return "";
}

// Columns by longest path from a source, rows by number within.
double draw_stages(const Report& r, double top, std::string& out) {
  const StageGraph& g = r.costs.stages;
  const size_t n = g.order.size();
  if (n > kMaxNodes) {
    out += fmt::format(
        "<text class='soft' x='20' y='{}'>{} stages: too many to draw as a graph"
        "</text>\n",
        top + 20, n);
    return top + 34;
  }
  std::vector<int> column(n), row(n);
  std::map<int, int> used;
  int last = 0;
  for (int s : g.order) {
    for (int e : g.predecessors[s]) column[s] = std::max(column[s], column[g.edges[e].from] + 1);
    row[s] = used[column[s]]++;
    last = std::max(last, column[s]);
  }
  // Wide graphs go on below: `wrap` columns a line. Few columns stand further apart.
  const int wrap = static_cast<int>((kWidth - 40 + kGapX) / (kNodeWidth + kGapX));
  std::vector<int> deepest(last / wrap + 1, 1);  // of each line
  for (const auto& [c, rows] : used) deepest[c / wrap] = std::max(deepest[c / wrap], rows);
  std::vector<double> line_top = {top};
  for (int rows : deepest) {
    line_top.push_back(line_top.back() + rows * (kNodeHeight + kGapY) + kGapLine);
  }
  const int columns = std::min(last + 1, wrap);
  const double gap = columns == 1 ? kGapX
                                  : std::clamp((kWidth - 40 - columns * kNodeWidth) / (columns - 1),
                                               kGapX, kGapXMost);
  const double left = 20;
  const auto x = [&](int s) { return left + (column[s] % wrap) * (kNodeWidth + gap); };
  const auto y = [&](int s) {
    const int line = column[s] / wrap;
    const double middle = (deepest[line] - used[column[s]]) * (kNodeHeight + kGapY) / 2;
    return line_top[line] + middle + row[s] * (kNodeHeight + kGapY);
  };
  for (const StageEdge& e : g.edges) {
    const double x0 = x(e.from) + kNodeWidth, y0 = y(e.from) + kNodeHeight / 2;
    const double x1 = x(e.to), y1 = y(e.to) + kNodeHeight / 2;
    std::string way;
    const int from_line = column[e.from] / wrap, to_line = column[e.to] / wrap;
    if (from_line == to_line) {
      way = fmt::format("C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}", x0 + gap / 2, y0,
                        x1 - gap / 2, y1, x1, y1);
    } else {  // right of its column, along the space between the lines, left of the other column
      const double middle = line_top[to_line] - kGapY / 2 - kGapLine / 2;
      way = fmt::format("h{0:.1f}V{1:.1f}H{2:.1f}V{3:.1f}h{0:.1f}", kGapX / 4, middle,
                        x1 - kGapX / 4, y1);
    }
    out += fmt::format(
        "<path class='edge' d='M{:.1f} {:.1f}{}'><title>stage {} to {}: {} a {}</title></path>\n",
        x0, y0, way, e.from, e.to, page::as_bytes(e.bytes), escape_html(r.graph.sample));
  }
  const OpNames names(r.graph);
  for (size_t i = 0; i < n; ++i) {
    const Stage& s = r.planned.plan.stages[i];
    const double share = std::min(1.0, r.timeline.peak_memory[i] / r.timeline.memory_limit[i]);
    const bool full = r.timeline.peak_memory[i] > r.timeline.memory_limit[i];
    const int at = static_cast<int>(i);
    std::string how = s.num_devices() > 1 ? fmt::format("{} devices", s.num_devices()) : "1 device";
    if (s.tensor > 1) how += fmt::format(", split {}", s.tensor);
    out += fmt::format(
        "<g transform='translate({:.1f} {:.1f})'><title>stage {}: {}</title>"
        "<rect class='node' width='{}' height='{}' rx='7'/>"
        "<text x='10' y='18' class='name'>{} · {}</text>"
        "<text x='10' y='34' class='soft'>{}{}</text>"
        "<rect class='track' x='10' y='42' width='{}' height='5' rx='2'/>"
        "<rect class='{}' x='10' y='42' width='{:.1f}' height='5' rx='2'/></g>\n",
        x(at), y(at), i, escape_html(names.some(s)), kNodeWidth, kNodeHeight, i,
        escape_html(names.first(s, 17)),
        s.ops.size() > 1 ? fmt::format("{} ops, ", s.ops.size()) : "", how, kNodeWidth - 20,
        full ? "over" : "held", share * (kNodeWidth - 20));
  }
  return line_top.back();
}

class TimelineDrawing {
 public:
  TimelineDrawing(const Report& report, double top, std::string& out)
      : r_(report), top_(top), out_(out) {
    scale_ = (kWidth - kLeft - kRight) / std::max(r_.timeline.seconds, 1e-300);
  }

  double draw() {
    label_rows();
    axis();
    for (const Box& b : r_.timeline.boxes) place(b);
    for (auto& [lane, pending] : pending_) flush(lane, pending);
    return bottom() + 34;
  }

 private:
  // Narrow boxes that follow one another on a lane.
  struct Pending {
    double start = 0, end = 0, covered = 0;
    std::array<double, 5> by_kind{};
    int64_t count = 0;
  };
  using Lane = std::pair<size_t, int>;  // row; 0: computing, 1: messages

  double bottom() const { return top_ + static_cast<double>(rows_) * kRow; }
  double x(double time) const { return kLeft + time * scale_; }

  void label_rows() {
    row_of_.assign(static_cast<size_t>(r_.costs.num_units), SIZE_MAX);
    std::vector<std::string> label;
    for (int s : r_.costs.stages.order) {
      size_t& row = row_of_[static_cast<size_t>(r_.costs.unit[s])];
      const Stage& stage = r_.planned.plan.stages[static_cast<size_t>(s)];
      if (row == SIZE_MAX) {
        row = label.size();
        const std::string runs = device_runs(stage.devices);
        label.push_back(runs.empty()
                            ? fmt::format("{} devices", stage.num_devices())
                            : fmt::format("device{} {}", stage.devices.size() > 1 ? "s" : "",
                                          shorten(runs, 12)));
      }
      stages_.resize(label.size());
      stages_[row] += fmt::format("{}{}", stages_[row].empty() ? "stage " : ", ", s);
    }
    rows_ = std::min(kMaxRows, label.size());
    for (size_t i = 0; i < rows_; ++i) {
      const double y = top_ + static_cast<double>(i) * kRow;
      out_ += fmt::format("<rect class='lane' x='{}' y='{:.1f}' width='{}' height='{}'/>", kLeft, y,
                          kWidth - kLeft - kRight, kCompute);
      out_ += fmt::format(
          "<text x='{}' y='{:.1f}' text-anchor='end'>{}</text>"
          "<text class='soft' x='{}' y='{:.1f}' text-anchor='end'>{}</text>\n",
          kLeft - 8, y + 10, escape_html(label[i]), kLeft - 8, y + 22,
          escape_html(shorten(stages_[i], 22)));
    }
    if (label.size() > rows_) {
      out_ += fmt::format("<text class='soft' x='20' y='{:.1f}'>{} more rows are left out</text>\n",
                          bottom() + 30, label.size() - rows_);
    }
  }

  void axis() {
    const double total = r_.timeline.seconds;
    if (!(total > 0)) return;
    double step = std::pow(10, std::floor(std::log10(total / 5)));
    while (total / step > 10) step *= total / step > 20 ? 5 : 2;
    for (double t = 0; t <= total * (1 + 1e-9); t += step) {
      out_ += fmt::format(
          "<line class='grid' x1='{:.1f}' x2='{:.1f}' y1='{:.1f}' y2='{:.1f}'/><text class='soft' "
          "x='{:.1f}' y='{:.1f}' text-anchor='middle'>{}</text>\n",
          x(t), x(t), top_ - 4, bottom(), x(t), bottom() + 14,
          t == 0 ? "0" : page::as_short_duration(t));
    }
  }

  void place(const Box& b) {
    const size_t row = row_of_[static_cast<size_t>(r_.costs.unit[b.stage])];
    if (row >= rows_) return;
    const Lane lane{row, b.kind == Box::Kind::transfer};
    Pending& p = pending_[lane];
    const double width = (b.end - b.start) * scale_;
    if (width >= kNarrow) {
      flush(lane, p);
      rect(lane, b.start, b.end, kind_class(b.kind), 1,
           b.to >= 0 ? fmt::format("{} {} of stage {} to stage {}", kind_name(b.kind), b.index,
                                   b.stage, b.to)
           : b.kind == Box::Kind::sync ? fmt::format("gradient sum of stage {}", b.stage)
                                       : fmt::format("stage {}: {} of micro-batch {}", b.stage,
                                                     kind_name(b.kind), b.index));
      return;
    }
    if (p.count > 0 && (b.end - p.start) * scale_ > 2 * kNarrow) flush(lane, p);
    if (p.count == 0) p.start = b.start;
    p.end = std::max(p.end, b.end);
    p.covered += b.end - b.start;
    p.by_kind[static_cast<size_t>(b.kind)] += b.end - b.start;
    ++p.count;
  }

  void flush(const Lane& lane, Pending& p) {
    if (p.count > 0 && p.end > p.start) {
      const auto most = std::max_element(p.by_kind.begin(), p.by_kind.end()) - p.by_kind.begin();
      rect(lane, p.start, p.end, kind_class(static_cast<Box::Kind>(most)),
           std::min(1.0, p.covered / (p.end - p.start)), "");
    }
    p = {};
  }

  void rect(const Lane& lane, double start, double end, const char* kind, double opacity,
            const std::string& title) {
    const double y = top_ + static_cast<double>(lane.first) * kRow;
    const bool wire = lane.second != 0;
    const double width = std::max((end - start) * scale_, 0.3);
    // A hair's breadth between neighbours, where there is room for it.
    const double drawn = width > 3 && !wire ? width - 0.6 : width;
    out_ += fmt::format("<rect class='{}' x='{:.2f}' y='{:.1f}' width='{:.2f}' height='{}'{}", kind,
                        x(start), wire ? y + kCompute + 2 : y, drawn, wire ? kWire : kCompute,
                        opacity < 0.995 ? fmt::format(" opacity='{:.2f}'", opacity) : "");
    out_ += title.empty()
                ? "/>\n"
                : fmt::format("><title>{}, {} to {}</title></rect>\n", escape_html(title),
                              page::as_short_duration(start), page::as_short_duration(end));
  }

  const Report& r_;
  double top_;
  std::string& out_;
  double scale_ = 1;
  size_t rows_ = 0;
  std::vector<size_t> row_of_;
  std::vector<std::string> stages_;
  std::map<Lane, Pending> pending_;
};

double draw_legend(double top, std::string& out) {
  double x = kLeft;
  for (const auto& [name, css] :
       {std::pair{"forward", "f"}, std::pair{"backward", "b"}, std::pair{"weight gradient", "w"},
        std::pair{"transfer", "t"}, std::pair{"gradient sum", "s"}}) {
    out += fmt::format(
        "<rect class='{}' x='{}' y='{}' width='12' height='12' rx='2'/><text x='{}' "
        "y='{}'>{}</text>\n",
        css, x, top, x + 18, top + 10.5, name);
    x += 36 + 7.2 * static_cast<double>(std::string_view(name).size());
  }
  return top + 28;
}

}  // namespace

std::string shorten(const std::string& text, size_t most) {
  // Bytes that continue a character are not cut off from it.
  if (text.size() <= most) return text;
  size_t end = most - 1;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "…";
}

std::vector<graph::OpId> OpNames::ordered(const Stage& stage) const {
  std::vector<graph::OpId> ops = stage.ops;
  std::sort(ops.begin(), ops.end(), [&](graph::OpId a, graph::OpId b) {
    return topology_.position(a) < topology_.position(b);
  });
  return ops;
}

std::string OpNames::first(const Stage& stage, size_t most) const {
  return shorten(graph_.ops[ordered(stage).front()].name, most);
}

std::string OpNames::some(const Stage& stage) const {
  const std::vector<graph::OpId> ops = ordered(stage);
  std::string out;
  for (size_t i = 0; i < ops.size() && i < 12; ++i) {
    out += fmt::format("{}{}", i > 0 ? ", " : "", shorten(graph_.ops[ops[i]].name, 40));
  }
  if (ops.size() > 12) out += fmt::format(" and {} more", ops.size() - 12);
  return out;
}

std::string OpNames::ends(const Stage& stage) const {
  const std::vector<graph::OpId> ops = ordered(stage);
  if (ops.size() <= 4) return some(stage);
  return fmt::format("{} … {} ({})", shorten(graph_.ops[ops.front()].name, 40),
                     shorten(graph_.ops[ops.back()].name, 40), ops.size());
}

std::string svg_body(const Report& report, double& height) {
  std::string out;
  double y = draw_stages(report, 16, out);
  y = draw_legend(y + 8, out);
  height = TimelineDrawing(report, y + 6, out).draw();
  return out;
}

std::string to_svg(const Report& report) {
  double height = 0;
  const std::string body = svg_body(report, height);
  return fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' class='picture' viewBox='0 0 {0} {1:.0f}' "
      "width='{0}' "
      "height='{1:.0f}'>\n<style>{2}{3}</style>\n<rect class='node' style='stroke:none' "
      "width='{0}' "
      "height='{1:.0f}'/>\n{4}</svg>\n",
      kWidth, height, page::kColorsCss, kPictureCss, body);
}

}  // namespace ductile::plan
