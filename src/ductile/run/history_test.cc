#include "ductile/run/history.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/run/metrics.h"

namespace ductile::run {
namespace {

// With all points at hand: spans of 2^k points, the smallest k for which few enough are needed.
std::vector<Point> decimate_slowly(const std::vector<Point>& all, size_t max_spans) {
  size_t size = 1;
  while ((all.size() + size - 1) / size > max_spans) size *= 2;
  std::vector<Point> out;
  const auto add = [&](const Point& p) {
    if (out.empty() || !(out.back() == p)) out.push_back(p);
  };
  const auto by_value = [](const Point& a, const Point& b) { return a.value < b.value; };
  if (!all.empty()) add(all.front());
  for (size_t i = 0; i < all.size(); i += size) {
    const auto begin = all.begin() + static_cast<ptrdiff_t>(i);
    const auto end = all.begin() + static_cast<ptrdiff_t>(std::min(i + size, all.size()));
    auto low = std::min_element(begin, end, by_value);
    auto high = std::max_element(begin, end, by_value);
    if (low > high) std::swap(low, high);
    add(*low);
    add(*high);
  }
  if (!all.empty()) add(all.back());
  return out;
}

RC_GTEST_PROP(Decimator, EqualsTheOneThatSeesAllPoints, (std::vector<int8_t> values)) {
  Decimator decimator(18);  // eight spans
  std::vector<Point> all;
  for (const int8_t v : values) {
    all.push_back({.step = static_cast<int64_t>(all.size()), .value = static_cast<double>(v)});
    decimator.add(all.back());
  }
  const auto points = decimator.points();
  RC_ASSERT(points.size() <= 18u);
  RC_ASSERT(points == decimate_slowly(all, 8));
}

TEST(Decimator, KeepsEverySpikeOfAMillionPoints) {
  Decimator decimator(2000);
  for (int i = 0; i < 1'000'000; ++i) {
    const double value = i == 123'456 ? 100 : i == 765'432 ? -100 : std::sin(i * 0.001);
    decimator.add({.step = i, .value = value});
  }
  const auto points = decimator.points();
  EXPECT_LE(points.size(), 2000u);
  EXPECT_GE(points.size(), 900u);
  const auto has = [&](int64_t step) {
    return std::any_of(points.begin(), points.end(),
                       [&](const Point& p) { return p.step == step; });
  };
  EXPECT_TRUE(has(123'456) && has(765'432) && has(0) && has(999'999));
  EXPECT_TRUE(std::is_sorted(points.begin(), points.end(),
                             [](const Point& a, const Point& b) { return a.step < b.step; }));
}

TEST(DoneRun, IsOneWhoseLastEventSaysSo) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  std::string text;
  const auto after = [&](const char* line) {
    text += std::string(line) + "\n";
    write_file_atomic(run.events_file(), text);
    return done_run(run);
  };
  EXPECT_FALSE(done_run(run)) << "nothing was written yet";
  EXPECT_FALSE(after(R"({"kind":"end","status":"interrupted","step":5})"));
  const auto done = after(R"({"kind":"end","status":"done","step":20})");
  ASSERT_TRUE(done);
  EXPECT_EQ(done->steps, 20);
  EXPECT_FALSE(done->target_reached);
  EXPECT_FALSE(after(R"({"kind":"resume","step":20})")) << "it has gone on";
  const auto early = after(R"({"kind":"end","status":"target_reached","step":33})");
  ASSERT_TRUE(early);
  EXPECT_TRUE(early->target_reached);
}

TEST(ToldSteps, AreThoseOfTheLastBeginning) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  EXPECT_EQ(told_steps(run), 0);
  std::string text = R"({"kind":"start","step":0,"steps":100,"workers":1})"
                     "\n"
                     R"({"kind":"checkpoint","step":10})"
                     "\n";
  write_file_atomic(run.events_file(), text);
  EXPECT_EQ(told_steps(run), 100);
  text += R"({"kind":"resume","step":10,"steps":250,"workers":2})"
          "\n";
  write_file_atomic(run.events_file(), text);
  EXPECT_EQ(told_steps(run), 250);
}

TEST(History, OfARunJustMadeIsEmpty) {
  const TempFolder temp;
  const History history = read_history(RunFolder::create(temp.path(), "job"));
  EXPECT_EQ(history.status, Status::unfinished);
  EXPECT_TRUE(history.curves.empty());
  EXPECT_EQ(to_json(history)["steps"], 0);
}

TEST(History, LeavesOutTheLinesOfTrialsThatWereDropped) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  MetricsWriter writer(run);
  using nlohmann::json;
  const auto move = [](const char* what, int trial) {
    return json{{"what", what}, {"trial", trial}};
  };
  const auto tune = [&](int step, const char* what, const json& moves) {
    writer.event("tune", {{"step", step}, {"what", what}, {"moves", moves}});
  };
  tune(0, "trial", json::array({move("started", 0)}));
  writer.log(10, 0.5, {{kTrainLoss, 3.0}});
  tune(10, "trial", json::array({move("ran", 0), move("started", 1)}));
  writer.log(20, 0.5, {{kTrainLoss, 0.5}});
  const auto steps = [&] {
    std::vector<int64_t> out;
    const History history = read_history(run);
    for (const Point& p : history.find(kTrainLoss)->points) out.push_back(p.step);
    return out;
  };
  EXPECT_EQ(steps(), std::vector<int64_t>{20}) << "of the trial under way";
  tune(20, "trial", json::array({move("ran", 1), move("resumed", 0)}));
  writer.log(30, 1, {{kTrainLoss, 2.0}});
  tune(30, "search_over", json::array({move("ran", 0), move("dropped", 1), move("chosen", 0)}));
  writer.log(40, 1.5, {{kTrainLoss, 1.0}});
  EXPECT_EQ(steps(), (std::vector<int64_t>{10, 30, 40}));
  EXPECT_EQ(read_history(run).find(kTrainLoss)->lowest->value, 1.0);
  EXPECT_EQ(read_history(run).steps, 40);
  writer.log(50, 2, {{kTrainLoss, 900.0}});
  tune(55, "trial", json::array({{{"what", "went_back"}, {"step", 40}}, move("started", 0)}));
  writer.log(60, 1.75, {{kTrainLoss, 0.9}});
  EXPECT_EQ(steps(), (std::vector<int64_t>{10, 30, 40, 60}));
  EXPECT_EQ(read_history(run).find(kTrainLoss)->highest->value, 3.0);
}

TEST(History, SumsUpARun) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  {
    MetricsWriter writer(run);
    writer.event("start", {{"step", 0}, {"workers", 2}, {"host", {{"cores", 2}}}});
    writer.log(1, 0.1, {{kTrainLoss, 3.0}, {kSamplesPerSecond, 100.0}});
    writer.log(2, 0.2, {{kTrainLoss, std::nan("")}, {kSamplesPerSecond, 300.0}});
    writer.log(3, 0.3, {{kTrainLoss, 1.0}});
    writer.log(3, 0.3, {{kEvalAccuracy, 0.5}});
    writer.log(4, 0.4, {{kEvalAccuracy, 0.4}});
    writer.event("target", {{"metric", "accuracy"},
                            {"threshold", 0.5},
                            {"value", 0.5},
                            {"step", 3},
                            {"samples", 384}});
    const Cost cost{.wall_seconds = 2, .core_seconds = 3, .peak_rss_bytes = 4};
    writer.event("end", {{"step", 4},
                         {"status", "target_reached"},
                         {"samples", 512},
                         {"samples_forward", 700},
                         {"flops", 2e9},
                         {"cost", to_json(cost)}});
  }
  const History history = read_history(run);
  EXPECT_EQ(history.status, Status::target_reached);
  EXPECT_EQ(history.steps, 4);
  EXPECT_EQ(history.samples, 512);
  EXPECT_EQ(to_json(history).at("samples_forward"), 700);
  EXPECT_EQ(to_json(history).at("flops"), 2e9);
  EXPECT_EQ(history.cost->core_seconds, 3);
  EXPECT_EQ(history.host["cores"], 2);
  EXPECT_EQ(history.target->samples, 384);
  const Curve& loss = *history.find(kTrainLoss);
  EXPECT_EQ(loss.count, 2);
  EXPECT_EQ(loss.mean, 2);
  EXPECT_EQ(loss.non_finite, 1);
  EXPECT_EQ(loss.first_non_finite_step, 2);
  EXPECT_EQ(loss.points.size(), 2u);
  EXPECT_EQ(history.find(kEvalAccuracy)->highest->step, 3);
  EXPECT_EQ(history.find(kSamplesPerSecond)->mean, 200);
  // Two steps of as many samples each, of which the first took three times as long.
  EXPECT_DOUBLE_EQ(history.find(kSamplesPerSecond)->mean_rate, 150);
  EXPECT_EQ(history.find("none"), nullptr);
  const auto value = to_json(history);
  EXPECT_EQ(value["status"], "target_reached");
  EXPECT_EQ(value["metrics"]["eval/accuracy"]["highest"]["value"], 0.5);
  EXPECT_EQ(value["target"]["threshold"], 0.5);
}

TEST(History, AResumeReopensAnEndedRun) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  MetricsWriter writer(run);
  writer.event("start", {{"step", 0}});
  writer.event("end", {{"status", "failed"}, {"message", "disk full"}});
  EXPECT_EQ(read_history(run).status, Status::failed);
  EXPECT_EQ(read_history(run).error, "disk full");
  writer.event("resume", {{"step", 0}});
  EXPECT_EQ(read_history(run).status, Status::unfinished);
  EXPECT_EQ(read_history(run).error, "");
}

TEST(History, TheDigestIsOfTheStateAtTheEnd) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  MetricsWriter writer(run);
  writer.event("start", {{"step", 0}});
  writer.event("summary", {{"step", 3}, {"digest", "00ff"}});  // the run goes on
  EXPECT_EQ(read_history(run).digest, "");
  EXPECT_EQ(to_json(read_history(run))["digest"], nullptr);
  writer.event("end", {{"step", 4}, {"status", "done"}, {"digest", "12ab"}});
  EXPECT_EQ(read_history(run).digest, "12ab");
  EXPECT_EQ(to_json(read_history(run))["digest"], "12ab");
  writer.event("resume", {{"step", 4}});
  EXPECT_EQ(read_history(run).digest, "");
  writer.event("end", {{"step", 4}, {"status", "failed"}});  // a state that no worker hashed
  EXPECT_EQ(read_history(run).digest, "");
}

// A worker that was stuck at the end did not sum up what the second part did.
TEST(History, FiguresOfAnEarlierPartAreNotThoseOfALaterEnd) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  MetricsWriter writer(run);
  writer.event("start", {{"step", 0}});
  writer.event("summary", {{"step", 3}, {"updates", 3}, {"samples", 96}, {"flops", 7}});
  writer.event("end", {{"step", 3}, {"status", "interrupted"}});
  EXPECT_EQ(read_history(run).figures["flops"], 7);
  EXPECT_EQ(read_history(run).samples, 96);
  writer.event("resume", {{"step", 3}});
  writer.event("end", {{"step", 5}, {"status", "interrupted"}});
  EXPECT_FALSE(read_history(run).figures.contains("flops"));
  EXPECT_EQ(read_history(run).samples, std::nullopt);
}

TEST(History, TakesFieldsOfAnyType) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  JsonLines metrics(run.metrics_file());
  metrics.append({{"step", "x"}, {"epoch", nullptr}, {"seconds", 1e308}, {"a", {1, 2}}, {"b", 1}});
  metrics.append({{"step", 1e300}, {"time", -5}, {"b", "NaN"}});
  JsonLines events(run.events_file());
  events.append({{"kind", 5}});
  events.append({{"kind", "end"}, {"status", nullptr}, {"cost", "dear"}, {"samples", "many"}});
  events.append({{"kind", "target"}, {"metric", {1}}, {"step", {}}, {"cost", {{"x", 1}}}});
  const History history = read_history(run);
  EXPECT_EQ(history.curves.size(), 1u);
  EXPECT_EQ(history.status, Status::failed);
  EXPECT_EQ(history.samples, 0);
}

}  // namespace
}  // namespace ductile::run
