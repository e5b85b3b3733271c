#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/serving/model.h"

namespace ductile::serving {
namespace {

// Samples of random values, prepared; all different, so that sums in another order have other bits.
std::vector<std::byte> probes_of(Model& model, int64_t count) {
  const ModelCard& card = model.card();
  std::vector<std::byte> rows(static_cast<size_t>(count) * card.row_bytes);
  for (int64_t i = 0; i < count; ++i) {
    Rng rng(0x5e7e, static_cast<uint64_t>(i));
    const auto values = static_cast<size_t>(num_elements(card.input));
    std::vector<float> floats(card.tokens ? 0 : values);
    std::vector<int64_t> tokens(card.tokens ? values : 0);
    for (float& f : floats) f = rng.normal();
    for (int64_t& t : tokens) t = rng.below(static_cast<uint32_t>(card.output.back()));
    const Sample sample{
        card.tokens ? Sample::Kind::tokens : Sample::Kind::values, card.input,
        card.tokens ? std::as_bytes(std::span(tokens)) : std::as_bytes(std::span(floats))};
    model.prepare(sample, rows.data() + static_cast<size_t>(i) * card.row_bytes);
  }
  return rows;
}

// The outputs of all probes, which are run `size` at a time; backwards: each group in reverse.
std::vector<float> outputs_of(Model& model, const std::vector<std::byte>& probes, int64_t size,
                              bool backwards) {
  const size_t row = model.card().row_bytes, count = probes.size() / row;
  const auto values = static_cast<size_t>(num_elements(model.card().output));
  const auto n = static_cast<size_t>(size);
  std::vector<float> all(count * values), out(n * values);
  std::vector<std::byte> rows(n * row);
  for (size_t first = 0; first < count; first += n) {
    const auto at = [&](size_t i) {  // beyond the last one: some other one beside it
      return (first + (backwards ? n - 1 - i : i)) % count;
    };
    for (size_t i = 0; i < n; ++i)
      std::memcpy(rows.data() + i * row, probes.data() + at(i) * row, row);
    model.run(rows.data(), size, out.data());
    for (size_t i = 0; i < n; ++i)
      std::copy_n(out.data() + i * values, values, all.data() + at(i) * values);
  }
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

int64_t Deployment::size_for(int64_t count) const {
  const auto found = std::ranges::lower_bound(sizes, count);
  DUCTILE_CHECK(found != sizes.end(), "{} samples", count);
  return *found;
}

Deployment deploy(std::unique_ptr<Model> model, int64_t max_batch) {
  const std::vector<std::byte> probes = probes_of(*model, max_batch);
  std::vector<std::pair<std::vector<float>, std::vector<int64_t>>> groups;
  for (int64_t size = 1; size < 2 * max_batch; size *= 2) {
    const int64_t n = std::min(size, max_batch);
    std::vector<float> outputs = outputs_of(*model, probes, n, false);
    if (!std::ranges::all_of(outputs, [](float f) { return std::isfinite(f); }))
      fail(ErrorCode::data_loss, "the weights of step {} compute what is no number",
           model->card().version);
    if (!same_bits(outputs, outputs_of(*model, probes, n, true))) continue;
    const auto same = std::ranges::find_if(
        groups, [&](const auto& group) { return same_bits(group.first, outputs); });
    if (same == groups.end()) {
      groups.emplace_back(std::move(outputs), std::vector<int64_t>{n});
    } else {
      same->second.push_back(n);
    }
  }
  // With one sample nothing lies beside it, so there is a group.
  const auto best = std::ranges::max_element(
      groups, [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  return {std::move(model), best->second};
}

}  // namespace ductile::serving
