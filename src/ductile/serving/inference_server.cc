#include "ductile/serving/inference_server.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/net/http_status.h"
#include "ductile/serving/batcher.h"
#include "ductile/serving/inference.h"
#include "ductile/serving/metrics.h"

namespace ductile::serving {
namespace {

using nlohmann::json;
using Reply = HttpServer::Reply;

HttpResponse answer_of(const Error& error) {
  return error_response(net::http_status(error.code()), error.what());
}

HttpResponse answer_of(const json& value) {
  HttpResponse out;
  out.body = dump_json(value) + "\n";
  return out;
}

HttpResponse plain(std::string text, int status = 200) {
  HttpResponse out;
  out.status = status;
  out.type = "text/plain; charset=utf-8";
  out.body = std::move(text);
  return out;
}

HttpResponse come_again(int status, std::string_view text) {
  HttpResponse out = error_response(status, text);
  out.headers.emplace_back("Retry-After", "1");
  return out;
}

// A request from its acceptance to its answer.
struct Task {
  InferenceRequest request;
  Reply reply;
  Time began{};
  WorkPtr work;                                // now in the batcher
  std::vector<int64_t> tokens;                 // generated so far, step by step: one of each sample
  std::vector<std::vector<int64_t>> contexts;  // of each sample
};

}  // namespace

class InferenceServer::Impl {
 public:
  Impl(net::Loop& loop, ServingOptions options, std::unique_ptr<ModelSource> source);
  ~Impl();

  net::Address address() const { return http_->address(); }
  int64_t version() const { return batcher_->deployment().model->card().version; }
  net::Deadline last_asked() const { return last_asked_; }
  void drain(std::function<void()> on_drained);

 private:
  void handle(HttpRequest request, Reply reply);
  std::optional<HttpResponse> answer_get(const std::string& path);
  HttpResponse answer_model(std::string_view rest, const ModelCard& card);
  void infer(HttpRequest& request, std::string_view version, const Reply& reply);
  void submit(const std::shared_ptr<Task>& task);
  void done(BatchReport report);
  void advance(const std::shared_ptr<Task>& task);
  void answer(const std::shared_ptr<Task>& task, HttpResponse response);
  void load(HttpRequest& request, const Reply& reply);
  std::optional<Deployment> load_now(std::optional<int64_t> wanted, std::optional<int64_t> now);
  void reload(std::optional<int64_t> wanted, bool only_newer, Reply reply);
  void loaded(Deployment deployment, const Reply& reply);
  void not_loaded(const Error& error, const Reply& reply);
  void look_for_newer();
  void end_drain();

  net::Loop& loop_;
  const ServingOptions options_;
  const std::unique_ptr<ModelSource> source_;  // of the loading thread, once there is one
  Metrics metrics_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<Work*, std::shared_ptr<Task>> tasks_;  // by what is in the batcher
  std::unique_ptr<Batcher> batcher_;
  std::unique_ptr<HttpServer> http_;
  std::jthread loader_;
  bool loading_ = false, draining_ = false;
  // Of the loading thread: what is not looked at again by itself, as damaged weights, and those
  // that there were when somebody chose others.
  std::optional<int64_t> damaged_, passed_over_;
  std::string last_refusal_;
  net::Loop::Timer follow_, drain_limit_;
  net::Deadline last_asked_ = loop_.now();
  std::function<void()> on_drained_;
};

InferenceServer::Impl::Impl(net::Loop& loop, ServingOptions options,
                            std::unique_ptr<ModelSource> source)
    : loop_(loop), options_(std::move(options)), source_(std::move(source)) {
  const BatchRules& rules = options_.batches;
  Deployment first = deploy(source_->load(options_.version), rules.max_batch);
  batcher_ = std::make_unique<Batcher>(
      rules, std::move(first),
      [this, mailbox = loop.mailbox(), alive = std::weak_ptr<bool>(alive_)](BatchReport report) {
        mailbox.post([this, alive, report = std::move(report)]() mutable {
          if (!alive.expired()) done(std::move(report));
        });
      },
      options_.prepare_thread);
  http_ = std::make_unique<HttpServer>(
      loop_, options_.http,
      [this](HttpRequest request, Reply reply) { handle(std::move(request), std::move(reply)); });
  if (options_.follow.count() > 0)
    follow_ = loop_.every(options_.follow, [this] { look_for_newer(); });
}

InferenceServer::Impl::~Impl() {
  http_.reset();
  batcher_.reset();
}

void InferenceServer::Impl::handle(HttpRequest request, Reply reply) {
  last_asked_ = loop_.now();
  try {
    const std::string model = "/v2/models/" + batcher_->deployment().model->card().name;
    const std::string& path = request.path;
    if (request.method == "GET") {
      auto response = answer_get(path);
      return reply(response ? std::move(*response)
                            : error_response(404, fmt::format("there is no {}", path)));
    }
    if (request.method != "POST")
      return reply(error_response(405, "GET and POST are what there is"));
    if (path == "/v2/repository" + model.substr(3) + "/load") return load(request, reply);
    const bool of_model = path.starts_with(model + "/") && path.ends_with("/infer");
    if (!of_model) return reply(error_response(404, fmt::format("there is no {}", path)));
    const std::string rest =
        path.substr(model.size(), path.size() - model.size() - std::strlen("/infer"));
    if (!rest.empty() && !rest.starts_with("/versions/"))
      return reply(error_response(404, fmt::format("there is no {}", path)));
    infer(request, rest.empty() ? "" : rest.substr(std::strlen("/versions/")), reply);
  } catch (const Error& error) {
    if (request.path.ends_with("/infer")) ++metrics_.answers[net::http_status(error.code())];
    reply(answer_of(error));
  }
}

std::optional<HttpResponse> InferenceServer::Impl::answer_get(const std::string& path) {
  const Deployment deployment = batcher_->deployment();
  const std::shared_ptr<Model>& model = deployment.model;
  if (path == "/healthz" || path == "/v2/health/live") return plain("ok\n");
  if (path == "/readyz" || path == "/v2/health/ready")
    return draining_ ? plain("draining\n", 503) : plain("ok\n");
  if (path == "/metrics") {
    metrics_.waiting = batcher_->waiting();
    metrics_.connections = static_cast<int64_t>(http_->connections());
    metrics_.in_flight = static_cast<int64_t>(tasks_.size());
    metrics_.version = version();
    HttpResponse out = plain(metrics_.text());
    out.type = "text/plain; version=0.0.4; charset=utf-8";
    return out;
  }
  if (path == "/v2")
    return answer_of(json{{"name", "ductile"},
                          {"version", "2"},
                          {"extensions", {"binary_tensor_data", "model_repository"}}});
  const std::string begin = "/v2/models/" + model->card().name;
  if (!path.starts_with(begin)) return std::nullopt;
  std::string_view rest = std::string_view(path).substr(begin.size());
  const std::string versions = fmt::format("/versions/{}", model->card().version);
  if (rest.starts_with(versions)) rest.remove_prefix(versions.size());
  if (rest == "/ready") return draining_ ? plain("draining\n", 503) : plain("ok\n");
  if (!rest.empty()) return std::nullopt;
  return answer_of(describe_model(deployment));
}

void InferenceServer::Impl::infer(HttpRequest& request, std::string_view version,
                                  const Reply& reply) {
  if (draining_) {
    ++metrics_.answers[503];
    return reply(come_again(503, "the server is ending; ask another one"));
  }
  const Deployment deployment = batcher_->deployment();
  const ModelCard& card = deployment.model->card();
  if (!version.empty() && version != std::to_string(card.version))
    fail(ErrorCode::not_found, "there is no version {} of model {}; it has {}", version, card.name,
         card.version);
  const auto task = std::make_shared<Task>();
  task->began = Clock::now();
  task->request = read_inference(request, card);
  task->reply = reply;
  task->work = std::make_shared<Work>();
  Work& work = *task->work;
  work.samples = task->request.samples;
  work.memory = task->request.memory;
  work.deadline = task->began + task->request.timeout.value_or(options_.timeout);
  // Named weights, and those of a generation, stay the same until the answer.
  if (!version.empty()) work.deployment = deployment;
  for (const Sample& sample : work.samples) {
    if (task->request.generation.max_tokens == 0) break;
    std::vector<int64_t>& context = task->contexts.emplace_back(sample.bytes.size() / 8);
    std::memcpy(context.data(), sample.bytes.data(), context.size() * 8);
  }
  submit(task);
}

void InferenceServer::Impl::submit(const std::shared_ptr<Task>& task) {
  tasks_[task->work.get()] = task;
  if (batcher_->submit(task->work)) return;
  tasks_.erase(task->work.get());
  answer(task, come_again(429, "too many samples wait; try again later"));
}

void InferenceServer::Impl::done(BatchReport report) {
  if (report.size > 0) {
    metrics_.batch_seconds.add(report.seconds);
    metrics_.batch_samples.add(static_cast<double>(report.samples));
    metrics_.samples += report.samples;
    metrics_.filled += report.size - report.samples;
    metrics_.busy_seconds += report.seconds;
  }
  for (const WorkPtr& work : report.done) {
    const auto found = tasks_.find(work.get());
    if (found == tasks_.end()) continue;
    const std::shared_ptr<Task> task = std::move(found->second);
    tasks_.erase(found);
    if (work->error) {
      answer(task, answer_of(*work->error));
    } else if (!std::ranges::all_of(work->out, [](float v) { return std::isfinite(v); })) {
      answer(task, error_response(400,
                                  "what the model computes of these values is no number; they "
                                  "are far from what it was trained with"));
    } else if (task->request.generation.max_tokens > 0) {
      advance(task);
    } else {
      answer(task, answer_inference(task->request, work->deployment.model->card(),
                                    {std::move(work->out), {}}));
    }
  }
}

// Draws the next token of each sample; the samples with it are the next work.
void InferenceServer::Impl::advance(const std::shared_ptr<Task>& task) {
  const WorkPtr before = task->work;
  const ModelCard& card = before->deployment.model->card();
  const auto values = static_cast<size_t>(card.output[0]), count = before->samples.size();
  const auto position = static_cast<int64_t>(task->tokens.size() / count);
  const GenerationOptions& options = task->request.generation;
  auto memory = std::make_shared<std::string>();
  std::vector<size_t> lengths;
  for (size_t i = 0; i < count; ++i) {
    std::vector<int64_t>& context = task->contexts[i];
    const int64_t token = draw_token({before->out.data() + i * values, values}, options,
                                     static_cast<int64_t>(i), position);
    task->tokens.push_back(token);
    context.push_back(token);
    const size_t kept = std::min(context.size(), static_cast<size_t>(card.input[0]));
    memory->append(reinterpret_cast<const char*>(context.data() + context.size() - kept), kept * 8);
    lengths.push_back(kept);
  }
  if (position + 1 == options.max_tokens) {
    std::vector<int64_t> by_sample;
    for (size_t i = 0; i < count; ++i) {
      for (size_t k = i; k < task->tokens.size(); k += count) by_sample.push_back(task->tokens[k]);
    }
    return answer(task, answer_inference(task->request, card, {{}, std::move(by_sample)}));
  }
  task->work = std::make_shared<Work>();
  task->work->memory = memory;
  task->work->deadline = before->deadline;
  task->work->deployment = before->deployment;
  size_t at = 0;
  for (const size_t length : lengths) {
    task->work->samples.push_back({Sample::Kind::tokens,
                                   {static_cast<int64_t>(length)},
                                   std::as_bytes(std::span(*memory)).subspan(at, length * 8)});
    at += length * 8;
  }
  submit(task);
}

void InferenceServer::Impl::answer(const std::shared_ptr<Task>& task, HttpResponse response) {
  ++metrics_.answers[response.status];
  if (response.status == 200)
    metrics_.request_seconds.add(std::chrono::duration<double>(Clock::now() - task->began).count());
  task->reply(std::move(response));
  if (draining_ && tasks_.empty()) end_drain();
}

void InferenceServer::Impl::load(HttpRequest& request, const Reply& reply) {
  // No page of another site may do this: its browser says where the request comes from.
  if (request.header("origin") != nullptr)
    return reply(error_response(403, "weights are not changed on behalf of a web page"));
  if (!is_own(request))
    return reply(error_response(403, "weights are changed by the user whose server this is"));
  std::optional<int64_t> wanted;
  if (!request.body.empty()) {
    const json body = parse_json(request.body, "the request", ErrorCode::invalid_argument);
    const JsonFields fields(body, "the request");
    fields.only({"parameters"});
    if (fields.has("parameters")) {
      const JsonFields p(fields.at("parameters"), "parameters");
      p.only({"version"});
      const std::string text = p.text("version", "");
      const bool digits = std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
      if (!digits || text.empty() || text.size() > 18)
        fail(ErrorCode::invalid_argument,
             "parameters: version = \"{}\" must be the number of a step, as text", text);
      wanted = std::stoll(text);
    }
  }
  if (draining_) return reply(come_again(503, "the server is ending"));
  if (loading_) return reply(come_again(409, "weights are being loaded; try again later"));
  reload(wanted, false, reply);
}

void InferenceServer::Impl::look_for_newer() {
  if (!loading_ && !draining_) reload(std::nullopt, true, {});
}

// On the loading thread. None: there is nothing newer than `now`.
std::optional<Deployment> InferenceServer::Impl::load_now(std::optional<int64_t> wanted,
                                                          std::optional<int64_t> now) {
  if (options_.prepare_thread) options_.prepare_thread();
  if (now) {
    wanted = source_->newest();
    if (!wanted || *wanted <= *now || wanted == damaged_) return std::nullopt;
    if (passed_over_ && *wanted <= *passed_over_) return std::nullopt;
  }
  try {
    Deployment made = deploy(source_->load(wanted), options_.batches.max_batch);
    if (!now) passed_over_ = wanted ? source_->newest() : std::nullopt;
    return made;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::data_loss) damaged_ = wanted;
    throw;
  }
}

void InferenceServer::Impl::reload(std::optional<int64_t> wanted, bool only_newer, Reply reply) {
  loading_ = true;
  const auto post = [mailbox = loop_.mailbox(), alive = std::weak_ptr<bool>(alive_)](auto what) {
    mailbox.post([alive, what = std::move(what)]() mutable {
      if (!alive.expired()) what();
    });
  };
  const auto now = only_newer ? std::optional(version()) : std::nullopt;
  const auto load = [this, wanted, now, reply, post] {
    try {
      auto made = load_now(wanted, now);
      if (!made) return post([this] { loading_ = false; });
      post([this, made = std::move(*made), reply] { loaded(made, reply); });
    } catch (const Error& error) {
      post([this, error, reply] { not_loaded(error, reply); });
    } catch (const std::exception& other) {
      post([this, error = Error(ErrorCode::internal, other.what()), reply] {
        not_loaded(error, reply);
      });
    }
  };
  try {
    loader_ = std::jthread(load);
  } catch (const std::system_error& error) {
    not_loaded(Error(ErrorCode::unavailable,
                     fmt::format("no thread can be started now ({}); try again", error.what())),
               reply);
  }
}

void InferenceServer::Impl::loaded(Deployment deployment, const Reply& reply) {
  loading_ = false;
  last_refusal_.clear();
  const int64_t before = version();
  const ModelCard& card = deployment.model->card();
  if (card.input != batcher_->deployment().model->card().input ||
      card.output != batcher_->deployment().model->card().output)
    return not_loaded(
        Error(ErrorCode::conflict, "the weights are those of a model with other inputs or outputs"),
        reply);
  ++metrics_.reloads;
  const std::string text = fmt::format(
      "the weights are those of step {} now; they were those of step {}", card.version, before);
  const json answer = {{"model_name", card.name},
                       {"model_version", std::to_string(card.version)},
                       {"weights_digest", card.digest}};
  batcher_->replace(std::move(deployment));
  if (options_.tell) options_.tell(text);
  if (reply) reply(answer_of(answer));
}

void InferenceServer::Impl::not_loaded(const Error& error, const Reply& reply) {
  loading_ = false;
  const std::string text =
      fmt::format("the weights stay those of step {}: {}", version(), error.what());
  if (reply) reply(error_response(net::http_status(error.code()), text));
  // One that is followed, or asked for by a router, is tried again and again, and is told of once.
  if (!reply && text == last_refusal_) return;
  ++metrics_.refused_reloads;
  if (text == last_refusal_) return;
  last_refusal_ = text;
  if (options_.tell) options_.tell(text);
}

void InferenceServer::Impl::drain(std::function<void()> on_drained) {
  draining_ = true;
  on_drained_ = std::move(on_drained);
  follow_.cancel();
  drain_limit_ = loop_.after(options_.drain, [this] {
    if (on_drained_) std::exchange(on_drained_, {})();
  });
  if (tasks_.empty()) end_drain();
}

// All that was accepted is answered; what is left is that the answers arrive.
void InferenceServer::Impl::end_drain() {
  http_->drain([this] {
    if (on_drained_) std::exchange(on_drained_, {})();
  });
}

InferenceServer::InferenceServer(net::Loop& loop, ServingOptions options,
                                 std::unique_ptr<ModelSource> source)
    : impl_(std::make_unique<Impl>(loop, std::move(options), std::move(source))) {}
InferenceServer::~InferenceServer() = default;
net::Address InferenceServer::address() const { return impl_->address(); }
int64_t InferenceServer::version() const { return impl_->version(); }
net::Deadline InferenceServer::last_asked() const { return impl_->last_asked(); }
void InferenceServer::drain(std::function<void()> on_drained) {
  impl_->drain(std::move(on_drained));
}

}  // namespace ductile::serving
