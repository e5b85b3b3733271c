#include "ductile/link/worker_link.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/link/boot_clock.h"
#include "ductile/link/saved_state.h"

namespace ductile::link {
namespace {

using namespace control;
using namespace std::chrono_literals;

net::Deadline soon() { return net::Clock::now() + 20s; }

// A controller without a mind of its own: what it says, the test says.
class Controller {
 public:
  explicit Controller(const net::Secret& secret, uint16_t port = 0)
      : gate_(net::Listener({"127.0.0.1", port}), secret, controller_identity("run"), {},
              [](const net::Identity& peer) {
                return net::same_job(controller_identity("run"), peer);
              },
              {}) {}

  net::Address address() const { return gate_.address(); }
  void accept() {
    auto admission = gate_.accept(soon());
    ASSERT_TRUE(admission);
    EXPECT_EQ(admission->peer, worker_identity("run", 3));
    channel_.emplace(std::move(admission->socket), *std::move(admission->seal));
  }
  bool admits_somebody() { return gate_.accept(net::Clock::now() + 20ms).has_value(); }
  void hang_up() { channel_.reset(); }
  WorkerStatus hear() {
    const auto payload = channel_->receive(soon());
    const std::string_view text(reinterpret_cast<const char*>(payload.data()), payload.size());
    return worker_status_from_json(nlohmann::json::parse(text));
  }
  template <class Predicate>
  WorkerStatus hear_until(const Predicate& holds) {
    const auto deadline = soon();
    while (net::Clock::now() < deadline) {
      const WorkerStatus report = hear();
      say(Ack{report.sequence});
      if (holds(report)) return report;
    }
    ADD_FAILURE() << "the report did not come";
    return {};
  }
  template <class What>
  void say(What what) {
    const std::string text = to_json(Instruction{1, 3, std::move(what)}).dump();
    channel_->send(std::as_bytes(std::span(text)), soon());
  }

 private:
  net::WaitingGate gate_;
  std::optional<net::Channel> channel_;
};

WorkerLinkOptions options(const net::Address& controller) {
  WorkerLinkOptions o;
  o.worker.worker = 3;
  o.worker.address = "here";
  o.worker.heartbeat = 20ms;
  o.job = "run";
  o.controller = controller;
  return o;
}

std::shared_ptr<const GenerationPlan> plan(Generation number) {
  auto p = std::make_shared<GenerationPlan>();
  p->number = number;
  p->members = {{3, "here", {0, 1}, StateSource::initial, 0}};
  return p;
}

template <class Wanted>
Wanted expect_next(WorkerLink& link) {
  auto command = link.next(20s);
  if (!command || !std::holds_alternative<Wanted>(*command)) {
    ADD_FAILURE() << "another command, number " << (command ? int(command->index()) : -1);
    return {};
  }
  return std::get<Wanted>(*command);
}

TEST(WorkerLink, ReportsObeysAndHandsOutCommandsInOrder) {
  const net::Secret secret = net::Secret::random();
  Controller controller(secret);
  WorkerLink link(options(controller.address()), secret);
  controller.accept();
  const WorkerStatus loading = controller.hear();
  EXPECT_EQ(loading.phase, WorkerPhase::loading);
  EXPECT_EQ(loading.address, "here");
  link.tell(Loaded{});
  controller.hear_until([](const WorkerStatus& r) { return r.phase == WorkerPhase::ready; });
  controller.say(Enter{plan(1), "begin"});
  EXPECT_EQ(expect_next<Restore>(link).self.source, StateSource::initial);
  link.tell(Restored{1, 0, false});
  EXPECT_EQ(expect_next<RunStep>(link).step, 0);
  controller.hear_until([](const WorkerStatus& r) { return r.phase == WorkerPhase::running; });
  controller.say(Ack{0});
  link.tell(Reduced{1, 0});
  expect_next<CastVote>(link);
  link.tell(AllVoted{1, 0, 0});
  expect_next<Apply>(link);
  link.tell(Restored{1, 1, true});
  controller.hear_until([](const WorkerStatus& r) { return r.phase == WorkerPhase::done; });
  controller.say(Stop{"enough"});
  EXPECT_EQ(expect_next<Exit>(link).reason, "enough");
  EXPECT_FALSE(link.next());  // at once, although it would wait for an hour
}

TEST(WorkerLink, AbandonsFromItsOwnThreadAndWithdrawsWhatWasNotBegun) {
  const net::Secret secret = net::Secret::random();
  Controller controller(secret);
  WorkerLinkOptions o = options(controller.address());
  std::atomic<Generation> told{0};
  o.on_abandon = [&](Generation g) { told = g; };
  WorkerLink link(o, secret);
  link.tell(Loaded{});
  controller.accept();
  controller.hear_until([](const WorkerStatus& r) { return r.phase == WorkerPhase::ready; });
  controller.say(Enter{plan(1), ""});
  expect_next<Restore>(link);
  link.tell(Restored{1, 0, false});  // a RunStep waits now, and nobody takes it
  EXPECT_FALSE(link.abandoned(1));
  controller.say(Halt{2, false, "a loss"});
  controller.hear_until([](const WorkerStatus& r) { return r.promised == 2; });
  while (told != 1) std::this_thread::yield();
  EXPECT_TRUE(link.abandoned(1));
  EXPECT_FALSE(link.abandoned(2));
  EXPECT_EQ(expect_next<Abandon>(link).generation, 1u);
  link.tell(Abandoned{1});
  controller.say(Enter{plan(2), ""});
  EXPECT_EQ(expect_next<Restore>(link).plan->number, 2u);
}

TEST(WorkerLink, ComesBackAfterABrokenConnectionAndFindsAControllerThatMoved) {
  const net::Secret secret = net::Secret::random();
  const TempFolder run;
  auto first = std::make_unique<Controller>(secret);
  WorkerLinkOptions o = options(first->address());
  o.run = run.path();
  WorkerLink link(o, secret);
  first->accept();
  const WorkerStatus before = first->hear();
  first->hang_up();
  first->accept();
  EXPECT_GE(first->hear().sequence, before.sequence);  // it says at once where it stands
  Controller second(secret);
  first.reset();
  const Addresses now{second.address(), {"10.0.0.1", 7}};
  write_addresses(run.path(), now);
  EXPECT_EQ(read_addresses(run.path()), now);
  second.accept();
  second.hear();
  EXPECT_EQ(link.store(), now.store);
}

nlohmann::json state_of_job(Generation granted) {
  return {{"phase", "running"},
          {"winding_down", false},
          {"granted", granted},
          {"workers", {{{"doomed", false}, {"report", {{"worker", 3}}}}}}};
}

// One step, from its reduction to the state after it.
void step(WorkerLink& link, int64_t number) {
  link.tell(Reduced{1, number});
  expect_next<CastVote>(link);
  link.tell(AllVoted{1, number, 0});
  expect_next<Apply>(link);
  link.tell(Restored{1, number + 1, false});
  EXPECT_EQ(expect_next<RunStep>(link).step, number + 1);
}

// For longer than a lease; until the state says that somebody else is to go on.
TEST(WorkerLink, GoesOnWithoutAControllerAsLongAsTheSavedStateLetsIt) {
  const net::Secret secret = net::Secret::random();
  const TempFolder run;
  auto controller = std::make_unique<Controller>(secret);
  WorkerLinkOptions o = options(controller->address());
  o.run = run.path();
  o.worker.lease = 2s;
  o.alone = 1h;
  o.orphan_after = 1ms;
  write_file_atomic(state_file(run.path()), sealed(state_of_job(1)));
  WorkerLink link(o, secret);
  controller->accept();
  link.tell(Loaded{});
  controller->hear_until([](const WorkerStatus& r) { return r.phase == WorkerPhase::ready; });
  controller->say(Enter{plan(1), ""});
  expect_next<Restore>(link);
  link.tell(Restored{1, 0, false});
  expect_next<RunStep>(link);
  controller->hear_until([](const WorkerStatus& r) { return r.phase == WorkerPhase::running; });
  controller.reset();
  int64_t steps = 0;
  for (const Time end = boot_time() + 2 * o.worker.lease; boot_time() < end; ++steps) {
    step(link, steps);
    std::this_thread::sleep_for(10ms);
  }
  write_file_atomic(state_file(run.path()), sealed(state_of_job(2)));
  const auto deadline = soon();
  while (link.phase() == WorkerPhase::running && net::Clock::now() < deadline) {
    link.tell(Reduced{1, steps});
    link.tell(AllVoted{1, steps, 0});
    link.tell(Restored{1, ++steps, false});
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(link.phase(), WorkerPhase::halted);
}

TEST(WorkerLink, AStrangerInTheControllersPlaceIsNotObeyed) {
  const net::Secret secret = net::Secret::random();
  Controller impostor(net::Secret::random());
  std::atomic<int> said{0};
  WorkerLinkOptions o = options(impostor.address());
  o.orphan_after = 300ms;
  o.log = [&](const std::string&) { ++said; };
  WorkerLink link(o, secret);
  std::jthread serve([&](std::stop_token end) {
    while (!end.stop_requested()) EXPECT_FALSE(impostor.admits_somebody());
  });
  EXPECT_NE(expect_next<Exit>(link).reason.find("no controller answered"), std::string::npos);
  EXPECT_FALSE(link.connected());
  EXPECT_GT(said, 0);
}

TEST(WorkerLink, AnOrphanExitsAndOneThatWaitsCanBeDestroyed) {
  const net::Secret secret = net::Secret::random();
  net::Address nobody;
  {
    const net::Listener gone({"127.0.0.1", 0});
    nobody = gone.address();
  }
  WorkerLinkOptions o = options(nobody);
  o.orphan_after = 250ms;
  WorkerLink link(o, secret);
  expect_next<Exit>(link);
  const WorkerLink other(options(nobody), secret);
  EXPECT_THROW(
      {
        WorkerLinkOptions bad = options(nobody);
        bad.worker.worker = 0;
        const WorkerLink never(bad, secret);
      },
      Error);
}

TEST(Addresses, NamesOfAnyLengthBecomeNamesOfJobs) {
  EXPECT_EQ(job_name("/a/b/short"), "short");
  const std::string a = job_name(fs::path("/a") / (std::string(90, 'x') + "1"));
  const std::string b = job_name(fs::path("/a") / (std::string(90, 'x') + "2"));
  EXPECT_EQ(a.size(), 63u);
  EXPECT_NE(a, b);
  EXPECT_THROW(read_addresses("/nowhere"), Error);
}

}  // namespace
}  // namespace ductile::link
