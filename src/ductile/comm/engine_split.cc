#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/ranges.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/comm/engine_impl.h"

// How the members of a group agree on it. Each tells each which list it was called with, and under
// which context it wants the group's messages; then each tells each whether all of that fits. So
// the call ends well on all of them or on none, and no rank outside takes part.
namespace ductile::comm {
namespace {

constexpr size_t kListed = 64;  // ranks of a list that are told, for messages to people
constexpr std::chrono::milliseconds kSlow{20};
constexpr std::chrono::seconds kFarewell{1};

enum MessageKind : uint32_t { kHello, kVerdict };

struct Hello {
  uint64_t hash = 0;
  uint32_t context = 0;
  int32_t note = 0;
  int32_t size = 0;
  std::array<int32_t, kListed> ranks{};
};

struct Verdict {
  uint32_t refused = 0;
  std::array<char, 508> reason{};
};

std::string to_text(std::span<const int> ranks, size_t size) {
  const std::string more = size > ranks.size() ? fmt::format(", ... ({} ranks)", size) : "";
  return fmt::format("[{}{}]", fmt::join(ranks, ", "), more);
}

std::string to_text(std::span<const int> ranks) {
  return to_text(ranks.first(std::min(ranks.size(), kListed)), ranks.size());
}

std::string to_text(const Hello& hello) {
  const auto size = static_cast<size_t>(std::max(hello.size, 0));
  return to_text(std::span(hello.ranks).first(std::min(size, kListed)), size);
}

Hello hello_of(std::span<const int> ranks) {
  Hello hello;
  hello.size = static_cast<int32_t>(ranks.size());
  for (const int r : ranks) hello.hash = mix(hello.hash, static_cast<uint64_t>(r) + 1);
  std::copy_n(ranks.begin(), std::min(ranks.size(), kListed), hello.ranks.begin());
  return hello;
}

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace

void Engine::check_list(std::span<const int> ranks) const {
  const std::string text = to_text(ranks);
  std::vector<bool> seen(static_cast<size_t>(size()));
  for (const int r : ranks) {
    if (r < 0 || r >= size()) {
      fail(ErrorCode::invalid_argument, "rank {} splits into ranks {}: there is no rank {} of {}{}",
           rank(), text, r, size(), members_->name);
    }
    if (seen[static_cast<size_t>(r)]) {
      fail(ErrorCode::invalid_argument, "rank {} splits into ranks {}: rank {} is in it twice",
           rank(), text, r);
    }
    seen[static_cast<size_t>(r)] = true;
  }
  if (!seen[static_cast<size_t>(rank())]) {
    fail(ErrorCode::invalid_argument,
         "rank {} splits into ranks {} and is not one of them: only members call it", rank(), text);
  }
}

struct Engine::Meeting {
  struct Peer {
    int rank;
    uint64_t number;  // of the splits that the two ranks are both in
    Hello hello;
    Verdict verdict;
    Work hello_in, hello_out, verdict_in, verdict_out;
    bool heard = false;
  };

  Meeting(Engine& parent, std::span<const int> members, const std::function<int32_t()>& note)
      : engine(parent), text(to_text(members)), ranks(members), own(hello_of(members)) {
    if (ranks.front() == engine.rank() && note) own.note = note();
    for (const int r : ranks) {
      if (r != engine.rank()) peers.push_back({.rank = r, .number = 0, .hello = {}, .verdict = {}});
    }
    // All at once, so that two threads that split do not get in between each other.
    const std::lock_guard lock(engine.core_->mutex);
    engine.throw_if_ended();
    own.context = engine.core_->take_context();
    for (Peer& p : peers) {
      p.number = engine.lane_->meetings[p.rank]++;
      p.hello_in = post(Op::receive, p, kHello, bytes_of(p.hello), false);
      p.verdict_in = post(Op::receive, p, kVerdict, bytes_of(p.verdict), true);
      p.hello_out = post(Op::send, p, kHello, bytes_of(own), true);
    }
  }

  // The messages lie in here: they end before it does.
  ~Meeting() {
    const auto all = {&Peer::hello_in, &Peer::verdict_in, &Peer::hello_out, &Peer::verdict_out};
    const auto done = [&](const Peer& p) {
      return std::all_of(all.begin(), all.end(), [&](auto work) { return (p.*work).done(); });
    };
    if (!std::all_of(peers.begin(), peers.end(), done)) {
      end_family(ErrorCode::unavailable, "a split was broken off");
    }
    for (const Peer& p : peers) {
      for (const auto work : all) {
        try {
          (p.*work).wait();
        } catch (const Error&) {
        }
      }
    }
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Under the lock.
  Work post(Op op, const Peer& p, MessageKind kind, std::span<std::byte> bytes, bool quiet) {
    Schedule list;
    const Chunks all{op == Op::send ? BufferName::in : BufferName::out, 0, 1};
    Step step{.op = op, .peer = p.rank};
    (op == Op::send ? step.a : step.dst) = all;
    list.steps = {step};
    Binding binding;
    if (op == Op::send) binding.in = {bytes.data()};
    binding.out = bytes.data();
    binding.block_elements = static_cast<int64_t>(bytes.size());
    auto operation = std::make_shared<Operation>(
        std::make_shared<const StepOrder>(make_step_order(std::move(list))), std::move(binding),
        fmt::format("split into ranks {}{}", text, engine.members_->name),
        kPointToPoint | kInternal | (Tag{kind} << kCountShift) | (p.number & kMaxNumber),
        engine.members_);
    operation->quiet = quiet;
    return engine.submit(std::move(operation), true);
  }

  // Until everybody's list is here, or somebody says that it does not fit. Why not, or nothing.
  std::string hear_all() {
    while (true) {
      Peer* silent = nullptr;
      for (Peer& p : peers) {
        if (p.verdict_in.done()) {
          p.verdict_in.wait();
          if (p.verdict.refused != 0) return p.verdict.reason.data();
        }
        if (p.heard) continue;
        if (!p.hello_in.done()) {
          silent = &p;
          continue;
        }
        p.hello_in.wait();
        p.heard = true;
        if (p.hello.hash == own.hash && p.hello.size == own.size) continue;
        return fmt::format(
            "rank {} splits into ranks {}, and rank {} into ranks {}: all members give the same "
            "list, and ranks that are in several lists together take them in the same order",
            engine.rank(), text, p.rank, to_text(p.hello));
      }
      if (silent == nullptr) return "";
      silent->hello_in.wait_for(kSlow);
    }
  }

  void tell_all(const std::string& reason) {
    Verdict& v = own_verdict;
    v.refused = reason.empty() ? 0 : 1;
    reason.copy(v.reason.data(), v.reason.size() - 1);
    const std::lock_guard lock(engine.core_->mutex);
    engine.throw_if_ended();
    for (Peer& p : peers) p.verdict_out = post(Op::send, p, kVerdict, bytes_of(v), true);
  }

  std::string hear_verdicts() {
    for (Peer& p : peers) {
      p.verdict_in.wait();
      if (p.verdict.refused != 0) return p.verdict.reason.data();
    }
    for (Peer& p : peers) {
      p.hello_out.wait();
      p.verdict_out.wait();
    }
    return "";
  }

  void end_family(ErrorCode code, const std::string& why) {
    const std::lock_guard lock(engine.core_->mutex);
    engine.core_->give_up(std::make_exception_ptr(Error(code, why)), why);
  }

  // A member that came with another list is out of step with the others for good. None ends what it
  // shares with them before they all had the time to hear why.
  [[noreturn]] void refuse(const std::string& reason) {
    const auto deadline = EngineClock::now() + kFarewell;
    for (const Peer& p : peers) {
      for (const Work* work : {&p.verdict_out, &p.verdict_in}) {
        try {
          const std::chrono::nanoseconds left = deadline - EngineClock::now();
          work->wait_for(std::max<std::chrono::nanoseconds>(left, std::chrono::milliseconds(1)));
        } catch (const Error&) {  // gone already
        }
      }
    }
    end_family(ErrorCode::conflict, reason);
    throw Error(ErrorCode::conflict, reason);
  }

  std::shared_ptr<Members> agree() {
    std::string reason = hear_all();
    tell_all(reason);
    if (reason.empty()) reason = hear_verdicts();
    if (!reason.empty()) refuse(reason);
    auto group = std::make_shared<Members>();
    group->size = static_cast<int>(ranks.size());
    group->contexts.assign(ranks.size(), own.context);
    for (size_t i = 0; i < ranks.size(); ++i) {
      group->ranks.push_back(engine.members_->on_transport(ranks[i]));
      if (ranks[i] == engine.rank()) group->rank = static_cast<int>(i);
      for (const Peer& p : peers) {
        if (p.rank == ranks[i]) group->contexts[i] = p.hello.context;
      }
    }
    note = own.note;
    for (const Peer& p : peers) {
      if (p.rank == ranks.front()) note = p.hello.note;
    }
    group->name = fmt::format(" among ranks {}", to_text(group->ranks));
    return group;
  }

  Engine& engine;
  const std::string text;
  const std::span<const int> ranks;
  Hello own;
  Verdict own_verdict;
  std::vector<Peer> peers;
  int32_t note = 0;
};

Engine::Group Engine::split(std::span<const int> ranks, const std::function<int32_t()>& note) {
  check_list(ranks);
  Meeting meeting(*this, ranks, note);
  auto members = meeting.agree();
  return {make(core_, std::move(members)), meeting.note};
}

}  // namespace ductile::comm
