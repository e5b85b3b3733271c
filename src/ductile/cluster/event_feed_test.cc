#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/cluster/commit_queue.h"
#include "ductile/cluster/event_feed_impl.h"

namespace ductile::cluster {
namespace {

using Rest = EventFeed::Rest;

// The same, each time from the store.
std::string twin(Reader& reader, Revision& at, JobId job) {
  std::string out;
  for (const Event& event :
       reader.events(at, EventFeed::kMostOfOne, job == 0 ? std::nullopt : std::optional(job))) {
    out += EventFeed::text_of(event);
    at = event.seq;
  }
  return out;
}

TEST(EventFeed, GivesWhatTheStoreHasWhereverAStreamIs) {
  const TempFolder folder;
  Store store(folder.path() / "store.db");
  CommitQueue queue(store);
  Reader reader(folder.path() / "store.db");
  EventFeed feed;
  Rng rng(7);
  const auto add = [&](size_t count) {
    queue.commit([&](Change& change) {
      for (size_t i = 0; i < count; ++i) change.record(1 + rng.below(2), "test", "{}", 1);
    });
    feed.follow(reader, queue.commits());
  };
  queue.commit([](Change& change) {
    for (int i = 0; i < 2; ++i) change.submit({.name = "a", .owner = "ada"}, "{}", 1);
  });
  Revision behind = 0;
  std::string text;
  EXPECT_EQ(feed.read(behind, 0, text), Rest::forgotten) << "nothing is known yet";
  add(3);
  struct Stream {
    Revision at, twin;
    JobId job;
    std::string text, expected;
  };
  const Revision now = reader.last_event();
  std::vector<Stream> streams;
  for (JobId job = 0; job <= 2; ++job) streams.push_back({now, now, job, "", ""});
  for (int round = 0; round < 50; ++round) {
    add(rng.below(100));
    for (Stream& s : streams) {
      if (rng.below(3) == 0) continue;  // it is slow
      for (Rest rest = Rest::more; rest == Rest::more;) {
        rest = feed.read(s.at, s.job, s.text);
        ASSERT_NE(rest, Rest::forgotten);
      }
      for (std::string part = "x"; !part.empty(); s.expected += part)
        part = twin(reader, s.twin, s.job);
      EXPECT_EQ(s.text, s.expected);
    }
  }
  add(EventFeed::kMost + 10);
  Revision old = now;
  EXPECT_EQ(feed.read(old, 0, text), Rest::forgotten) << "a stream far behind reads the store";
  EXPECT_EQ(old, now);
  Revision last = reader.last_event();
  text.clear();
  EXPECT_EQ(feed.read(last, 0, text), Rest::none);
  EXPECT_EQ(text, "");
}

// Nobody listened, so that nothing was looked at.
TEST(EventFeed, OfWhatHappenedMeanwhileReadsNoMoreThanItRemembers) {
  const TempFolder folder;
  Store store(folder.path() / "store.db");
  CommitQueue queue(store);
  Reader reader(folder.path() / "store.db");
  EventFeed feed;
  const auto add = [&](size_t count) {
    queue.commit([&](Change& change) {
      for (size_t i = 0; i < count; ++i) change.record(1, "test", "{}", 1);
    });
  };
  queue.commit([](Change& change) { change.submit({.name = "a", .owner = "ada"}, "{}", 1); });
  feed.follow(reader, queue.commits());
  const Revision before = reader.last_event();
  add(3 * EventFeed::kMost);
  feed.follow(reader, queue.commits());
  EXPECT_EQ(feed.newest(), reader.last_event());
  std::string text, expected;
  Revision at = before;
  EXPECT_EQ(feed.read(at, 0, text), Rest::forgotten);
  Revision twin_at = at = feed.newest() - static_cast<Revision>(EventFeed::kMost);
  for (Rest rest = Rest::more; rest == Rest::more;) rest = feed.read(at, 0, text);
  for (std::string part = "x"; part != ""; expected += part) part = twin(reader, twin_at, 0);
  EXPECT_EQ(text, expected);
  at = feed.newest() - static_cast<Revision>(EventFeed::kMost) - 1;
  EXPECT_EQ(feed.read(at, 0, text), Rest::forgotten);
}

}  // namespace
}  // namespace ductile::cluster
