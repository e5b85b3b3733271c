#include "ductile/cluster/testing/metrics_parser.h"

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <stdexcept>

namespace ductile::cluster::testing {
namespace {

class Parser {
 public:
  std::map<std::string, MetricsFamily> parse(std::string_view text) {
    // "The last line must end with a line feed character."
    if (text.empty() || text.back() != '\n') throw std::runtime_error("no line feed at the end");
    while (!text.empty()) {
      line_ = text.substr(0, text.find('\n'));
      text.remove_prefix(line_.size() + 1);
      at_ = 0;
      if (!line_.empty()) line_[0] == '#' ? comment() : sample();
    }
    for (const auto& [name, family] : families_)
      if (family.type == "histogram") check_histogram(name, family);
    return std::move(families_);
  }

 private:
  [[noreturn]] void wrong(const char* what) const {
    throw std::runtime_error(std::string(what) + ": " + std::string(line_));
  }
  char peek() const { return at_ < line_.size() ? line_[at_] : '\0'; }
  void blanks() {
    while (peek() == ' ' || peek() == '\t') ++at_;
  }
  std::string name(bool with_colons) {
    const size_t from = at_;
    while (std::isalnum(static_cast<unsigned char>(peek())) != 0 || peek() == '_' ||
           (with_colons && peek() == ':'))
      ++at_;
    if (from == at_ || std::isdigit(static_cast<unsigned char>(line_[from])) != 0) wrong("no name");
    return std::string(line_.substr(from, at_ - from));
  }

  void comment() {
    ++at_;
    blanks();
    const size_t from = at_;
    while (at_ < line_.size() && peek() != ' ') ++at_;
    const std::string_view word = line_.substr(from, at_ - from);
    if (word != "HELP" && word != "TYPE") return;
    blanks();
    const std::string which = name(true);
    blanks();
    const std::string rest(line_.substr(at_));
    MetricsFamily& family = families_[which];
    // "Only one HELP line", "only one TYPE line", and that before the first sample; one group each.
    std::string& field = word == "HELP" ? family.help : family.type;
    if (!field.empty()) wrong("a second line of this kind");
    if (!family.samples.empty()) wrong("it comes after samples");
    static const std::set<std::string> kTypes = {"counter", "gauge", "histogram", "summary",
                                                 "untyped"};
    if (word == "TYPE" && !kTypes.contains(rest)) wrong("no type");
    field = rest;
    group_ = which;
  }

  std::string label_value() {
    if (peek() != '"') wrong("no quote");
    std::string out;
    for (++at_; peek() != '"'; ++at_) {
      if (at_ >= line_.size()) wrong("no closing quote");
      if (peek() != '\\') {
        out += peek();
        continue;
      }
      ++at_;
      if (peek() == 'n')
        out += '\n';
      else if (peek() == '\\' || peek() == '"')
        out += peek();
      else
        wrong("no such escape");
    }
    ++at_;
    return out;
  }

  void sample() {
    MetricsSample out;
    out.name = name(true);
    if (peek() == '{') {
      ++at_;
      while (peek() != '}') {
        const std::string label = name(false);
        if (peek() != '=') wrong("no equals sign");
        ++at_;
        if (!out.labels.emplace(label, label_value()).second) wrong("a label twice");
        if (peek() == ',')
          ++at_;
        else if (peek() != '}')
          wrong("no comma");
      }
      ++at_;
    }
    if (peek() != ' ' && peek() != '\t') wrong("no blank before the value");
    blanks();
    out.value = value(std::string(line_.substr(at_)));
    std::string family = out.name;
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      const std::string_view view(suffix);
      if (!family.ends_with(view)) continue;
      const std::string base = family.substr(0, family.size() - view.size());
      if (families_.contains(base) && families_[base].type == "histogram") family = base;
    }
    // "All lines for a given metric must be provided as one single group."
    if (family != group_) wrong("outside its group");
    for (const MetricsSample& other : families_[family].samples)
      if (other.name == out.name && other.labels == out.labels) wrong("the same sample twice");
    families_[family].samples.push_back(std::move(out));
  }

  double value(const std::string& text) {
    if (text == "NaN") return std::nan("");
    if (text == "+Inf" || text == "-Inf")
      return (text[0] == '+' ? 1 : -1) * std::numeric_limits<double>::infinity();
    char* end = nullptr;
    const double out = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !std::isfinite(out)) wrong("no value");
    return out;
  }

  // Buckets rise to +Inf, which equals the count.
  void check_histogram(const std::string& name, const MetricsFamily& family) {
    struct Seen {
      double bound = -std::numeric_limits<double>::infinity(), last = 0;
      double count = -1;
      bool sum = false;
    };
    std::map<std::map<std::string, std::string>, Seen> seen;
    for (const MetricsSample& sample : family.samples) {
      auto labels = sample.labels;
      line_ = name;
      if (sample.name == name + "_bucket") {
        if (!labels.contains("le")) wrong("a bucket without a bound");
        const double bound = value(labels["le"]);
        labels.erase("le");
        Seen& s = seen[labels];
        if (bound <= s.bound || sample.value < s.last) wrong("buckets that do not rise");
        s.bound = bound;
        s.last = sample.value;
      } else if (sample.name == name + "_count") {
        seen[labels].count = sample.value;
      } else {
        seen[labels].sum = true;
      }
    }
    for (const auto& [labels, s] : seen)
      if (!std::isinf(s.bound) || s.last != s.count || !s.sum)
        wrong("a histogram that is not whole");
  }

  std::map<std::string, MetricsFamily> families_;
  std::string group_;
  std::string_view line_;
  size_t at_ = 0;
};

}  // namespace

std::map<std::string, MetricsFamily> parse_metrics(std::string_view text) {
  return Parser().parse(text);
}

}  // namespace ductile::cluster::testing
