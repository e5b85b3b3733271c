#include "ductile/train/batch_orders.h"

#include <sys/stat.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"

namespace ductile::train {

int64_t BatchOrders::wish(int64_t updates) {
  struct stat at {};
  if (::stat(file_.c_str(), &at) != 0) return 0;
  const Stamp now{static_cast<int64_t>(at.st_ino), at.st_mtim.tv_sec, at.st_mtim.tv_nsec};
  if (now != seen_) {
    read();
    seen_ = now;
  }
  // The order of a step holds from the next one on.
  const auto found = replay_.find(updates + 1);
  return found == replay_.end() ? batch_ : found->second;
}

void BatchOrders::read() {
  batch_ = 0;
  replay_.clear();
  const nlohmann::json value = parse_json(read_file(file_), file_.string(), ErrorCode::data_loss);
  try {
    if (value.contains("batch")) batch_ = value.at("batch").get<int64_t>();
    if (!value.contains("replay")) return;
    for (const nlohmann::json& each : value.at("replay"))
      replay_[each.at(0).get<int64_t>()] = each.at(1).get<int64_t>();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::data_loss, "{}: names no batches; remove it, and the batch stays as it is",
         file_.string());
  }
}

}  // namespace ductile::train
