#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <string_view>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/link/addresses.h"
#include "ductile/process/find_program.h"
#include "ductile/process/spawn.h"
#include "ductile/server/agent_link_impl.h"
#include "ductile/server/agent_protocol_impl.h"
#include "ductile/server/host_agent.h"

namespace ductile::server {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kFirstRetry{500};
constexpr milliseconds kLastRetry{30000};
constexpr int kMostBlocks = 64;  // of what a launcher says, at once

struct Pipe {
  Descriptor read_end, write_end;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe", errno);
    read_end = Descriptor(ends[0]);
    write_end = Descriptor(ends[1]);
  }
};

fs::path on_path(const std::string& program) {
  if (program.find('/') != std::string::npos) return program;
  if (auto found = process::find_program(program)) return *std::move(found);
  fail(ErrorCode::not_found, "launcher: there is no program '{}' on PATH", program);
}

}  // namespace

AgentLink::AgentLink(net::Loop& loop, const AgentsOptions& options, const Host& host,
                     std::string launcher, std::function<void()> on_words)
    : loop_(loop),
      options_(options),
      host_(host),
      launcher_(std::move(launcher)),
      on_words_(std::move(on_words)),
      retry_in_(kFirstRetry / 2) {
  std::signal(SIGPIPE, SIG_IGN);
}

AgentLink::~AgentLink() { hang_up(); }

void AgentLink::dial(const net::Secret& secret) {
  try {
    Pipe to, from, talk;
    process::SpawnOptions launch;
    std::vector<std::string> words;
    if (!is_this_machine(host_)) words = launch_words(launcher_, host_.name);
    words.push_back(options_.program.string());
    words.emplace_back(kHostAgent);
    launch.program = on_path(words.front());
    launch.arguments.assign(words.begin() + 1, words.end());
    launch.input_fd = to.read_end.get();
    launch.output_fd = from.write_end.get();
    launch.error_fd = talk.write_end.get();
    pid_ = process::spawn(launch);
    to_ = std::move(to.write_end);
    from_ = std::move(from.read_end);
    talk_ = std::move(talk.read_end);
    for (Descriptor* fd : {&to_, &from_, &talk_}) fcntl(fd->get(), F_SETFL, O_NONBLOCK);
    const auto on_ready = [this](net::Ready) { on_words_(); };
    to_watch_ = loop_.watch(to_.get(), net::Interest::none, [this](net::Ready) { flush(); });
    from_watch_ = loop_.watch(from_.get(), net::Interest::read, on_ready);
    talk_watch_ = loop_.watch(talk_.get(), net::Interest::read, on_ready);
  } catch (const Error& e) {
    return fall(e.what());
  }
  state_ = State::greeting;
  dialled_at_ = heard_at_ = Clock::now();
  last_words_.clear();
  wire_ = {};
  talk_lines_ = {};
  nonce_ = net::to_hex(net::random_nonce());
  secret_ = secret;
  say({{"hello",
        {{"protocol", kAgentProtocol},
         {"folder", options_.folder.string()},
         {"host", host_.name},
         {"nonce", nonce_}}}});
}

bool AgentLink::may_dial() const { return state_ == State::down && Clock::now() >= retry_at_; }

void AgentLink::say(const json& value) {
  wire_.say(dump_json(value));
  flush();
}

// What is longer than the pipe goes on when the agent has read some of it, and not only when it
// says something. Where it is broken, the other pipe tells.
void AgentLink::flush() {
  if (!to_) return;
  const bool takes_more = wire_.flush(to_.get()) && wire_.has_unsent();
  to_watch_.set(takes_more ? net::Interest::write : net::Interest::none);
}

std::vector<json> AgentLink::take() {
  std::vector<json> said;
  if (state_ == State::down) return said;
  const bool talks = talk_lines_.read(
      talk_.get(), [&](std::string_view line) { remember(line); }, kMostBlocks);
  if (!talks) {
    talk_watch_.end();
    talk_.close();
  }
  std::string trouble;
  const bool open = hear(trouble, said);
  flush();
  const auto now = Clock::now();
  if (!trouble.empty()) {
    fall(trouble);
  } else if (!open) {
    fall(fmt::format("host {}: '{}' ended{}{}", host_.name, command(),
                     last_words_.empty() ? "" : ": ", fmt::join(last_words_, "; ")));
  } else if (state_ == State::greeting && now > dialled_at_ + options_.patience) {
    fall(fmt::format("host {}: '{}' did not answer in {} s", host_.name, command(),
                     options_.patience.count() / 1000));
  } else if (state_ == State::ready && now > heard_at_ + options_.silence) {
    fall(fmt::format("host {}: silent for {} s", host_.name,
                     std::chrono::duration_cast<std::chrono::seconds>(now - heard_at_).count()));
  }
  return said;
}

// False: the stream has ended.
bool AgentLink::hear(std::string& trouble, std::vector<json>& said) {
  try {
    return wire_.read(from_.get(), [&](std::string_view text) {
      heard_at_ = Clock::now();
      json value = parse_json(text);
      if (!trouble.empty()) return;
      if (!value.is_object() || value.empty()) {  // a login script that prints, or the like
        remember(text);
      } else if (value.contains("error")) {
        trouble = value["error"].is_string() ? value["error"].get<std::string>() : text;
      } else if (!wire_.sealed()) {
        trouble = hear_line(value);
      } else {
        trouble = hear_message(std::move(value), said);
      }
    });
  } catch (const std::exception& error) {  // whatever a host says, it ends this link alone
    trouble = fmt::format("host {}: {}", host_.name, error.what());
    return true;
  }
}

void AgentLink::remember(std::string_view words) {
  last_words_.emplace_back(words.substr(0, 1000));
  if (last_words_.size() > 5) last_words_.erase(last_words_.begin());
}

// Before anything is encrypted. Returns what is wrong.
std::string AgentLink::hear_line(const json& value) {
  if (!value.contains("greet")) return "";
  const json& greet = value["greet"];
  if (const int64_t theirs = agent_protocol_of(greet);
      greet.is_object() && theirs != kAgentProtocol)
    return fmt::format(
        "host {}: its agent speaks protocol {} of agents, and this controller speaks {}: install "
        "the same version of Ductile there ('{}'), and let pilots of an earlier one end",
        host_.name, theirs, kAgentProtocol, options_.program.string());
  const json given = greet.is_object() ? greet.value("nonce", json()) : json();
  const std::string nonce = given.is_string() ? given.get<std::string>() : "";
  if (nonce.size() != nonce_.size() ||
      greet.value("proof", json()) != agent_proof(*secret_, nonce_ + nonce))
    return fmt::format("host {} has another folder at {} than this machine", host_.name,
                       options_.folder.string());
  wire_.seal(net::Seal::Side::client, agent_key(*secret_, nonce_, nonce, host_.name));
  secret_.reset();
  say({{"begin",
        {{"worker", options_.worker.string()},
         {"keeper", options_.keeper.string()},
         {"devices", options_.devices ? host_.places : 0},
         {"notice", host_.notice},
         {"machine", link::PeerAddress::here(host_.name).place}}}});
  return "";
}

std::string AgentLink::hear_message(json value, std::vector<json>& said) {
  if (value.contains("ready")) {
    const json& ready = value["ready"];
    const json cores = ready.is_object() ? ready.value("cores", json()) : json();
    state_ = State::ready;
    cores_ = cores.is_number_integer() ? cores.get<int64_t>() : 0;
    const json leaving = ready.is_object() ? ready.value("leaving", json()) : json();
    leaving_ = leaving.is_number() ? leaving.get<double>() : 0;
    beside_ = ready.is_object() && ready.value("beside", json()) == true;
  } else if (!value.contains("beat")) {
    said.push_back(std::move(value));
  }
  return "";
}

void AgentLink::hang_up() {
  to_watch_.end();
  from_watch_.end();
  talk_watch_.end();
  to_.close();
  from_.close();
  talk_.close();
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  state_ = State::down;
}

std::string AgentLink::command() const {
  if (is_this_machine(host_)) return options_.program.string() + " host-agent";
  return fmt::format("{}", fmt::join(launch_words(launcher_, host_.name), " "));
}

void AgentLink::fall(const std::string& why) {
  hang_up();
  error_ = why;
  const bool was_up = Clock::now() - dialled_at_ > kLastRetry + options_.patience;
  retry_in_ = was_up ? kFirstRetry : std::min(2 * retry_in_, kLastRetry);
  retry_at_ = Clock::now() + retry_in_;
}

}  // namespace ductile::server
