#include "ductile/cluster/api.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iterator>
#include <set>
#include <utility>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/table.h"
#include "ductile/cluster/event_feed_impl.h"
#include "ductile/cluster/metrics_impl.h"
#include "ductile/cluster/routes_impl.h"
#include "ductile/cluster/sha256_impl.h"
#include "ductile/cluster/trusted_time_impl.h"
#include "ductile/net/http_status.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::ordered_json;

struct RoleEntry {
  std::string_view name;
};
constexpr RoleEntry kRoles[] = {{"read"}, {"submit"}, {"admin"}};
constexpr Table<RoleEntry> kRoleTable("role:", kRoles);

constexpr size_t kMostKey = 200;
constexpr size_t kMostPath = 1000;
constexpr size_t kIdleReaders = 16;  // kept open, with a cache of its own each

Answer error_answer(int status, std::string_view code, std::string_view text) {
  Answer out{status};
  out.body = dump_json(Json{{"error", text}, {"code", code}});
  if (status == 503) out.headers["Retry-After"] = "1";
  return out;
}

// What {...} stands for if the path is of this pattern. It is never empty and has no slash.
std::optional<std::string_view> match(std::string_view pattern, std::string_view path) {
  const size_t open = pattern.find('{');
  if (open == std::string_view::npos)
    return pattern == path ? std::optional(std::string_view()) : std::nullopt;
  const std::string_view before = pattern.substr(0, open);
  const std::string_view after = pattern.substr(pattern.find('}') + 1);
  if (path.size() <= before.size() + after.size() || !path.starts_with(before) ||
      !path.ends_with(after))
    return std::nullopt;
  const std::string_view argument =
      path.substr(before.size(), path.size() - before.size() - after.size());
  return argument.find('/') == std::string_view::npos ? std::optional(argument) : std::nullopt;
}

// The same request has the same digest.
std::string digest_of(const Call& call) {
  return sha256(call.method + " " + call.path + "\n" + call.body);
}

}  // namespace

std::string_view to_string(Role role) { return kRoles[static_cast<size_t>(role)].name; }
Role role_from(std::string_view text) {
  return static_cast<Role>(&kRoleTable.at(text) - std::begin(kRoles));
}

// A reader of this store for the time of one request.
class Api::ReaderLease {
 public:
  explicit ReaderLease(Api& api) : api_(api) {
    {
      const std::lock_guard lock(api.mutex_);
      if (!api.readers_.empty()) {
        reader_ = std::move(api.readers_.back());
        api.readers_.pop_back();
      }
    }
    if (!reader_) reader_ = std::make_unique<Reader>(api.store_);
  }
  ~ReaderLease() {
    if (reader_->is_at_once()) return;  // whoever had it next would be told what was
    const std::lock_guard lock(api_.mutex_);
    if (api_.readers_.size() < kIdleReaders) api_.readers_.push_back(std::move(reader_));
  }
  Reader& operator*() { return *reader_; }

 private:
  Api& api_;
  std::unique_ptr<Reader> reader_;
};

Api::Api(fs::path store, CommitQueue& queue, std::function<double()> clock)
    : store_(std::move(store)),
      queue_(queue),
      clock_(clock ? std::move(clock) : wall_seconds),
      trusted_time_(std::make_unique<TrustedTime>(clock_())),
      tokens_(clock_),
      counts_(std::make_unique<RequestCounts>()),
      feed_(std::make_unique<EventFeed>()) {
  load_tokens();
}

Api::~Api() = default;

void Api::count_refusal(int status) { counts_->count("", "", status, 0); }

Answer Api::handle(const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  std::string_view route;
  Answer out = carry_out(call, route);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  // What clients make up makes no new series.
  const std::string_view method = route.empty() ? "" : call.method == "POST" ? "POST" : "GET";
  counts_->count(method, route, out.status, time.count());
  return out;
}

Answer Api::carry_out(const Call& call, std::string_view& which) {
  try {
    if (call.path.size() > kMostPath)
      return error_answer(414, "invalid_argument", "too long a path");
    if (call.body.size() > kMostBody)
      return error_answer(413, "invalid_argument", "the body is larger than 1 MiB");
    if (call.key.size() > kMostKey)
      return error_answer(400, "invalid_argument", "the Idempotency-Key is longer than 200 bytes");
    bool known = false;
    for (const Route& route : routes()) {
      const auto argument = match(route.path, call.path);
      if (!argument) continue;
      known = true;
      if (route.method != call.method) continue;
      which = route.path;
      for (const auto& [name, value] : call.query) {
        if (!std::ranges::any_of(route.query, [&](const Parameter& p) { return p.name == name; }))
          fail(ErrorCode::invalid_argument,
               "the path takes no parameter \"{}\"; /v1/openapi.json lists all", name);
      }
      if (call.principal.role < route.role)
        throw Refused(fmt::format("{} has the role \"{}\"; this takes \"{}\"", call.principal.name,
                                  to_string(call.principal.role), to_string(route.role)));
      ReaderLease reader(*this);
      Request request(*this, call, *argument, *reader);
      return route.handle(request);
    }
    return known ? error_answer(405, "invalid_argument", "this path has no such method")
                 : error_answer(404, "not_found",
                                "there is no such path; /v1/openapi.json lists all");
  } catch (const Refused& refused) {
    return error_answer(403, "refused", refused.what());
  } catch (const Gone& gone) {
    Json body = {{"error", gone.message()}, {"code", "gone"}, {"since", gone.since}};
    if (gone.begin > 0) body["begin"] = gone.begin;
    Answer out{410};
    out.body = dump_json(body);
    return out;
  } catch (const Error& error) {
    return error_answer(net::http_status(error.code()), to_string(error.code()), error.what());
  } catch (const std::exception& error) {
    return error_answer(500, "internal", error.what());
  }
}

uint64_t Api::look_at_events() {
  const uint64_t commits = queue_.commits();  // before the look: a later one is not missed
  if (feed_->knows(commits)) return commits;
  ReaderLease reader(*this);
  feed_->follow(*reader, commits);
  return commits;
}

std::string Api::stored_events(Revision& after, JobId job) {
  constexpr auto kPage = static_cast<int64_t>(EventFeed::kMostOfOne);
  const Revision known = feed_->newest();  // before the read, which sees at least as much
  ReaderLease reader(*this);
  const std::vector<Event> events =
      job == 0 ? (*reader).whole_events(after, kPage) : (*reader).events(after, kPage, job);
  std::string text;
  for (const Event& event : events) {
    text += EventFeed::text_of(event);
    after = event.seq;
  }
  // From here on memory has all of it, though the job has no newer event.
  if (static_cast<int64_t>(events.size()) < kPage) after = std::max(after, known);
  return text;
}

JobId Api::find_job(std::string_view text) {
  ReaderLease reader(*this);
  return (*reader).find(text).id;
}

void Api::load_tokens() {
  tokens_.load([this] {
    ReaderLease reader(*this);
    return (*reader).tokens();
  });
}

QueueFigures Request::queue() const { return api_.queue_.figures(); }
const RequestCounts& Request::counts() const { return *api_.counts_; }
const std::string& Request::address() const { return api_.address_; }
const std::string& Request::pin() const { return api_.pin_; }
void Request::load_tokens() { api_.load_tokens(); }

double Request::now() const { return api_.clock_(); }

const std::string& Request::policy() const { return api_.policy_; }

std::string Request::link() const {
  if (call.principal.by_token)
    throw Refused(
        "a link would outlive the token; users of the service's machine get one: ductile page");
  if (!api_.make_link_)
    fail(ErrorCode::not_found, "this service has no page; `ductile up` without --no-page has one");
  return api_.make_link_(call.principal);
}

CurveCache& Request::curves() { return api_.curves_; }

void Request::with_ledger(const std::function<void(const Ledger&)>& look) {
  constexpr int64_t kPage = 1000;
  const std::lock_guard lock(api_.ledger_mutex_);
  while (true) {
    const std::vector<Event> events = reader.allocation_events(api_.ledger_.seen(), kPage);
    for (const Event& event : events) api_.ledger_.add(event);
    if (static_cast<int64_t>(events.size()) < kPage) break;
  }
  if (api_.ledger_.sums() > api_.most_sums_) {
    std::set<JobId> kept;
    reader.for_each_owner([&](const Reader::JobOwner& job) { kept.insert(job.id); });
    api_.ledger_.keep_only(kept);
    api_.most_sums_ = std::max(api_.most_sums_, 2 * api_.ledger_.sums());
  }
  look(api_.ledger_);
}

std::optional<std::string> Request::text(std::string_view name) const {
  const auto found = call.query.find(name);
  return found == call.query.end() ? std::nullopt : std::optional(found->second);
}

int64_t Request::number(std::string_view name, int64_t otherwise, int64_t low, int64_t high) const {
  const auto given = text(name);
  if (!given) return otherwise;
  int64_t value = 0;
  const char* const last = given->data() + given->size();
  const auto [end, error] = std::from_chars(given->data(), last, value);
  if (error != std::errc() || end != last || value < low || value > high)
    fail(ErrorCode::invalid_argument, "{} = \"{}\": write a whole number from {} to {}", name,
         *given, low, high);
  return value;
}

nlohmann::json Request::object() const {
  if (call.body.empty()) return nlohmann::json::object();
  nlohmann::json value = parse_json(call.body, "body", ErrorCode::invalid_argument);
  if (!value.is_object())
    fail(ErrorCode::invalid_argument, "body: an object is wanted, not {}", value.type_name());
  return value;
}

const LiveView* Request::view() const { return api_.view_; }

void Request::check(const Submission& submission, nlohmann::json& spec,
                    const Beginning* beginning) const {
  if (api_.check_submission_) api_.check_submission_(submission, spec, call.principal, beginning);
}

Answer Request::commit(int status, const std::function<nlohmann::json(Change&)>& write,
                       CommitQueue::Room room) {
  Answer out{status};
  const std::string digest = digest_of(call);
  const auto whole = [&](Change& change) {
    if (!call.key.empty()) {
      // A clock that is set ahead makes no answer old. To forget many takes room, too.
      const auto sure = api_.trusted_time_->now(now(), steady_seconds());
      if (sure && room == CommitQueue::Room::usual) change.forget_answers(*sure - Api::kRemembered);
      if (const auto before = change.answered(call.principal.name, call.key, digest)) {
        out.body = *before;
        return;
      }
    }
    const int64_t rows = change.rows_written();
    out.body = dump_json(write(change));
    // What is kept of a full disk is for what ends jobs: who asks there for what is so already gets
    // his answer without any room, and again should he send it again. Nobody can take back what he
    // asked for before there is room.
    const bool is_news = !change.short_of_room() || change.rows_written() > rows;
    if (!call.key.empty() && is_news)
      change.remember_answer(call.principal.name, call.key, digest, out.body, now());
  };
  api_.queue_.commit(whole, room);
  if (api_.on_commit_) api_.on_commit_();
  return out;
}

}  // namespace ductile::cluster
