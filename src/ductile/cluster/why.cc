#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "ductile/cluster/why_impl.h"
#include "ductile/sched/valuation.h"

namespace ductile::cluster {
namespace {

using Moment = LiveState::Moment;

constexpr size_t kMostNamed = 5;  // jobs in one sentence

std::string counted(int64_t devices) {
  return fmt::format("{} {}", devices, devices == 1 ? "device" : "devices");
}

// As the middle of a sentence.
std::string without_stop(std::string text) {
  while (!text.empty() && (text.back() == '.' || text.back() == ' ')) text.pop_back();
  return text;
}

struct Share {
  JobId job = 0;
  std::string name, tier;
  int64_t devices = 0;
};

// Whoever holds most comes first.
template <class Which>
std::vector<Share> shares(const WhyFacts& facts, const Which& which) {
  std::vector<Share> out;
  for (const Holder& h : facts.holders) {
    if (!which(h)) continue;
    if (out.empty() || out.back().job != h.job) out.push_back({h.job, h.name, h.tier, 0});
    out.back().devices += h.devices;
  }
  std::ranges::stable_sort(out,
                           [](const Share& a, const Share& b) { return a.devices > b.devices; });
  return out;
}

int64_t sum_of(const std::vector<Share>& shares) {
  int64_t sum = 0;
  for (const Share& share : shares) sum += share.devices;
  return sum;
}

// "job 1 (first) holds 2, and job 4 (other) holds 1".
std::string named(const WhyFacts& facts, const std::vector<Share>& shares) {
  std::string out;
  const size_t count = std::min(shares.size(), kMostNamed);
  for (size_t i = 0; i < count; ++i) {
    const Share& s = shares[i];
    const bool first = rank_of(s.tier) < rank_of(facts.job.submission.tier);
    out += fmt::format("{}job {} ({}) holds {}{}", i == 0 ? "" : ", ", s.job, s.name, s.devices,
                       first ? fmt::format(" and comes first, since its tier is {}", s.tier) : "");
  }
  if (shares.size() > count) {
    int64_t rest = 0;
    for (size_t i = count; i < shares.size(); ++i) rest += shares[i].devices;
    out += fmt::format(", and {} other jobs hold {}", shares.size() - count, rest);
  }
  return out;
}

const Drain* drain_of(const WhyFacts& facts, const std::string& node) {
  const auto found =
      std::ranges::find_if(facts.drains, [&](const Drain& d) { return d.node == node; });
  return found == facts.drains.end() ? nullptr : &*found;
}

bool is_usable(const WhyFacts& facts, const NodeRecord& node) {
  return node.state == NodeState::up && drain_of(facts, node.node) == nullptr;
}

bool is_usable(const WhyFacts& facts, const std::string& name) {
  return std::ranges::any_of(facts.nodes, [&](const NodeRecord& node) {
    return node.node == name && is_usable(facts, node);
  });
}

// "drained: "new disk"", of one that is not usable.
std::string trouble_of(const WhyFacts& facts, const NodeRecord& node) {
  const Drain* drain = drain_of(facts, node.node);
  std::string what = drain == nullptr ? std::string(to_string(node.state)) : "drained";
  if (drain != nullptr && drain->ends)
    what += fmt::format(" for {:.0f} s more", std::max(1.0, std::ceil(*drain->ends - facts.now)));
  if (drain != nullptr && !drain->reason.empty()) what += fmt::format(": \"{}\"", drain->reason);
  if (drain == nullptr && !node.why.empty()) what += ": " + without_stop(node.why);
  return what;
}

// "node1 (2 devices, drained: "new disk")".
std::string text_of_unusable(const WhyFacts& facts, const NodeRecord& node) {
  return fmt::format("{} ({}, {})", node.node, counted(node.devices), trouble_of(facts, node));
}

// What takes a drained node back: of one that is known, by its name.
std::string undrain_text(const WhyFacts& facts) {
  const size_t count = facts.drains.size();
  return count == 1 ? fmt::format("`ductile undrain {}` takes it back", facts.drains.front().node)
                    : "`ductile undrain NODE` takes a drained node back";
}

// Nodes that are drained, beside which others hold what the job asks for; with a space before it.
std::string drained_text(const WhyFacts& facts) {
  std::string nodes;
  for (const NodeRecord& node : facts.nodes)
    if (drain_of(facts, node.node) != nullptr)
      nodes += (nodes.empty() ? "" : ", ") + text_of_unusable(facts, node);
  if (nodes.empty()) return "";
  return fmt::format(" Nothing starts on {}: {}.", nodes, undrain_text(facts));
}

// Of the first holders, those that do not end by themselves; with a space before it.
std::string services_text(const WhyFacts& facts, const std::vector<Share>& shares) {
  std::string out;
  for (const Share& s : std::span(shares).first(std::min(shares.size(), kMostNamed)))
    if (facts.services.contains(s.job))
      out += fmt::format(
          " Job {0} ({1}) is a service, which does not end by itself: `ductile cancel {0}` ends "
          "it.",
          s.job, s.name);
  return out;
}

// Too few devices can be used at all, with or without those of other nodes; empty: enough can.
std::string lack(const WhyFacts& facts, int64_t asked) {
  int64_t all = 0, usable = 0;
  std::string others;
  bool drained = false, by_itself = false;
  for (const NodeRecord& node : facts.nodes) {
    all += node.devices;
    if (is_usable(facts, node)) {
      usable += node.devices;
      continue;
    }
    const Drain* drain = drain_of(facts, node.node);
    drained = drained || drain != nullptr;
    by_itself = by_itself || (drain != nullptr && drain->ends);
    others += (others.empty() ? "" : ", ") + text_of_unusable(facts, node);
  }
  if (asked > all)
    return fmt::format(
        "It asks for {}, and this service has {} in all: it runs when the service is started again "
        "with more, or when `ductile resize {} N` asks for fewer.",
        counted(asked), all, facts.job.id);
  if (asked > usable)
    return fmt::format(
        "It asks for {}, and {} can be used, since nothing starts on {}; it starts {}.",
        counted(asked), usable == 0 ? "none" : std::to_string(usable), others,
        by_itself ? "when a drain ends, or " + undrain_text(facts)
        : drained ? "when " + undrain_text(facts)
                  : "when a node is up again");
  return "";
}

// Its team's quota has no room; empty: it has.
std::string quota_reason(const WhyFacts& facts, int64_t asked) {
  if (!facts.quota) return "";
  const std::string& team = facts.job.submission.team;
  const auto of_team = shares(facts, [&](const Holder& h) { return h.team == team; });
  const int64_t held = sum_of(of_team);
  if (held + asked <= *facts.quota) return "";
  if (asked > *facts.quota)
    return fmt::format(
        "It asks for {}, and the quota of team {} is {}: it runs when the service is started with "
        "a "
        "larger one, or when `ductile resize {} N` asks for fewer.",
        counted(asked), team, *facts.quota, facts.job.id);
  return fmt::format(
      "It asks for {}, and team {} holds {} of its quota of {}: {}; it starts when the team gives "
      "up {}.",
      counted(asked), team, held, *facts.quota, named(facts, of_team),
      counted(held + asked - *facts.quota));
}

int64_t asked_gpus(const WhyFacts& facts) {
  const auto found = facts.gpus.find(facts.job.id);
  return found == facts.gpus.end() ? 0 : found->second;
}

// The same of its team's quota of GPUs.
std::string gpu_quota_reason(const WhyFacts& facts) {
  const int64_t asked = asked_gpus(facts);
  if (!facts.gpu_quota || asked == 0) return "";
  const std::string& team = facts.job.submission.team;
  std::vector<Share> holders =
      shares(facts, [&](const Holder& h) { return h.team == team && facts.gpus.contains(h.job); });
  for (Share& holder : holders) holder.devices = facts.gpus.at(holder.job);
  const int64_t held = sum_of(holders), quota = *facts.gpu_quota;
  const auto counted_gpus = [](int64_t count) {
    return fmt::format("{} GPU{}", count, count == 1 ? "" : "s");
  };
  if (held + asked <= quota) return "";
  if (asked > quota)
    return fmt::format(
        "It asks for {}, and the quota of team {} is {}: it runs when the service is started with "
        "a larger one.",
        counted_gpus(asked), team, counted_gpus(quota));
  return fmt::format(
      "It asks for {}, and team {} holds {} of its quota of {}: {}; it starts when the team gives "
      "up {}.",
      counted_gpus(asked), team, held, quota, named(facts, holders),
      counted_gpus(held + asked - quota));
}

int64_t gpus_of(const WhyFacts& facts, const NodeRecord& node) {
  const auto found = facts.hardware.find(node.node);
  return found == facts.hardware.end() ? 0 : found->second.usable_gpus;
}

int64_t free_gpus(const WhyFacts& facts, const NodeRecord& node) {
  if (!is_usable(facts, node)) return 0;
  const auto found = facts.hardware.find(node.node);
  if (found == facts.hardware.end()) return 0;
  return found->second.free_gpus(held_gpus(facts.holders, facts.gpus, node.node));
}

std::string wants_gpus(const WhyFacts& facts) {
  const int64_t asked = asked_gpus(facts);
  return fmt::format("It asks for {} GPU{} on one node, and ", asked, asked == 1 ? "" : "s");
}

// Nodes that have not said yet what they have.
int64_t silent_nodes(const WhyFacts& facts) {
  return std::ranges::count_if(
      facts.nodes, [&](const NodeRecord& node) { return !facts.hardware.contains(node.node); });
}

// No node has so many GPUs, whoever holds them; empty: one has.
std::string lack_of_such_nodes(const WhyFacts& facts) {
  int64_t most = 0;
  for (const NodeRecord& node : facts.nodes) most = std::max(most, gpus_of(facts, node));
  if (asked_gpus(facts) <= most) return "";
  const int64_t silent = silent_nodes(facts);
  return fmt::format(
      "{}no node of this service has {}{}: it runs when there is such a node{}; `ductile nodes` "
      "shows what each has.",
      wants_gpus(facts), most == 0 ? "a GPU now" : fmt::format("more than {}", most),
      silent == 0   ? ""
      : silent == 1 ? ", and one has not said yet what it has"
                    : fmt::format(", and {} have not said yet what they have", silent),
      silent == 0 ? ", and never if none comes" : "");
}

// Too few GPUs are free on any node; empty: one has enough.
std::string lack_of_gpus(const WhyFacts& facts) {
  if (std::string text = lack_of_such_nodes(facts); !text.empty()) return text;
  const int64_t asked = asked_gpus(facts);
  int64_t most_usable = 0, most_free = 0;
  std::string unusable;  // that have enough
  for (const NodeRecord& node : facts.nodes) {
    const int64_t here = gpus_of(facts, node);
    if (is_usable(facts, node))
      most_usable = std::max(most_usable, here);
    else if (here >= asked)
      unusable += (unusable.empty() ? "" : ", ") + text_of_unusable(facts, node);
    most_free = std::max(most_free, free_gpus(facts, node));
  }
  if (asked <= most_free) return "";
  const std::string wants = wants_gpus(facts);
  if (asked > most_usable)
    return fmt::format(
        "{}nothing starts where there are so many: {}; it starts when it does again.", wants,
        unusable);
  std::vector<Share> holders =
      shares(facts, [&](const Holder& h) { return facts.gpus.contains(h.job); });
  for (Share& holder : holders) holder.devices = facts.gpus.at(holder.job);
  return fmt::format(
      "{}no node has {} free{}{}; it starts when {} more {} free on one of the nodes.", wants,
      most_free == 0 ? "any" : fmt::format("more than {}", most_free), holders.empty() ? "" : ": ",
      named(facts, holders), asked - most_free, asked - most_free == 1 ? "is" : "are");
}

// The most devices that are free on one of the nodes that have as many GPUs as it asks for.
int64_t most_free_of_a_node(const WhyFacts& facts) {
  int64_t most = 0;
  for (const NodeRecord& node : facts.nodes) {
    if (!is_usable(facts, node) || free_gpus(facts, node) < asked_gpus(facts)) continue;
    most = std::max(
        most,
        node.devices - sum_of(shares(facts, [&](const Holder& h) { return h.node == node.node; })));
  }
  return most;
}

std::string text_of_span(double seconds) {
  const auto whole = static_cast<int64_t>(std::max(0.0, seconds));
  if (whole < 120) return fmt::format("{} s", whole);
  if (whole < 7200) return fmt::format("{} min", whole / 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

// Which node is kept, for whom and since when, where that concerns the job; with a space before it.
std::string claim_text(const WhyFacts& facts) {
  if (!facts.claim || !is_usable(facts, facts.claim->node)) return "";
  const NodeClaim& claim = *facts.claim;
  const std::string since = text_of_span(facts.now - claim.since);
  if (claim.job == facts.job.id)
    return fmt::format(
        " Since it has waited for long, node {} is kept for it, for {} now: who comes behind it "
        "starts nothing there in its stead.",
        claim.node, since);
  const auto turn = [](const std::string& tier, double submitted, JobId job) {
    return std::tuple(rank_of(tier), submitted, job);
  };
  const JobRecord& job = facts.job;
  if (turn(job.submission.tier, job.submitted, job.id) <
      turn(claim.tier, claim.submitted, claim.job))
    return "";
  return fmt::format(
      " Node {} is kept for job {} ({}), which comes first and has waited for long, for {} now; "
      "that ends when it has started, is cancelled or is paused.",
      claim.node, claim.job, claim.name, since);
}

// Tiers are strict: who comes first, however late; with a space before it.
std::string above_text(const WhyFacts& facts) {
  if (facts.above == 0) return "";
  return fmt::format(
      " Jobs of higher tiers come first: {} of these {} or {} for devices, {} submitted after it; "
      "it runs on what they leave. A quota for their teams (`--quota`) would leave it more.",
      facts.above, facts.above == 1 ? "runs" : "run", facts.above == 1 ? "waits" : "wait",
      facts.above_since == 0 ? "none" : std::to_string(facts.above_since));
}

// That its team holds more than its share, so that its jobs count for less; with a space before it.
std::string share_text(const WhyFacts& facts) {
  if (!facts.share) return "";
  const std::string& team = facts.job.submission.team;
  int64_t usable = 0;
  for (const NodeRecord& node : facts.nodes)
    if (is_usable(facts, node)) usable += node.devices;
  const auto of_team =
      shares(facts, [&](const Holder& h) { return h.team == team && is_usable(facts, h.node); });
  const int64_t held = sum_of(of_team);
  const double entitled = *facts.share * static_cast<double>(usable);
  if (sched::team_factor(static_cast<double>(held), entitled) >= 1) return "";
  return fmt::format(
      " Team {} holds {} of {}, and its share is {:.3g} %: until it holds less, its jobs count for "
      "less than others.",
      team, held, counted(usable), 100 * *facts.share);
}

std::string why_it_competes(const WhyFacts& facts, int64_t asked);

// That what was asked for is no whole pipelines, or more than all of them; with a space before it.
std::string cut_text(const WhyFacts& facts) {
  const StagedFigures& s = *facts.staged;
  const int64_t asked = facts.job.submission.min_devices;
  if (s.least == 0 || asked <= s.least) return "";
  if (s.plans > 1 || s.devices < 1 || s.least % s.devices != 0)
    return fmt::format(" It asks for {}, of which whole pipelines take {}.", counted(asked),
                       s.least);
  const int64_t pipelines = s.least / s.devices;
  return fmt::format(" It asks for {}, which give {} pipeline{} of {}.", counted(asked), pipelines,
                     pipelines == 1 ? "" : "s", s.devices);
}

// Of a job by stages; with a space before it.
std::string staged_text(const WhyFacts& facts) {
  if (!facts.staged) return "";
  const StagedFigures& s = *facts.staged;
  if (s.least == 0)
    return fmt::format(
        " It trains by stages, and each pipeline of its plan has {}, more than it may have: its "
        "stages take turns.",
        counted(s.devices));
  if (s.plans > 1)
    return fmt::format(
        " It trains by stages, by one of {} plans, which is chosen when it begins, and is given "
        "whole pipelines alone.",
        s.plans);
  return fmt::format(
             " It trains by stages, and is given whole pipelines alone: its plan has {} of {}{}.",
             s.pipelines, counted(s.devices), s.pipelines == 1 ? "" : " each") +
         cut_text(facts);
}

// Of one that runs, where its devices are not what was asked for; with a space before it.
std::string runs_as_staged(const WhyFacts& facts) {
  if (!facts.staged) return "";
  return facts.staged->least == 0 ? staged_text(facts) : cut_text(facts);
}

std::string why_it_waits_among(const WhyFacts& facts) {
  const bool whole = facts.staged && facts.staged->least > 0;
  const int64_t asked = whole ? facts.staged->least : facts.job.submission.min_devices;
  // What no other reason outweighs: while nodes are silent, what is known of the others is more.
  if (silent_nodes(facts) == 0)
    if (std::string text = lack_of_such_nodes(facts); !text.empty()) return text;
  if (std::string text = lack(facts, asked); !text.empty()) return text;
  if (std::string text = quota_reason(facts, asked); !text.empty()) return text;
  if (std::string text = gpu_quota_reason(facts); !text.empty()) return text;
  return why_it_competes(facts, asked) + staged_text(facts) + above_text(facts) +
         share_text(facts) + claim_text(facts);
}

// What the policy says besides: who is before it, where it says who holds what as this does.
std::string said_by_policy(const WhyFacts& facts) {
  const std::string text = facts.live ? without_stop(facts.live->text) : "";
  if (text.empty()) return "";
  if (text.starts_with("waits: job ")) return ", and " + text.substr(7);  // as tiers say
  if (text.find("it can start on ") == std::string::npos)
    return fmt::format(" (the policy says: {})", text);
  const size_t end = text.find(" before it"), begin = text.rfind("; ", end);
  if (end == std::string::npos || begin == std::string::npos) return "";
  return fmt::format(", and {} before it", text.substr(begin + 2, end - begin - 2));
}

// Others hold what it asks for.
std::string why_it_competes(const WhyFacts& facts, int64_t asked) {
  if (std::string text = lack_of_gpus(facts); !text.empty()) return text;
  int64_t usable = 0;
  for (const NodeRecord& node : facts.nodes)
    if (is_usable(facts, node)) usable += node.devices;
  const auto others = shares(facts, [&](const Holder& h) { return is_usable(facts, h.node); });
  const int64_t free = std::max<int64_t>(0, usable - sum_of(others));
  const std::string says = said_by_policy(facts);
  const int64_t together = most_free_of_a_node(facts), gpus = asked_gpus(facts);
  if (free >= asked && facts.job.submission.kind == "command" && together < asked)
    return fmt::format(
        "It asks for {} on one node{}, and of {} that are free no {}node has more than {}: {}; it "
        "starts when {} more {} free on one of the nodes{}.{}{}",
        counted(asked),
        gpus == 0 ? "" : fmt::format(" with {} free GPU{}", gpus, gpus == 1 ? "" : "s"), free,
        gpus == 0 ? "" : "such ", together, named(facts, others), asked - together,
        asked - together == 1 ? "is" : "are", says, services_text(facts, others),
        drained_text(facts));
  if (free >= asked)
    return fmt::format("It asks for {}, and {} of {} are free: it is decided about next{}.",
                       counted(asked), free, usable, says);
  return fmt::format(
      "It asks for {}, and {} of {} are free: {}; it starts when {} more {} free, as one of these "
      "ends, is paused or shrinks{}.{}{}",
      counted(asked), free == 0 ? "none" : std::to_string(free), usable, named(facts, others),
      asked - free, asked - free == 1 ? "is" : "are", says, services_text(facts, others),
      drained_text(facts));
}

// Of a job that may not leave its region, the nodes of others are no concern.
std::string why_it_waits(const WhyFacts& facts) {
  const Submission& s = facts.job.submission;
  if (s.movable) return why_it_waits_among(facts);
  WhyFacts here = facts;
  std::erase_if(here.nodes, [&](const NodeRecord& node) { return node.region != s.region; });
  std::erase_if(here.holders, [&](const Holder& holder) {
    return std::ranges::none_of(here.nodes,
                                [&](const NodeRecord& node) { return node.node == holder.node; });
  });
  return fmt::format("It may run in region {} alone. {}", s.region, why_it_waits_among(here));
}

// " in region north", where the service has several and the job is in one.
std::string region_of_job(const WhyFacts& facts) {
  std::string region;
  bool several = false;
  for (const NodeRecord& node : facts.nodes) {
    several = several || node.region != facts.nodes.front().region;
    const bool holds = std::ranges::any_of(facts.holders, [&](const Holder& h) {
      return h.job == facts.job.id && h.node == node.node;
    });
    if (holds && !region.empty() && region != node.region) return "";
    if (holds) region = node.region;
  }
  return several && !region.empty() ? " in region " + region : "";
}

// On which nodes a job is, and what is the matter with these; of a service of one node nothing
// while that can be used. With a space before it.
std::string places_text(const WhyFacts& facts) {
  std::vector<std::string> troubled, places;
  for (const NodeRecord& node : facts.nodes) {
    int64_t devices = 0;
    for (const Holder& h : facts.holders)
      if (h.job == facts.job.id && h.node == node.node) devices += h.devices;
    if (devices == 0) continue;
    if (is_usable(facts, node))
      places.push_back(fmt::format("node {} ({})", node.node, counted(devices)));
    else
      troubled.push_back(
          fmt::format("node {} ({}, {})", node.node, counted(devices), trouble_of(facts, node)));
  }
  if (troubled.empty() && facts.nodes.size() < 2) return "";
  places.insert(places.begin(), troubled.begin(), troubled.end());
  if (places.empty()) return "";
  const size_t count = std::min(places.size(), std::max(kMostNamed, troubled.size()));
  std::string out;
  for (size_t i = 0; i < count; ++i)
    out += (i == 0 ? " It is on " : i + 1 == places.size() ? " and " : ", ") + places[i];
  if (const size_t rest = places.size() - count; rest > 0)
    out += fmt::format(" and {} other node{}", rest, rest == 1 ? "" : "s");
  return out + ".";
}

std::string why_it_runs(const WhyFacts& facts) {
  const Submission& s = facts.job.submission;
  const auto own = shares(facts, [&](const Holder& h) { return h.job == facts.job.id; });
  const int64_t held = sum_of(own);
  const std::string range = s.min_devices == s.max_devices
                                ? ""
                                : fmt::format(" of {} to {}", s.min_devices, s.max_devices);
  const Moment moment = facts.live ? facts.live->moment : Moment::running;
  if (moment == Moment::saving)
    return fmt::format("It is being saved, and gives up {}: {}.", counted(held),
                       without_stop(facts.live->text));
  if (moment == Moment::starting)
    return fmt::format(
        "It is just starting on {}{}: {}.{}", counted(held), range,
        s.kind == "serve" ? "no replica answers yet" : "its processes have not done a step yet",
        places_text(facts));
  const std::string more = facts.live ? facts.live->text : "";
  const std::string trouble =
      facts.serving_trouble.empty() ? "" : fmt::format(" But {}.", facts.serving_trouble);
  const int64_t gpus = asked_gpus(facts);
  // A reason that begins with what the job holds goes on from there.
  std::string reason = ": " + without_stop(facts.job.reason);
  if (reason.starts_with(fmt::format(": runs on {} ", held)))
    if (const size_t rest = reason.find_first_of(",;"); rest != std::string::npos)
      reason.erase(0, rest);
  return fmt::format("It runs on {}{}{}{}{}{}.{}{}{}{}", counted(held), range,
                     gpus == 0 ? "" : fmt::format(" with {} GPU{}", gpus, gpus == 1 ? "" : "s"),
                     region_of_job(facts), reason, more.empty() ? "" : "; " + more,
                     places_text(facts), runs_as_staged(facts),
                     held < s.max_devices ? share_text(facts) : "", trouble);
}

// Other jobs are to finish first.
std::string why_it_follows(const WhyFacts& facts) {
  std::string names;
  const size_t count = std::min(facts.after.size(), kMostNamed);
  for (size_t i = 0; i < count; ++i) {
    const EarlierJob& job = facts.after[i];
    names += fmt::format("{}job {} ({}), which is {},", i == 0 ? "" : " and ", job.id, job.name,
                         job.phase ? to_string(*job.phase) : "not there any more");
  }
  if (facts.after.size() > count)
    names += fmt::format(" and {} other jobs", facts.after.size() - count);
  return fmt::format(
      "It begins in its turn after {} {} finished; if {} fails or is cancelled, so is this one.",
      names, facts.after.size() == 1 ? "has" : "have",
      facts.after.size() == 1 ? "that one" : "one of these");
}

std::string why_it_is_paused(const WhyFacts& facts) {
  return fmt::format("{}; `ductile resume {}` lets it {}.", without_stop(facts.job.reason),
                     facts.job.id, facts.job.started ? "go on" : "begin");
}

}  // namespace

int64_t held_gpus(const std::vector<Holder>& holders, const std::map<JobId, int64_t>& gpus,
                  const std::string& node) {
  int64_t sum = 0;
  for (const Holder& holder : holders)
    if (const auto found = gpus.find(holder.job); found != gpus.end() && holder.node == node)
      sum += found->second;
  return sum;
}

std::string why(const WhyFacts& facts) {
  const JobRecord& job = facts.job;
  switch (job.phase) {
    case Phase::finished:
    case Phase::failed:
    case Phase::cancelled:
      return job.reason;
    case Phase::paused:
      return why_it_is_paused(facts);
    case Phase::running:
      if (job.wish == Wish::cancel && !facts.live)
        return "It was cancelled, and none of its processes is left; it counts as running until "
               "the store can be written.";
      return why_it_runs(facts);
    case Phase::queued:
      break;
  }
  if (job.wish == Wish::cancel) return "It is being cancelled.";
  if (!facts.after.empty()) return why_it_follows(facts);
  if (facts.live && facts.live->moment == Moment::resting)
    return fmt::format("It is tried again within a few seconds, since this went wrong: {}.",
                       without_stop(facts.live->text));
  if (facts.live && facts.live->moment == Moment::starting)
    return facts.live->text.empty()
               ? "It is just starting."
               : fmt::format("It has its devices, and begins once the store can be written: {}.",
                             without_stop(facts.live->text));
  return why_it_waits(facts);
}

}  // namespace ductile::cluster
