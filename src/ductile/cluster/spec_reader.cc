#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cluster/sha256_impl.h"
#include "ductile/cluster/spec_reader_impl.h"

namespace ductile::cluster {
namespace {

// Digests, since a spec has the whole text of a job file.
std::string key_of(const std::string& kind, const std::string& text) {
  return sha256(kind + "\n" + text);
}

}  // namespace

SpecReader::Read SpecReader::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(key);
  return found == known_.end() ? nullptr : found->second;
}

// Two threads may have read the same text: both readings are equal, and the first one stays.
SpecReader::Read SpecReader::add(const std::string& key, size_t bytes, Work work,
                                 std::vector<TrainPlan> plans) {
  std::string application = application_of(work);
  auto read = std::make_shared<const ReadJob>(
      ReadJob{std::move(work), std::move(plans), std::move(application)});
  const std::lock_guard lock(mutex_);
  const auto [at, added] = known_.emplace(key, read);
  if (!added) return at->second;
  order_.emplace_back(key, bytes);
  bytes_ += bytes;
  while (order_.size() > most_ || bytes_ > most_bytes_) {
    known_.erase(order_.front().first);
    bytes_ -= order_.front().second;
    order_.pop_front();
  }
  return read;
}

SpecReader::Read SpecReader::read(const std::string& kind, const nlohmann::json& spec) {
  const std::string text = dump_json(spec), key = key_of(kind, text);
  if (Read known = find(key)) return known;
  return add(key, text.size(), work_of(kind, spec), plans_of(kind, spec));
}

SpecReader::Read SpecReader::read_text(const std::string& kind, const std::string& text) {
  const std::string key = key_of(kind, text);
  if (Read known = find(key)) return known;
  const nlohmann::json spec = parse_json(text, "spec", ErrorCode::data_loss);
  return add(key, text.size(), work_of(kind, spec), plans_of(kind, spec));
}

SpecReader::Read SpecReader::keep(const std::string& kind, const nlohmann::json& spec, Work work) {
  const std::string text = dump_json(spec);
  return add(key_of(kind, text), text.size(), std::move(work), plans_of(kind, spec));
}

}  // namespace ductile::cluster
