#include "ductile/train/batch_orders.h"

#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <sys/stat.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/paths.h"

namespace ductile::train {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;  // some 50,000 orders of a replay
constexpr int64_t kMost = int64_t{1} << 53;

}  // namespace

int64_t BatchOrders::wish(int64_t updates) {
  if (replay_.empty()) look();
  // The order of a step holds from the next one on.
  const auto found = replay_.find(updates + 1);
  return found == replay_.end() ? batch_ : found->second;
}

void BatchOrders::look() {
  struct stat at {};
  if (::stat(file_.c_str(), &at) != 0) {
    const int error = errno;
    batch_ = 0;
    seen_ = {};
    if (error == ENOENT || error == ENOTDIR) return;
    fail_errno(file_.string(), error);
  }
  const Stamp now{static_cast<int64_t>(at.st_ino), at.st_size, at.st_mtim.tv_sec,
                  at.st_mtim.tv_nsec};
  if (now == seen_) return;
  batch_ = 0;
  try {
    read();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return;
    if (error.code() == ErrorCode::unavailable) throw;
    seen_ = now;
    fail(ErrorCode::data_loss, "{}; remove it, and the batch stays as it is", error.message());
  }
  seen_ = now;
}

void BatchOrders::read() {
  const std::string where = file_.string();
  std::vector<std::byte> bytes;
  read_regular_file(file_, kMostBytes, bytes);  // a pipe in its place would be waited for
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const nlohmann::json value = parse_json(text, where, ErrorCode::data_loss);
  const JsonFields fields(value, where);
  fields.only({"batch", "replay"});
  std::map<int64_t, int64_t> replay;
  if (fields.has("replay")) {
    for (const nlohmann::json& each : fields.array("replay")) {
      if (!each.is_array() || each.size() != 2)
        fields.wrong("replay", "a list of [updates, batch]", each);
      replay[fields.as_integer(each[0], "replay", 0, kMost)] =
          fields.as_integer(each[1], "replay", 1, kMost);
    }
  }
  batch_ = fields.has("batch") ? fields.integer("batch", 0, kMost) : 0;
  replay_ = std::move(replay);
}

}  // namespace ductile::train
