#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/cluster/testing/live_service.h"
#include "ductile/net/socket.h"
#include "ductile/serving/testing/client.h"
#include "ductile/serving/testing/small_model.h"

// Services that answer requests, and clients that ask them.
namespace ductile::cluster::testing {

using serving::testing::Client;
using serving::testing::json_of;

// A run that can be served; see testing/serving_worker.cc.
struct ServedRun {
  explicit ServedRun(int takes = 0) {
    write_file_atomic(folder.path() / "job.toml", "name = \"small\"\n");
    write_file_atomic(folder.path() / "takes", std::to_string(takes));
    write_file_atomic(folder.path() / "newest", "7");
  }
  Json spec() const { return {{"run", folder.path().string()}, {"model", "small"}}; }
  TempFolder folder;
};

inline JobId submit_service(LiveService& service, const ServedRun& run, int64_t least, int64_t most,
                            const Json& more = Json::object()) {
  Json spec = run.spec();
  spec.update(more);
  const Json body = {{"name", "api"},
                     {"kind", "serve"},
                     {"min_devices", least},
                     {"max_devices", most},
                     {"spec", spec}};
  const Json answer = service.send("POST", "/v1/jobs", dump_json(body));
  EXPECT_EQ(answer.value("status", 0), 201) << answer;
  return answer.at("body").value("id", JobId{0});
}

inline int64_t ready_of(const Json& job) {
  return job.contains("serving") ? job["serving"].value("replicas", int64_t{0}) : 0;
}

inline Json wait_for_replicas(LiveService& service, JobId id, int64_t replicas) {
  return service.wait(id, [&](const Json& job) { return ready_of(job) == replicas; });
}

inline net::Address address_of(const Json& job) {
  const auto url = job.at("serving").at("address").get<std::string>();
  constexpr std::string_view kScheme = "http://";
  return net::Address::parse(url.substr(kScheme.size(), url.find("/v2") - kScheme.size()));
}

inline std::set<pid_t> replicas_of(LiveService& service) {
  std::set<pid_t> out;
  for (const pid_t pid : service.workers()) {
    try {
      if (read_file(fs::path("/proc") / std::to_string(pid) / "cmdline").find("--serve") !=
          std::string::npos)
        out.insert(pid);
    } catch (const Error&) {  // gone
    }
  }
  return out;
}

inline std::string body_of(const std::vector<float>& values) {
  const Json input = {
      {"name", "images"}, {"datatype", "FP32"}, {"shape", {1, 1, 4, 4}}, {"data", values}};
  return dump_json(Json{{"inputs", {input}}, {"outputs", {{{"name", "logits"}}}}});
}

// Clients that ask without a pause, each until it has been answered, and look at each answer.
// `enter` is called in the thread of each before it begins.
class Clients {
 public:
  Clients(const net::Address& at, int count, std::function<void()> enter = {})
      : at_(at), enter_(std::move(enter)) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this, i] { ask(i); });
  }
  ~Clients() { stop(); }

  void stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int64_t answers() const { return answers_; }
  void wait_for_more(int64_t more) const {
    const int64_t until = answers_ + more;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (answers_ < until && wrong_ == 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::sleep_for(1ms);
    }
  }
  int64_t wrong() const { return wrong_; }
  std::string first_wrong() {
    const std::lock_guard lock(mutex_);
    return first_wrong_;
  }
  std::set<int64_t> versions() {
    const std::lock_guard lock(mutex_);
    return versions_;
  }

 private:
  void ask(int who) {
    Rng rng(static_cast<uint64_t>(who), 5);
    std::map<int64_t, std::unique_ptr<serving::Model>> models;
    if (enter_) enter_();
    Client client(at_);
    while (!stop_) {
      std::vector<float> values(16);
      for (float& v : values) v = rng.normal();
      std::string fault;
      try {
        const auto answer = client.post("/v2/models/small/infer", body_of(values));
        fault = !answer                 ? "no answer"
                : answer->status != 200 ? std::to_string(answer->status) + " " + answer->body
                                        : "";
        if (fault.empty()) {
          const Json json = json_of(*answer);
          const int64_t version = std::stoll(json.at("model_version").get<std::string>());
          auto& model = models[version];
          if (!model) model = serving::testing::make_small_model({}, version);
          std::vector<float> expected(3);
          model->run(reinterpret_cast<const std::byte*>(values.data()), 1, expected.data());
          const auto seen = json.at("outputs").at(0).at("data").get<std::vector<float>>();
          if (seen != expected) fault = "other bits: " + answer->body;
          const std::lock_guard lock(mutex_);
          versions_.insert(version);
        }
      } catch (const std::exception& error) {
        fault = error.what();
      }
      if (!fault.empty()) {
        ++wrong_;
        const std::lock_guard lock(mutex_);
        if (first_wrong_.empty()) first_wrong_ = fault;
        return;
      }
      ++answers_;
    }
  }

  const net::Address at_;
  const std::function<void()> enter_;
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> answers_ = 0, wrong_ = 0;
  std::mutex mutex_;
  std::string first_wrong_;
  std::set<int64_t> versions_;
  std::vector<std::thread> threads_;
};

}  // namespace ductile::cluster::testing
