#include "ductile/server/zygotes.h"

#include <algorithm>
#include <utility>

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "ductile/base/error.h"
#include "ductile/link/worker_processes.h"

namespace ductile::server {
namespace {

constexpr int kMostDoublings = 10;
constexpr std::chrono::seconds kLastAnswer{
    1};  // of a zygote that is dead, so it is there or on its way

}  // namespace

Zygotes::~Zygotes() {
  zygote_.reset();
  const Clock::time_point end = Clock::now() + kLastAnswer;
  for (const Withdrawn& one : withdrawn_) {
    pollfd answer{one.asked.socket.get(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    ::poll(&answer, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    is_over(one.asked);
  }
}

void Zygotes::warm(const process::SpawnOptions& worker) {
  if (!zygote_ && process::has_zygote(worker.program)) begin(worker);
}

void Zygotes::take_over(std::shared_ptr<process::Zygote> loaded) {
  if (!loaded || loaded->broken()) return;
  ++number_;
  ready_ = false;
  forked_ = taken_over_ = true;
  begun_ = Clock::now();
  zygote_ = std::move(loaded);
}

std::optional<Zygotes::Asked> Zygotes::ask(const process::SpawnOptions& worker) {
  if (!process::has_zygote(worker.program)) return std::nullopt;
  try {
    judge();
    if (zygote_ && taken_over_ && !zygote_->suits(worker)) give_up(false);
    if (zygote_ && zygote_->outdated()) give_up(!forked_);
    if (!zygote_ && !begin(worker)) return std::nullopt;
    if (!ready_ && !patience_.for_load) return std::nullopt;
    Asked asked;
    asked.socket = zygote_->ask(worker);
    if (!asked.socket) return std::nullopt;
    asked.zygote = number_;
    if (!waiting_since_) waiting_since_ = Clock::now();
    return asked;
  } catch (const Error&) {  // who starts the worker will find out why, if it matters to it
    return std::nullopt;
  }
}

process::ZygoteAnswer Zygotes::answer(const Asked& asked) {
  const process::ZygoteAnswer answer = process::answer_of_zygote(asked.socket.get());
  const bool is_of_last = zygote_ && asked.zygote == number_;
  if (is_of_last && (answer.worker || answer.none)) waiting_since_.reset();
  if (is_of_last && answer.worker) {
    forked_ = true;
    of_no_use_ = 0;
  }
  if (answer.worker) return answer;
  judge();
  const bool comes = !answer.none && zygote_ && asked.zygote == number_;
  if (comes && !waiting_since_) waiting_since_ = Clock::now();  // for the next of several
  return {!comes, {}};
}

// Whether the zygote ended, was stopped by somebody, or answers nobody.
void Zygotes::judge() {
  if (!zygote_) return;
  if (zygote_->broken()) return give_up(!forked_);  // else it would do so again
  const auto state = link::state_of(zygote_->pid());
  if (state && state->letter == 'T') return give_up(true);
  const Clock::time_point now = Clock::now();
  if (!ready_ && zygote_->ready()) {
    ready_ = true;
    if (waiting_since_) waiting_since_ = now;
  }
  const bool late = ready_ ? waiting_since_ && now - *waiting_since_ > patience_.fork
                           : now - begun_ > patience_.load;
  if (late) give_up(true);
}

void Zygotes::withdraw(Asked asked) {
  if (is_over(asked)) return;
  Withdrawn& one = withdrawn_.emplace_back();
  one.asked = std::move(asked);
  try {
    one.watch =
        loop_.watch(one.asked.socket.get(), net::Interest::read, [this](net::Ready) { reap(); });
  } catch (const Error&) {  // it is looked at with the next one
  }
}

bool Zygotes::begin(const process::SpawnOptions& worker) {
  if (not_before_ && Clock::now() < *not_before_) return false;
  ++number_;
  ready_ = forked_ = taken_over_ = false;
  waiting_since_.reset();
  begun_ = Clock::now();
  try {
    zygote_ = std::make_shared<process::Zygote>(worker);
    return true;
  } catch (const Error&) {  // as above
    give_up(true);
    return false;
  }
}

void Zygotes::give_up(bool of_no_use) {
  zygote_.reset();
  if (!of_no_use) return;
  not_before_ = Clock::now() + patience_.again * (1 << std::min(of_no_use_++, kMostDoublings));
}

// Who waits to be let go ends here.
bool Zygotes::is_over(const Asked& asked) {
  const process::ZygoteAnswer answer = process::answer_of_zygote(asked.socket.get());
  if (asked.zygote == number_ && (answer.none || answer.worker)) waiting_since_.reset();
  if (answer.worker) {
    ::kill(*answer.worker, SIGKILL);
    ::waitpid(*answer.worker, nullptr, 0);
  }
  return answer.none || answer.worker;
}

void Zygotes::reap() {
  withdrawn_.remove_if([this](const Withdrawn& one) { return is_over(one.asked); });
}

}  // namespace ductile::server
