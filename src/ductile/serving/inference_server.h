#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ductile/net/loop.h"
#include "ductile/serving/batch_queue.h"
#include "ductile/serving/http_server.h"
#include "ductile/serving/model.h"

namespace ductile::serving {

struct ServingOptions {
  HttpOptions http;
  BatchRules batches;
  std::optional<int64_t> version;  // the first weights; none: the newest
  std::chrono::milliseconds timeout = std::chrono::seconds(30);  // of a request that names none
  // How often to look for newer weights; 0: only when somebody asks for them.
  std::chrono::milliseconds follow{0};
  std::chrono::milliseconds drain = std::chrono::seconds(60);  // to finish what was accepted
  std::function<void()> prepare_thread;                        // for each thread that computes
  // Lines for people: weights that were loaded, or refused. Called on the loop's thread.
  std::function<void(const std::string&)> tell;
};

// Answers inference requests for one model over HTTP: the Open Inference Protocol, version 2, with
// /healthz, /readyz and /metrics. One thread runs the model, another one loads weights. All methods
// belong to the loop's thread.
//
//   GET  /v2, /v2/health/live, /v2/health/ready, /v2/models/NAME[/versions/V][/ready]
//   POST /v2/models/NAME[/versions/V]/infer
//   POST /v2/repository/models/NAME/load     {"parameters": {"version": "STEP"}}, or no body
//
// New weights are loaded beside the old ones, checked, and used from the next batch on. Where that
// fails, the old ones stay, and the answer says why.
class InferenceServer {
 public:
  // Loads the first weights, with the errors of the source; then listens.
  InferenceServer(net::Loop& loop, ServingOptions options, std::unique_ptr<ModelSource> source);
  InferenceServer(const InferenceServer&) = delete;
  InferenceServer& operator=(const InferenceServer&) = delete;
  ~InferenceServer();

  net::Address address() const;
  int64_t version() const;
  net::Deadline last_asked() const;  // when a request came last, of health, too; else the beginning
  // Answers what was accepted, refuses what comes, and calls `on_drained`, at the latest after
  // ServingOptions::drain.
  void drain(std::function<void()> on_drained);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::serving
