#include "ductile/link/publisher.h"

#include <cerrno>
#include <utility>

#include <sys/eventfd.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/ckpt/publish.h"
#include "ductile/link/addresses.h"

namespace ductile::link {

Publisher::Publisher(fs::path checkpoints, int64_t keep)
    : checkpoints_(std::move(checkpoints)),
      keep_(keep),
      ready_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (ready_.get() < 0) fail_errno("eventfd", errno);
  thread_ = std::jthread([this] { run(); });
}

Publisher::~Publisher() {
  {
    const std::lock_guard guard(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

void Publisher::publish(const control::PublishCheckpoint& what) {
  {
    const std::lock_guard guard(mutex_);
    asked_.push_back(what);
  }
  changed_.notify_all();
}

std::vector<control::Event> Publisher::take() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = ::read(ready_.get(), &count, sizeof count);
  const std::lock_guard guard(mutex_);
  return std::exchange(answers_, {});
}

void Publisher::run() {
  std::unique_lock guard(mutex_);
  while (true) {
    changed_.wait(guard, [this] { return stopping_ || !asked_.empty(); });
    if (stopping_) return;
    const control::PublishCheckpoint what = asked_.front();
    asked_.pop_front();
    guard.unlock();
    control::Event answer = carry_out(what);
    guard.lock();
    answers_.push_back(std::move(answer));
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(ready_.get(), &one, sizeof one);
  }
}

control::Event Publisher::carry_out(const control::PublishCheckpoint& what) const {
  try {
    ckpt::publish(checkpoints_, what.step, checkpoint_tag(what.worker), {.keep = keep_});
    return control::CheckpointPublished{what.step};
  } catch (const std::exception& e) {
    return control::PublishFailed{what.step, e.what()};
  }
}

}  // namespace ductile::link
