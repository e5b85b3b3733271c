#include "points.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "ductile/base/error.h"

namespace ductile::injection {
namespace {

std::string error_name(int error) {
  return error == kShort ? "short" : std::string(::strerrorname_np(error));
}

template <size_t N>
uint32_t index_of(const char* const (&names)[N], const std::string& name) {
  const auto found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names))
    fail(ErrorCode::invalid_argument, "a point of injection: there is no '{}'", name);
  return static_cast<uint32_t>(found - std::begin(names));
}

int error_of(const std::string& name) {
  if (name == "short") return kShort;
  for (int error = 1; error < 134; ++error)
    if (const char* known = ::strerrorname_np(error); known != nullptr && name == known)
      return error;
  fail(ErrorCode::invalid_argument, "a point of injection: there is no error '{}'", name);
}

}  // namespace

const std::vector<int>& errors_of(Call call) {
  static const std::map<Call, std::vector<int>> errors = {
      {kOpen, {EIO, EMFILE, ENOMEM, EACCES}},
      {kCreate, {EIO, ENOSPC, EMFILE, ENOMEM, EACCES}},
      {kRead, {EIO, EINTR, kShort}},
      {kWrite, {EIO, ENOSPC, EINTR, kShort}},
      {kSync, {EIO, ENOSPC}},
      {kRename, {EIO, ENOSPC, EACCES}},
      {kLink, {EIO, ENOSPC, EACCES}},
      {kUnlink, {EIO, EACCES}},
      {kMkdir, {EIO, ENOSPC, EACCES}},
      {kStat, {EIO, ENOMEM, EACCES}},
      {kList, {EIO, EMFILE, ENOMEM, EACCES}},
      {kMmap, {ENOMEM, EACCES}},
      {kTruncate, {EIO, ENOSPC, EINTR}},
      {kLock, {EINTR, ENOLCK, EIO}},
      {kDescriptor, {EMFILE, ENFILE, ENOMEM}},
      {kFork, {EAGAIN, ENOMEM}},
      {kExec, {EACCES, ENOMEM, EIO}},
      {kSocket, {EMFILE, ENFILE, ENOMEM, EACCES}},
      {kBind, {EADDRINUSE, EACCES, ENOMEM}},
      {kListen, {EADDRINUSE}},
      {kConnect, {ECONNREFUSED, ETIMEDOUT, ENETUNREACH}},
      {kAccept, {EMFILE, ENFILE, ENOMEM, ECONNABORTED, EINTR}},
      {kEpoll, {ENOMEM, ENOSPC}},
      {kSend, {ECONNRESET, EPIPE, ENOMEM, EINTR, kShort}},
      {kReceive, {ECONNRESET, ENOMEM, EINTR, kShort}},
      {kPipeRead, {EIO, EINTR, kShort}},
      {kPipeWrite, {EPIPE, EIO, EINTR, kShort}},
      {kPoll, {EINTR, ENOMEM}},
  };
  return errors.at(call);
}

std::string to_text(const Point& p) {
  return fmt::format("{} {} {} {} x{} {}", p.job, kRoleNames[p.role], kCallNames[p.call], p.first,
                     p.times, error_name(p.error));
}

Point parse_point(std::string_view text) {
  std::istringstream words{std::string(text)};
  std::string role, call, error;
  Point p;
  char x = 0;
  if (!(words >> p.job >> role >> call >> p.first >> x >> p.times >> error) || x != 'x')
    fail(ErrorCode::invalid_argument,
         "'{}' is no point of injection; one looks like 'workers worker2 sync 14 x4 EIO'", text);
  p.role = static_cast<Role>(index_of(kRoleNames, role));
  p.call = static_cast<Call>(index_of(kCallNames, call));
  p.error = error_of(error);
  return p;
}

Point draw(Rng& rng, const std::string& job, const Counts& counts) {
  std::vector<Point> kinds;
  for (uint32_t role = kNobody + 1; role < kNumRoles; ++role)
    for (uint32_t call = 0; call < kNumCalls; ++call)
      if (counts.calls[role][call] > 0)
        kinds.push_back({job, static_cast<Role>(role), static_cast<Call>(call)});
  if (kinds.empty()) fail(ErrorCode::internal, "{}: no call of it was counted", job);
  Point point = kinds[rng.below(static_cast<uint32_t>(kinds.size()))];
  const auto count = static_cast<uint32_t>(counts.calls[point.role][point.call]);
  point.first = 1 + rng.below(count);
  constexpr uint64_t kTimes[] = {1, 1, 1, 3, 10};
  point.times = kTimes[rng.below(std::size(kTimes))];
  const std::vector<int>& errors = errors_of(point.call);
  point.error = errors[rng.below(static_cast<uint32_t>(errors.size()))];
  return point;
}

}  // namespace ductile::injection
