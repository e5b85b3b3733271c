#pragma once

#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "ductile/base/json_value.h"
#include "ductile/cluster/api.h"
#include "ductile/cluster/why_impl.h"

namespace ductile::cluster {

// Thrown where this principal may not do what it asks for.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A request on its way through a handler.
class Request {
 public:
  Request(Api& api, const Call& call, std::string_view argument, Reader& reader)
      : call(call), argument(argument), reader(reader), api_(api) {}

  const Call& call;
  const std::string_view argument;  // what stands for {...} in the path; empty: nothing
  Reader& reader;

  double now() const;
  const std::string& policy() const;
  std::string link() const;
  CurveCache& curves();
  QueueFigures queue() const;
  const RequestCounts& counts() const;
  const std::string& address() const;  // of the service, for other machines; empty: none
  const std::string& pin() const;
  void load_tokens();
  // The ledger with all that is committed. Not while reader.at_once() lives: of jobs that are newer
  // than its moment sums would be lost.
  void with_ledger(const std::function<void(const Ledger&)>& look);
  // A number of the query; throws invalid_argument outside its range.
  int64_t number(std::string_view name, int64_t otherwise, int64_t low, int64_t high) const;
  std::optional<std::string> text(std::string_view name) const;
  // The body as a JSON object; an empty one for no body.
  nlohmann::json object() const;

  const LiveView* view() const;  // null: nobody shows one
  void check(const Submission& submission, nlohmann::json& spec, const Beginning* beginning) const;

  // Makes a change and answers with what `write` gives. A request with a key is carried out once:
  // when it comes again, its first answer is given again.
  Answer commit(int status, const std::function<nlohmann::json(Change&)>& write,
                CommitQueue::Room room = CommitQueue::Room::usual);

 private:
  Api& api_;
};

struct Parameter {
  std::string_view name, type, help;
};

struct Route {
  std::string_view method;
  std::string_view path;  // with one {...} at most
  Role role;
  Answer (*handle)(Request&);
  std::string_view help;
  std::span<const Parameter> query;
  std::string_view body;  // the name of its schema; empty: none
};

std::span<const Route> routes();

// The job that a path names, of which something is changed: where several live ones have the name
// it says so.
JobRecord job_to_act_on(Request& request);
// What the query of a list of jobs narrows it to; throws invalid_argument for an unknown word.
JobFilter filter_of(const Request& request);
// An empty list of a user or a team that nobody knows would look like an answer: throws
// invalid_argument with those that are known.
void require_known(Request& request, const JobFilter& filter);
// Only the owner of a job, its team's tokens, and an admin may act on it; throws Refused.
void require_owner(const Principal& who, const JobRecord& job);

// Handlers that need what the service says of itself (cluster_routes.cc).
Answer resize_job(Request& request);
Answer reload_job(Request& request);
std::string why(Request& request, const JobRecord& job);
nlohmann::ordered_json shown_now(Request& request, const JobRecord& job);
void show_live(Request& request, const JobRecord& job, nlohmann::ordered_json& out);
nlohmann::json spec_shown(Request& request, JobId job);

// Those that pages are made of (routes_page.cc).
Answer show_overview(Request& request);
Answer show_allocations(Request& request);
Answer show_accounts(Request& request);
Answer show_curves(Request& request);
Answer show_log(Request& request);
Answer show_metric_lines(Request& request);
Answer show_options(Request& request);
Answer show_openapi(Request& request);
Answer make_page_link(Request& request);

Answer show_metrics(Request& request);  // routes_metrics.cc

// Of tokens (routes_tokens.cc).
Answer list_tokens(Request& request);
Answer add_token(Request& request);
Answer revoke_token(Request& request);

// Throws invalid_argument for what is no text on one line that a person can type and a page show.
void require_line(std::string_view text, std::string_view what);
// The same for what is named on command lines and in paths: neither empty nor with a slash, nor
// what looks like an option, a folder or another name, which it would be taken for.
void require_plain_name(std::string_view name, std::string_view what);

Answer json_answer(const nlohmann::ordered_json& value);

// A job as the interface shows it.
nlohmann::ordered_json to_json(const JobRecord& job);
nlohmann::ordered_json to_json(const Event& event);
nlohmann::ordered_json to_json(const ServingFigures& serving);

}  // namespace ductile::cluster
