// The store of a cluster's service under load: submissions at a steady rate against a store that
// already holds many jobs, while pages of lists are read. Prints JSON: seconds, 50th and 99th
// percentile and the largest. Usage: cluster_store FOLDER [SECONDS [RATE [JOBS [LIVE]]]]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <mutex>
#include <thread>
#include <vector>

#include "ductile/base/json.h"
#include "ductile/base/rng.h"
#include "ductile/cluster/commit_queue.h"

using namespace ductile;
using namespace ductile::cluster;

namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Json summary(std::vector<double> times) {
  if (times.empty()) return {};
  std::ranges::sort(times);
  const auto at = [&](double share) {
    return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
  };
  return {{"count", times.size()}, {"p50", at(0.5)}, {"p99", at(0.99)}, {"most", times.back()}};
}

const std::string kSpec(2000, 'x');  // of the size of a job file

Submission named(int64_t i) {
  Submission s;
  s.name = "job" + std::to_string(i % 1000);
  s.owner = "user" + std::to_string(i % 50);
  s.team = "team" + std::to_string(i % 8);
  return s;
}

void fill(CommitQueue& queue, int64_t jobs, int64_t live) {
  constexpr int64_t kTogether = 1000;
  for (int64_t first = 0; first < jobs; first += kTogether) {
    queue.commit([&](Change& change) {
      for (int64_t i = first; i < std::min(first + kTogether, jobs); ++i) {
        const JobId id = change.submit(named(i), kSpec, static_cast<double>(i));
        if (i >= jobs - live) continue;
        change.set_phase(id, Phase::running, "There is room.", static_cast<double>(i));
        change.set_phase(id, Phase::finished, "It is done.", static_cast<double>(i));
      }
    });
  }
}

int64_t number(int argc, char** argv, int i, int64_t otherwise) {
  return argc > i ? std::stoll(argv[i]) : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: cluster_store FOLDER [SECONDS [RATE [JOBS [LIVE]]]]\n";
    return 2;
  }
  const fs::path file = fs::path(argv[1]) / "store.db";
  const int64_t seconds = number(argc, argv, 2, 30), rate = number(argc, argv, 3, 200);
  const int64_t jobs = number(argc, argv, 4, 100000), live = number(argc, argv, 5, 10000);
  Store store(file);
  CommitQueue queue(store);
  auto begin = Clock::now();
  fill(queue, jobs, live);
  Json out = {{"jobs", jobs}, {"live", live}, {"rate", rate}, {"fill", seconds_since(begin)}};

  std::atomic<bool> over = false;
  std::vector<double> pages;
  std::thread lister([&] {
    Reader reader(file);
    Rng rng(1);
    while (!over) {
      JobFilter filter;
      filter.live = rng.below(2) == 0;
      if (rng.below(3) == 0) filter.owner = "user" + std::to_string(rng.below(50));
      if (rng.below(3) == 0) filter.team = "team" + std::to_string(rng.below(8));
      const auto start = Clock::now();
      reader.jobs(filter, static_cast<JobId>(rng.below(static_cast<uint64_t>(jobs))), 50);
      pages.push_back(seconds_since(start));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });

  std::mutex mutex;
  std::vector<double> submits;
  begin = Clock::now();
  for (int64_t i = 0; i < seconds * rate; ++i) {
    const auto due = begin + std::chrono::microseconds(i * 1000000 / rate);
    std::this_thread::sleep_until(due);
    // From when it was due: a queue that falls behind is not hidden.
    queue.post([i](Change& change) { change.submit(named(i), kSpec, 1e6); },
               [&, due](const Error* error) {
                 const std::lock_guard lock(mutex);
                 if (error == nullptr) submits.push_back(seconds_since(due));
               });
  }
  queue.commit([](Change&) {});
  const double took = seconds_since(begin);
  over = true;
  lister.join();
  out["submit"] = summary(submits);
  out["page"] = summary(pages);

  // As many as it takes, from eight clients that each wait for the answer.
  std::atomic<int64_t> done = 0;
  begin = Clock::now();
  std::vector<std::thread> clients;
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&] {
      while (seconds_since(begin) < 5) {
        queue.commit([&](Change& change) { change.submit(named(done), kSpec, 1e6); });
        ++done;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  out["most_per_second"] = static_cast<double>(done) / seconds_since(begin);
  out["took"] = took;
  out["lost"] = seconds * rate - static_cast<int64_t>(submits.size());
  std::cout << dump_json(out, 2) << "\n";
}
