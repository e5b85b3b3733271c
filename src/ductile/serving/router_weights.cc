// Once one replica has loaded what somebody asked for, all are to have it: one that could not load
// it in that turn is asked again, or replaced.
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/serving/router_impl.h"

namespace ductile::serving {
namespace {

// Which weights a server says that it has loaded; none: it does not say it.
std::optional<int64_t> version_in(const HttpResponse& response) try {
  const nlohmann::json answer = parse_json(response.body, "the answer", ErrorCode::data_loss);
  return std::stoll(answer.value("model_version", ""));
} catch (const std::exception&) {
  return std::nullopt;
}

}  // namespace

void Router::Impl::begin_load(PassagePtr passage) {
  if (loading_) return to_load_.push_back(std::move(passage));
  loading_ = passage;
  limit(passage);
  dispatch(passage);
}

void Router::Impl::load_weights(const std::string& model, std::optional<int64_t> version,
                                HttpServer::Reply reply) {
  if (draining_) return reply(come_again("the server is ending"));
  const PassagePtr passage = arrived("", std::move(reply));
  passage->load_path = fmt::format("/v2/repository/models/{}/load", model);
  ask_for(*passage, version);
  passage->version.reset();  // what the first replica has loaded
  begin_load(passage);
}

void Router::Impl::next_load() {
  if (loading_) return;
  if (to_load_.empty()) return look_at_versions();
  PassagePtr next = std::move(to_load_.front());
  to_load_.pop_front();
  begin_load(std::move(next));
}

// Brings all to what is wanted, one after the other.
void Router::Impl::look_at_versions() {
  if (options_.model.empty() || !wanted_ || loading_ || draining_) return;
  const auto passage = std::make_shared<Passage>();
  passage->own = true;
  passage->load_path = fmt::format("/v2/repository/models/{}/load", options_.model);
  ask_for(*passage, wanted_);
  if (choose(*passage) == 0) return;
  passage->reply = [](HttpResponse) {};
  passage->arrived = loop_.now();
  ++open_;
  loading_ = passage;
  dispatch(passage);
}

void Router::Impl::ask_for(Passage& passage, std::optional<int64_t> version) {
  passage.version = version;
  HttpRequest request{"POST", passage.load_path, {}, {}};
  if (version)
    request.body =
        dump_json(nlohmann::json{{"parameters", {{"version", std::to_string(*version)}}}});
  passage.bytes = to_bytes(request, address().to_string());
}

void Router::Impl::set_wanted(std::optional<int64_t> version) {
  wanted_ = version;
  for (auto& [id, replica] : replicas_) {
    if (!wanted_ || replica.version == wanted_) replica.catching_up = false;
  }
  dispatch_all();
}

void Router::Impl::has_loaded(ReplicaId id, const PassagePtr& passage, HttpResponse response) {
  passage->done.push_back(id);
  const std::optional<int64_t> version = version_in(response);
  passage->loaded = std::move(response);
  if (!passage->own) limit(passage);  // for each replica anew
  if (!version) return;
  Replica& replica = replicas_.at(id);
  replica.version = version;
  if (!passage->version) {  // the others load what this one found, also where there is newer now
    ask_for(*passage, version);
    if (!options_.model.empty()) wanted_ = version;
  }
  set_wanted(wanted_);
  if (on_changed_) on_changed_(id, *version);
}

// False: nobody has loaded anything in this turn, and nobody is to.
bool Router::Impl::goes_on_without(ReplicaId id, Passage& passage, int status) {
  if (!passage.own && passage.done.empty()) return false;
  if (status == 404 && passage.own && passage.version) {
    // What all had is there no more: they take the newest.
    set_wanted({});
    passage.done.clear();
    ask_for(passage, {});
    return true;
  }
  passage.refused.push_back(id);
  if (status == 409 || status == 503) return true;  // it loads others just now, or is ending
  replicas_.at(id).told_lost = true;
  if (on_lost_) on_lost_(id);
  return true;
}

// Whom a load did not reach has other weights than all are said to have: it gets no requests before
// it has loaded these, too.
void Router::Impl::leave_behind() {
  if (options_.model.empty() || !wanted_) return;
  for (auto& [id, replica] : replicas_)
    if (replica.version && replica.version != wanted_) replica.catching_up = true;
}

void Router::Impl::end_load(const PassagePtr& passage) {
  if (!passage->own && passage->done.empty())
    return finish(passage, error_response(503, "there is no replica that could load weights"));
  if (!passage->own) {
    ++load_.answered;
    leave_behind();
    if (passage->version && on_loaded_) on_loaded_(*passage->version);
  }
  finish(passage, std::move(passage->loaded));
}

}  // namespace ductile::serving
