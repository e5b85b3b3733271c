#include "ductile/server/agents.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>
#include <poll.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/log.h"
#include "ductile/base/text.h"
#include "ductile/link/boot_clock.h"
#include "ductile/server/agent_link_impl.h"
#include "ductile/server/agent_protocol_impl.h"
#include "ductile/server/notice_impl.h"

namespace ductile::server {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kTick{250};  // looks for silence, and calls those that are down
constexpr milliseconds kCensusSoon{300}, kCensus{10000};
constexpr std::chrono::minutes kSweep{10};
constexpr size_t kMostOfAComplaint = 1000;

double seconds(control::Time time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

Agents::Agents(net::Loop& loop, AgentsOptions options)
    : loop_(loop), options_(std::move(options)), secret_(secret_of(options_.folder)) {
  for (const Host& host : options_.setup.hosts) {
    const bool lent = states_.size() >= options_.lent_from;
    const std::string& launcher = lent ? options_.lent_launcher : options_.setup.launcher;
    states_.emplace_back().link =
        std::make_unique<AgentLink>(loop_, options_, host, launcher, [this] { wake(); });
    if (lent) {
      states_.back().held = "it has not come yet";
    } else {
      states_.back().link->dial(secret_);
    }
  }
  heard_before_ = heard_ = link::boot_time();
  tick_ = loop_.every(kTick, [this] {
    // A timer is called after a look at all that had come when it was due.
    heard_before_ = std::exchange(heard_, link::boot_time());
    turn();
  });
  sweep_notices(options_.folder);
  sweep_ = loop_.every(kSweep, [this] { sweep_notices(options_.folder); });
}

// An agent on this machine may have got the signal that ends this process, and no word of it yet.
Agents::~Agents() {
  *alive_ = false;
  for (const State& state : states_) state.link->hang_up();
  const control::Time began = stop_.value_or(link::boot_time());
  for (const State& state : states_)
    if (const Host& host = state.link->host(); host.notice > 0)
      forget_notice_of_stop(options_.folder, host.name, seconds(began),
                            stop_ ? seconds(began - told_) : 0);
}

void Agents::stop() {
  stop_ = link::boot_time();
  told_ = heard_before_;
  for (size_t h = 0; h < states_.size(); ++h)
    if (states_[h].link->beside()) say(h, {{"stop", {{"late", seconds(*stop_ - told_)}}}});
}

const Host& Agents::host(size_t h) const { return states_[h].link->host(); }

bool Agents::ready(size_t h) const { return states_[h].link->state() == AgentLink::State::ready; }

bool Agents::clean(size_t h) const { return ready(h) && states_[h].clean; }

bool Agents::calling(size_t h) const {
  return states_[h].link->state() == AgentLink::State::greeting;
}

bool Agents::coming(size_t h) const {
  const State& state = states_[h];
  return !clean(h) && state.held.empty() && state.strays == 0 && state.link->error().empty();
}

int64_t Agents::cores(size_t h) const { return states_[h].link->cores(); }

std::string Agents::error(size_t h) const {
  const State& state = states_[h];
  if (clean(h)) return "";
  if (ready(h))
    return state.strays > 0 ? fmt::format("{} processes of its past are being ended", state.strays)
                            : "it is being looked at what runs there";
  if (!state.held.empty()) return state.held;
  if (!state.link->error().empty()) return state.link->error();
  return "it is being called";
}

void Agents::hold(size_t h, std::string why) {
  State& state = states_[h];
  const bool news = why != state.held;
  state.held = std::move(why);
  if (state.link->state() != AgentLink::State::down) {
    state.link->hang_up();
    forget(state);
    state.leaving = 0;
  } else if (!news) {
    return;
  }
  changed(h);
}

void Agents::call(size_t h) {
  State& state = states_[h];
  if (state.held.empty()) return;
  state.held.clear();
  state.link->dial(secret_);
  changed(h);
}

// What was known of a host whose agent came or went.
void Agents::forget(State& state) {
  state.clean = state.asked = false;
  state.strays = 0;
  state.next_census = {};
}

void Agents::say(size_t h, const json& request) {
  if (ready(h)) states_[h].link->say(request);
}

void Agents::join(const std::string& run, Job& job) { jobs_[run] = &job; }

void Agents::leave(const std::string& run) {
  jobs_.erase(run);
  for (State& state : states_) state.next_census = {};  // what it leaves behind, is ended
}

void Agents::wake() {
  if (std::exchange(awake_, true)) return;
  loop_.post([this, alive = alive_] {
    if (!*alive) return;
    awake_ = false;
    turn();
  });
}

void Agents::turn() {
  for (size_t h = 0; h < states_.size(); ++h) {
    State& state = states_[h];
    const AgentLink::State before = state.link->state();
    const std::vector<json> said = state.link->take();
    if (state.link->state() != before) {
      forget(state);
      if (ready(h)) state.leaving = state.link->leaving();
      if (ready(h))
        for (const auto& [run, job] : std::map(jobs_)) job->ready(h);
      changed(h);
    }
    for (const json& one : said) hear(h, one);
    if (ready(h) && !state.asked && loop_.now() >= state.next_census) {
      state.asked = true;
      say(h, {{"census", json::object()}});
    }
    if (!meeting_ && state.held.empty() && state.link->may_dial()) state.link->dial(secret_);
  }
}

void Agents::changed(size_t h) {
  for (const auto& [run, job] : std::map(jobs_)) job->changed(h);
  if (on_change_) on_change_();
}

void Agents::hear(size_t h, const json& said) {
  try {
    if (said.contains("census")) return take_census(h, said["census"]);
    if (said.contains("leaving")) {
      states_[h].leaving = said["leaving"].get<double>();
      return changed(h);
    }
    if (said.contains("hardware")) return hear_hardware(h, said["hardware"]);
    if (said.contains("complaint"))
      return log_line(
          fmt::format("host {}: {}", host(h).name,
                      to_utf8(said["complaint"].get<std::string>().substr(0, kMostOfAComplaint))));
    const auto only = said.begin();
    const json& value = only.value();
    const auto job = jobs_.find(value.at("run").get<std::string>());
    if (job != jobs_.end()) job->second->heard(h, said);
  } catch (const json::exception&) {  // not an agent of this version: its words are lost
  }
}

void Agents::hear_hardware(size_t h, const json& said) {
  try {
    states_[h].hardware = hardware_from(said);
  } catch (const Error& error) {
    return log_line(fmt::format("host {}: {}", host(h).name, error.what()));
  }
  changed(h);
}

void Agents::take_census(size_t h, const json& workers) {
  State& state = states_[h];
  size_t strays = 0, open = 0;
  for (const json& found : workers) {
    const std::string run = found.at("run");
    const control::WorkerId worker = found.at("worker");
    const auto job = jobs_.find(run);
    const Job::Knows knows = job == jobs_.end() ? Job::Knows::no : job->second->knows(worker);
    if (knows == Job::Knows::not_yet) ++open;
    if (knows != Job::Knows::no) continue;
    ++strays;
    say(h, {{"end", {{"run", run}, {"worker", worker}}}});
  }
  const bool clean = strays == 0 && open == 0;
  const bool news = clean != state.clean || strays != state.strays;
  state.asked = false;
  state.clean = clean;
  state.strays = strays;
  state.next_census = loop_.now() + (clean ? kCensus : kCensusSoon);
  if (news) changed(h);
}

void Agents::await(milliseconds wait) {
  std::vector<pollfd> words;
  for (const State& state : states_)
    for (const Descriptor* fd : {&state.link->answers(), &state.link->talk()})
      words.push_back({fd->get(), POLLIN, 0});
  ::poll(words.data(), words.size(), static_cast<int>(wait.count()));
  turn();
}

void Agents::meet(bool all) {
  const auto any_greeting = [&] {
    for (size_t h = 0; h < hosts(); ++h)
      if (calling(h)) return true;
    return false;
  };
  meeting_ = true;  // who fails now has failed
  while (any_greeting()) await(milliseconds(100));
  meeting_ = false;
  std::vector<std::string> why;
  size_t up = 0;
  for (size_t h = 0; h < hosts(); ++h) {
    if (ready(h))
      ++up;
    else
      why.push_back(error(h));
  }
  if (up > 0 && (!all || up == hosts())) return;
  fail(ErrorCode::unavailable, "{} of {} hosts cannot be used: {}", why.size(), hosts(),
       fmt::join(why, "; "));
}

}  // namespace ductile::server
