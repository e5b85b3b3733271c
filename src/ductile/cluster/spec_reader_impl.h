#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/cluster/service_spec_impl.h"

namespace ductile::cluster {

// What a job runs, as it was read, and what follows from that alone.
struct ReadJob {
  Work work;
  std::vector<TrainPlan> plans;  // of a job by stages
  std::string application;       // application_of()
};

// Reads what jobs run, each text once: what the interface has read to check it is what the service
// takes up a moment later, and jobs of one text share a reading, of which a start with thousands
// of jobs has many. It keeps those that were read last, by the digests of their texts, which are of
// so many bytes together at most: whoever may submit writes what he likes, and what was read of a
// text takes a few times its size. Any thread may read.
class SpecReader {
 public:
  using Read = std::shared_ptr<const ReadJob>;

  explicit SpecReader(size_t most = 1024, size_t most_bytes = size_t{8} << 20)
      : most_(most), most_bytes_(most_bytes) {}

  // What was read of this kind's spec. Throws as work_of() does, and then keeps nothing.
  Read read(const std::string& kind, const nlohmann::json& spec);
  // The same of its text, as the store has it; throws data_loss, too, where that is no JSON.
  Read read_text(const std::string& kind, const std::string& text);
  // The spec is read as this already.
  Read keep(const std::string& kind, const nlohmann::json& spec, Work work);

 private:
  Read find(const std::string& key);
  Read add(const std::string& key, size_t bytes, Work work, std::vector<TrainPlan> plans);

  const size_t most_, most_bytes_;
  std::mutex mutex_;  // of what follows
  std::map<std::string, Read> known_;
  std::deque<std::pair<std::string, size_t>> order_;  // in which they were read; of which size
  size_t bytes_ = 0;                                  // of all of them
};

}  // namespace ductile::cluster
