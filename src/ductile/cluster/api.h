#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/cluster/commit_queue.h"
#include "ductile/cluster/curve_cache.h"
#include "ductile/cluster/ledger.h"
#include "ductile/cluster/principal.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/tokens.h"

// The service's interface for programs, without any network: a request goes in, an answer comes
// out. http_server.h puts it on sockets. All routes stand in one table (routes.cc), from which the
// OpenAPI page is made, too.
namespace ductile::cluster {

class EventFeed;
class LiveView;
class RequestCounts;
class TrustedTime;

struct Call {
  std::string method;  // GET, POST
  std::string path;    // "/v1/jobs/17", without the query, decoded
  std::map<std::string, std::string, std::less<>> query;
  std::string key;   // of the header Idempotency-Key; empty: none
  std::string body;  // JSON
  Principal principal;
};

struct Answer {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::map<std::string, std::string> headers;
};

// The largest body that is read.
inline constexpr size_t kMostBody = size_t{1} << 20;

// Thread-safe; holds a reader for each thread that is inside handle().
class Api {
 public:
  // The queue, whose store is there, must outlive this object. `clock`: seconds since 1970.
  Api(fs::path store, CommitQueue& queue, std::function<double()> clock = {});
  ~Api();

  // Before the first call: what refuses a submission by throwing, and what is told of each commit,
  // on the thread of the request.
  // It may put what was looked at in the place of what could mean something else later.
  // `beginning`: what it reads is to be there unless it begins after others, which may make it;
  // null: it has been taken before.
  using CheckSubmission = std::function<void(const Submission&, nlohmann::json& spec,
                                             const Principal& who, const Beginning* beginning)>;
  void check_submission(CheckSubmission check) { check_submission_ = std::move(check); }
  // What the service says of itself, which must outlive this object; null: nothing.
  void show(const LiveView* view) { view_ = view; }
  void on_commit(std::function<void()> told) { on_commit_ = std::move(told); }
  void set_policy(std::string name) { policy_ = std::move(name); }
  // A link that lets a browser in as this principal; without it there is no page.
  using MakeLink = std::function<std::string(const Principal&)>;
  void make_links(MakeLink link) { make_link_ = std::move(link); }

  // Where programs on other machines reach the service, for the access files of new tokens; `pin`:
  // of its certificate's key.
  void set_address(std::string address, std::string pin) {
    address_ = std::move(address);
    pin_ = std::move(pin);
  }
  // Whom a token of the store stands for.
  Recognition recognise(std::string_view token) const { return tokens_.recognise(token); }
  // What the store says of tokens, from now on; for those that were not made by a request.
  void load_tokens();

  // A request that was refused before it came here, for the figures.
  void count_refusal(int status);

  static constexpr double kRemembered = 86400;  // seconds that the answer for a key is kept

  // Never throws. Errors are {"error": text, "code": name}, with the status that fits.
  Answer handle(const Call& call);

  // For event streams. The newest events, as text; all that is committed is known to it after
  // look_at_events(), which throws as Reader does and gives the number of commits.
  const EventFeed& newest_events() const { return *feed_; }
  uint64_t look_at_events();
  // The text of events after number `after`, of one job or (0) of all, at most some hundred; moves
  // `after` behind them, or behind all that newest_events() knows. From the store: for those that
  // newest_events() has forgotten. Throws as Reader does, and Gone where some of all that follow
  // `after` were removed.
  std::string stored_events(Revision& after, JobId job);
  // CommitQueue::follow.
  uint64_t follow_commits(std::function<void()> told) { return queue_.follow(std::move(told)); }
  void unfollow_commits(uint64_t number) { queue_.unfollow(number); }
  // By number or name. Throws not_found.
  JobId find_job(std::string_view text);

 private:
  friend class Request;
  class ReaderLease;

  // `route`: the path in the table that it is for.
  Answer carry_out(const Call& call, std::string_view& route);

  const fs::path store_;
  CommitQueue& queue_;
  const std::function<double()> clock_;
  const std::unique_ptr<TrustedTime> trusted_time_;  // of the queue's thread
  CheckSubmission check_submission_;
  const LiveView* view_ = nullptr;
  std::function<void()> on_commit_;
  std::string policy_;
  MakeLink make_link_;
  std::string address_, pin_;
  Tokens tokens_;
  const std::unique_ptr<RequestCounts> counts_;
  const std::unique_ptr<EventFeed> feed_;
  std::mutex ledger_mutex_;
  Ledger ledger_;
  size_t most_sums_ = 200'000;  // of the ledger, until it forgets
  CurveCache curves_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Reader>> readers_;  // idle
};

// The OpenAPI 3 description of all routes.
nlohmann::ordered_json openapi();

}  // namespace ductile::cluster
