// Jobs of torch-free workers on several hosts, to which everything happens that may: at random, by
// a seed, hundreds of times. Each ends with the result of an undisturbed run and leaves nothing.
//
//   DUCTILE_CHAOS_SEED=n     replays one job
//   DUCTILE_CHAOS_KILLS=n    goes on until so many processes were killed (200)
#include <cstdlib>
#include <map>
#include <memory>
#include <set>

#include "ductile/base/rng.h"
#include "ductile/ckpt/publish.h"
#include "ductile/server/testing/live_job.h"
#include "ductile/server/testing/shared_files.h"

namespace ductile::server::testing {
namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

std::string state_of(pid_t pid) {
  try {
    const std::string stat = read_file(fmt::format("/proc/{}/stat", pid));
    return stat.substr(stat.rfind(')') + 2, 1);
  } catch (const Error&) {
    return "";
  }
}

// What happens to one job.
class Chaos {
 public:
  Chaos(uint64_t seed, std::shared_ptr<EmulatedHosts> hosts)
      : rng_(seed), hosts_(hosts), live_(job(std::move(hosts))) {}

  int kills() const { return kills_; }
  const std::map<std::string, int>& done() const { return done_; }

  void run(int most_kills) {
    live_.start(kWorkers);
    while (!live_.ended() && kills_ < most_kills) {
      disturb();
      std::this_thread::sleep_for(std::chrono::milliseconds(rng_.below(120)));
      if (Clock::now() > next_breath_) {
        // Progress, too, is part of the test.
        calm();
        const int64_t before = live_.status().at("step");
        live_.wait_for("progress", [&](const json& s) {
          return s.at("step") > before + 5 || live_.ended() || s.at("phase") == "none";
        });
        next_breath_ = Clock::now() + 3s;
      }
    }
    calm();
    live_.expect_result();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kWorkers = 4;

  static Job job(std::shared_ptr<EmulatedHosts> hosts) {
    Job job{.steps = 2500, .step_ms = 2, .checkpoint_steps = 25};
    job.small_disk = true;
    job.max_failures = 1000;  // it is not the job's fault
    job.hosts = std::move(hosts);
    job.places = {2, 2, 2};
    return job;
  }

  void disturb() {
    const uint32_t dice = rng_.below(100);
    if (dice < 60) {
      kill_one("worker", live_.processes());
    } else if (dice < 68) {
      for (int i = 0; i < 2; ++i) kill_one("worker", live_.processes());
    } else if (dice < 76) {
      stop_one();
    } else if (dice < 82) {
      kill_controller();
    } else if (dice < 88) {
      resize();
    } else if (dice < 92) {
      if (hosts_) kill_one("agent", live_.agents());
    } else if (dice < 96) {
      cut_link();
    } else {
      fill_disk();
    }
  }

  void kill_one(const char* what, std::vector<pid_t> pids) {
    if (pids.empty()) return;
    const pid_t pid = pids[rng_.below(static_cast<uint32_t>(pids.size()))];
    if (::kill(pid, SIGKILL) != 0) return;
    ++kills_;
    ++done_[what];
  }

  // For as long as it takes to be replaced, or not.
  void stop_one() {
    const std::vector<pid_t> pids = live_.processes();
    if (pids.empty()) return;
    const pid_t pid = pids[rng_.below(static_cast<uint32_t>(pids.size()))];
    if (::kill(pid, SIGSTOP) != 0) return;
    ++done_["stop"];
    std::this_thread::sleep_for(std::chrono::milliseconds(100 + rng_.below(1200)));
    if (state_of(pid) == "T") ::kill(pid, SIGCONT);
  }

  void kill_controller() {
    if (live_.ended()) return;
    live_.kill_controller();
    ++kills_;
    ++done_["controller"];
    std::this_thread::sleep_for(std::chrono::milliseconds(rng_.below(300)));
    if (!live_.ended()) live_.start(0);
  }

  void resize() {
    try {
      live_.tell({{"request", "resize"}, {"workers", 2 + rng_.below(4)}});
      ++done_["resize"];
    } catch (const Error&) {  // it just ended, or starts
    }
  }

  void cut_link() {
    if (!hosts_) return;
    const int host = 1 + static_cast<int>(rng_.below(3));
    hosts_->cut(host);
    ++done_["cut"];
    std::this_thread::sleep_for(std::chrono::milliseconds(100 + rng_.below(1500)));
    hosts_->restore(host);
  }

  void fill_disk() {
    if (!live_.fill_disk()) return;
    ++done_["disk"];
    std::this_thread::sleep_for(std::chrono::milliseconds(100 + rng_.below(900)));
    live_.free_disk();
  }

  void calm() { live_.free_disk(); }

  Rng rng_;
  std::shared_ptr<EmulatedHosts> hosts_;
  Live live_;
  int kills_ = 0;
  std::map<std::string, int> done_;
  Clock::time_point next_breath_ = Clock::now() + 3s;
};

TEST(Chaos, NothingThatHappensToAJobChangesItsResult) {
  const std::set<std::string> before = testing::shared_files();
  auto hosts = std::make_shared<EmulatedHosts>(4);
  if (!hosts->why().empty()) {
    std::printf("one host only, and no cut links: %s\n", hosts->why().c_str());
    hosts = nullptr;
  }
  const int64_t only = from_environment("DUCTILE_CHAOS_SEED", -1);
  const int64_t wanted = from_environment("DUCTILE_CHAOS_KILLS", 40);
  int64_t kills = 0;
  std::map<std::string, int> done;
  for (int64_t seed = std::max<int64_t>(only, 1); kills < wanted && !::testing::Test::HasFailure();
       ++seed) {
    SCOPED_TRACE(fmt::format("DUCTILE_CHAOS_SEED={}", seed));
    Chaos chaos(static_cast<uint64_t>(seed), hosts);
    chaos.run(static_cast<int>(std::min<int64_t>(wanted - kills, 80)));
    kills += chaos.kills();
    for (const auto& [what, count] : chaos.done()) done[what] += count;
    if (only >= 0) break;
  }
  for (const auto& [what, count] : done) std::printf("%s: %d\n", what.c_str(), count);
  RecordProperty("kills", static_cast<int>(kills));
  EXPECT_EQ(testing::shared_files(), before);
}

}  // namespace
}  // namespace ductile::server::testing
