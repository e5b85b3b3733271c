#include "ductile/cluster/commit_queue.h"

#include <atomic>
#include <fstream>
#include <latch>

#include <gtest/gtest.h>

#include "ductile/base/testing.h"

namespace ductile::cluster {
namespace {

using ductile::testing::code_of;

Submission named(const std::string& name) {
  Submission s;
  s.name = name;
  s.owner = "ada";
  return s;
}

class Queue : public ::testing::Test {
 protected:
  TempFolder folder;
  const fs::path file = folder.path() / "store.db";
  Store store{file};
};

TEST_F(Queue, AnAcknowledgedChangeIsThereForEveryReader) {
  CommitQueue queue(store);
  Reader reader(file);
  for (int i = 0; i < 20; ++i) {
    JobId id = 0;
    queue.commit([&](Change& change) { id = change.submit(named("job"), "{}", 1); });
    EXPECT_EQ(reader.job(id).id, id);
  }
}

TEST_F(Queue, AChangeThatFailsIsUndoneAlone) {
  std::latch done(30);
  std::atomic<int> failed = 0;
  {
    CommitQueue queue(store);
    for (int i = 0; i < 30; ++i) {
      queue.post(
          [i](Change& change) {
            const JobId id = change.submit(named("job" + std::to_string(i)), "{}", 1);
            if (i % 3 == 0) change.set_phase(id, Phase::finished, "too early", 2);
            if (i % 5 == 0) throw std::runtime_error("not one of ours");
          },
          [&](const Error* error) {
            failed += error != nullptr;
            done.count_down();
          });
    }
    done.wait();
  }
  Reader reader(file);
  const auto jobs = reader.live_jobs();
  EXPECT_EQ(failed, 14);
  ASSERT_EQ(jobs.size(), 16u);
  JobId before = 0;
  std::string last;
  for (const JobRecord& job : jobs) {
    const int i = std::stoi(job.submission.name.substr(3));
    EXPECT_TRUE(i % 3 != 0 && i % 5 != 0) << i;
    EXPECT_GT(job.id, before) << "in the order of post()";
    before = job.id;
  }
  EXPECT_TRUE(reader.check().empty());
}

TEST_F(Queue, WhateverAChangeThrowsItAloneIsUndone) {
  struct Odd {};
  CommitQueue queue(store);
  EXPECT_EQ(code_of([&] {
              queue.commit([](Change& change) {
                change.submit(named("odd"), "{}", 1);
                throw Odd{};
              });
            }),
            ErrorCode::internal);
  queue.commit([](Change& change) { change.submit(named("even"), "{}", 1); });
  EXPECT_EQ(Reader(file).live_jobs().size(), 1u);
}

TEST_F(Queue, NothingIsAcknowledgedThatIsWrittenToARemovedFile) {
  CommitQueue queue(store);
  const auto submit = [&] {
    queue.commit([](Change& change) { change.submit(named("job"), "{}", 1); });
  };
  submit();
  const fs::path away = folder.path() / "away.db";
  fs::rename(file, away);
  try {
    submit();
    ADD_FAILURE() << "it was written";
  } catch (const StoreError& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_EQ(to_string(error.fault()), "missing");
  }
  std::ofstream(file) << "another one";
  EXPECT_EQ(code_of(submit), ErrorCode::unavailable);
  fs::rename(away, file);
  submit();
  EXPECT_EQ(Reader(file).live_jobs().size(), 2u);
}

TEST_F(Queue, ManyThreadsWithOneKeyMakeOneJob) {
  std::vector<std::string> answers(8);
  {
    CommitQueue queue(store);
    std::vector<std::thread> threads;
    for (std::string& answer : answers) {
      threads.emplace_back([&] {
        queue.commit([&](Change& change) {
          if (const auto before = change.answered("ada", "key", "digest")) {
            answer = *before;
            return;
          }
          answer = std::to_string(change.submit(named("once"), "{}", 1));
          change.remember_answer("ada", "key", "digest", answer, 1);
        });
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (const std::string& answer : answers) EXPECT_EQ(answer, answers[0]);
  EXPECT_EQ(Reader(file).live_jobs().size(), 1u);
}

TEST_F(Queue, ItsEndCarriesOutWhatWaits) {
  std::atomic<int> done = 0;
  {
    CommitQueue queue(store);
    for (int i = 0; i < 100; ++i)
      queue.post([](Change& change) { change.submit(named("job"), "{}", 1); },
                 [&](const Error* error) { done += error == nullptr; });
  }
  EXPECT_EQ(done, 100);
  EXPECT_EQ(Reader(file).live_jobs().size(), 100u);
}

TEST_F(Queue, RefusesMoreThanItsShare) {
  CommitQueue queue(store, 3);
  std::latch begun(1), go_on(1);
  queue.post(
      [&](Change&) {
        begun.count_down();
        go_on.wait();
      },
      [](const Error*) {});
  begun.wait();
  std::atomic<int> done = 0;
  const auto post = [&] { queue.post([](Change&) {}, [&](const Error*) { ++done; }); };
  for (int i = 0; i < 3; ++i) post();
  EXPECT_EQ(code_of(post), ErrorCode::unavailable);
  go_on.count_down();
}

}  // namespace
}  // namespace ductile::cluster
