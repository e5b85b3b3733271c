// What --after names: jobs, ranges of their numbers, arrays and patterns.
#include <algorithm>
#include <charconv>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/fleet/service_request_impl.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostJobs = 1000;  // of one range, as of an array

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = -1;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = read.ec == std::errc() && read.ptr == text.data() + text.size();
  return whole && value >= 0 && text.front() != '-' ? std::optional(value) : std::nullopt;
}

// "17-26": no job is called so, as a name has a letter.
std::optional<std::pair<int64_t, int64_t>> range_of(const std::string& text) {
  const size_t mark = text.find('-');
  if (mark == std::string::npos || mark == 0) return std::nullopt;
  const auto first = whole_number(std::string_view(text).substr(0, mark));
  const auto last = whole_number(std::string_view(text).substr(mark + 1));
  if (!first || !last) return std::nullopt;
  if (*last < *first || *last - *first >= kMostJobs)
    fail(ErrorCode::invalid_argument,
         "--after {}: a range goes from a smaller number to a larger one, and has {} jobs at most",
         text, kMostJobs);
  return std::pair(*first, *last);
}

// With how many it came as an array, which its first event says; 0: it came alone, or the service
// was an earlier one, which did not say so.
int64_t came_with(int64_t job, const cluster::Client& client) {
  const Json events = client.get(fmt::format("/v1/events?job={}&limit=1", job)).at("events");
  if (events.empty() || events.front().at("kind") != "submitted") return 0;
  return events.front().at("body").value("array", int64_t{0});
}

// A job by itself may be called like a member, and be beside those of an array. Several that look
// like members are an array also where none says so. Empty: the newest job that looks like a member
// is none, and neither that one nor what is newer is left in `jobs`.
std::vector<int64_t> array_in(const std::string& name, Json& jobs, const cluster::Client& client) {
  std::vector<int64_t> members = members_of_array(name, jobs);
  if (members.empty()) return members;
  const int64_t newest = members.back(), all = came_with(newest, client);
  const auto count = static_cast<int64_t>(members.size());
  const auto says_so = [&](int64_t member) { return came_with(member, client) > 0; };
  if (all == 0 && (count == 1 || says_so(members[members.size() - 2]) || says_so(members[0]))) {
    Json older = Json::array();
    for (Json& job : jobs)
      if (job.at("id").get<int64_t>() < newest) older.push_back(std::move(job));
    jobs = std::move(older);
    return {};
  }
  if (all > 0 && all < count) members.erase(members.begin(), members.end() - all);
  return members;
}

// Of the user who asks, whom the service need not know yet: a list of an unknown user's is refused.
std::vector<int64_t> newest_array(const std::string& name, const cluster::Client& client) {
  const auto me = client.get("/v1/overview").at("principal").get<std::string>();
  const std::string page = "/v1/jobs?limit=1000&name=" + cluster::percent_encoded(name + "-*");
  Json jobs = Json::array();
  for (std::string next = page;;) {
    const Json answer = client.get(next);
    for (const Json& job : answer.at("jobs"))
      if (job.at("owner") == me) jobs.push_back(job);
    const bool last = !answer.contains("before");
    while (true) {
      const std::vector<int64_t> seen = members_of_array(name, jobs);
      const bool more =
          !last && !seen.empty() && seen.front() == jobs.back().at("id").get<int64_t>();
      if (seen.empty() || more) break;  // what is left, or the rest of it, is on the next page
      if (std::vector<int64_t> members = array_in(name, jobs, client); !members.empty())
        return members;
    }
    if (last) return {};
    next = fmt::format("{}&before={}", page, answer["before"].get<int64_t>());
  }
}

void require_one_of_the_name(const std::string& name, const cluster::Client& client) {
  const Json live = client.get("/v1/jobs?live=1&limit=1000&name=" + cluster::percent_encoded(name));
  std::vector<int64_t> same;
  for (const Json& other : live.at("jobs"))
    if (other.at("name") == name) same.push_back(other.at("id").get<int64_t>());
  if (same.size() > 1)
    fail(ErrorCode::conflict,
         "--after {}: several jobs that have not ended are called so, as {} and {}: say which by "
         "its number",
         name, same[0], same[1]);
}

// One job of that name, or an array that is newer.
std::vector<int64_t> jobs_of_name(const std::string& name, const cluster::Client& client) {
  std::optional<Json> job;
  std::exception_ptr unknown;
  try {
    job.emplace(client.get(path_of(name)));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    unknown = std::current_exception();
  }
  const std::vector<int64_t> array = newest_array(name, client);
  if (!job && array.empty()) std::rethrow_exception(unknown);
  if (!job) return array;
  const auto id = job->at("id").get<int64_t>();
  const bool is_newer = !array.empty() && array.back() > id;
  if (is_newer && !job->at("ended").is_null()) return array;
  if (is_newer)
    fail(ErrorCode::conflict,
         "--after {0}: job {1} is called so, and jobs {2} to {3} are an array of that name: say "
         "which by number, {1} or {2}-{3}",
         name, id, array.front(), array.back());
  require_one_of_the_name(name, client);
  return {id};
}

}  // namespace

std::vector<int64_t> members_of_array(const std::string& name, const Json& jobs) {
  constexpr double kOneRequest = 1;  // seconds: an earlier service gave each a time of its own
  const std::string prefix = name + "-";
  std::vector<int64_t> out;
  int64_t above = 0;
  double submitted = 0;
  for (const Json& job : jobs) {
    const auto called = job.at("name").get<std::string>();
    const auto found = called.starts_with(prefix) && called.size() > prefix.size()
                           ? whole_number(std::string_view(called).substr(prefix.size()))
                           : std::nullopt;
    const int64_t index = found.value_or(-1);  // -1: no member
    const auto id = job.at("id").get<int64_t>();
    const auto time = job.at("submitted").get<double>();
    const bool goes_on = index >= 0 && !out.empty() && id == out.back() - 1 && index < above &&
                         submitted - time < kOneRequest;
    if (!out.empty() && !goes_on) break;
    if (index < 0) continue;
    out.push_back(id);
    above = index;
    submitted = time;
  }
  std::ranges::reverse(out);
  return out;
}

std::vector<int64_t> earlier_jobs(const std::vector<std::string>& after,
                                  const cluster::Client& client) {
  std::set<int64_t> out;
  for (const std::string& text : after) {
    if (const auto range = range_of(text)) {
      for (int64_t id = range->first; id <= range->second; ++id) out.insert(id);
    } else if (whole_number(text) || is_pattern(text)) {
      for (const std::string& job : with_own_matches({text}, client))
        out.insert(find_or_none_fits(
            job, [&] { return client.get(path_of(job)).at("id").get<int64_t>(); }));
    } else {
      for (const int64_t id : jobs_of_name(text, client)) out.insert(id);
    }
  }
  return {out.begin(), out.end()};
}

}  // namespace ductile::cli
