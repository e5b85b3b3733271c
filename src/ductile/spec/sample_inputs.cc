#include "ductile/spec/sample_inputs.h"

#include <array>
#include <charconv>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "ductile/base/error.h"

namespace ductile::spec {
namespace {

constexpr int64_t kMostLength = 1 << 16, kMostRange = 1 << 30, kMostInputs = 1024,
                  kMostValues = 1 << 20;
constexpr std::array<std::string_view, 3> kKindNames = {"vector", "tokens", "indices"};

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  fail(ErrorCode::invalid_argument,
       "data.synthetic.inputs: \"{}\": {}; write \"vector:LENGTH\", \"tokens:LENGTH:RANGE\" or "
       "\"indices:LENGTH:RANGE\", for several alike with \"COUNT*\" before it",
       text, why);
}

int64_t number(std::string_view digits, std::string_view what, int64_t most,
               std::string_view text) {
  int64_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [rest, error] = std::from_chars(digits.data(), end, value);
  if (error != std::errc() || rest != end || value < 1 || value > most) {
    refuse(text, fmt::format("\"{}\" is no {} from 1 to {}", digits, what, most));
  }
  return value;
}

// What stands before the next `separator`, which is taken away with it; all where there is none.
std::string_view take(std::string_view& rest, char separator) {
  const size_t at = rest.find(separator);
  const std::string_view out = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + 1);
  return out;
}

}  // namespace

std::vector<SampleInput> sample_inputs(const std::vector<std::string>& texts) {
  std::vector<SampleInput> out;
  int64_t values = 0;
  for (const std::string& text : texts) {
    std::string_view rest = text;
    int64_t count = 1;
    if (rest.find('*') != std::string_view::npos) {
      count = number(take(rest, '*'), "count", kMostInputs, text);
    }
    const std::string_view name = take(rest, ':');
    SampleInput input;
    size_t kind = 0;
    while (kind < kKindNames.size() && kKindNames[kind] != name) ++kind;
    if (kind == kKindNames.size()) refuse(text, fmt::format("\"{}\" is no kind of input", name));
    input.kind = static_cast<SampleInput::Kind>(kind);
    input.length = number(take(rest, ':'), "length", kMostLength, text);
    if (input.is_numbers()) input.range = number(take(rest, ':'), "range", kMostRange, text);
    if (!rest.empty()) refuse(text, fmt::format("\"{}\" is left over", rest));
    out.insert(out.end(), static_cast<size_t>(count), input);
    if (static_cast<int64_t>(out.size()) > kMostInputs) {
      refuse(text, fmt::format("a sample has at most {} inputs", kMostInputs));
    }
    values += count * input.length;
    if (values > kMostValues) {
      refuse(text, fmt::format("a sample has at most {} values in all its inputs", kMostValues));
    }
  }
  return out;
}

std::vector<std::string> to_texts(const std::vector<SampleInput>& inputs) {
  std::vector<std::string> out;
  for (const SampleInput& input : inputs) {
    const std::string_view name = kKindNames[static_cast<size_t>(input.kind)];
    out.push_back(input.is_numbers() ? fmt::format("{}:{}:{}", name, input.length, input.range)
                                     : fmt::format("{}:{}", name, input.length));
  }
  return out;
}

}  // namespace ductile::spec
