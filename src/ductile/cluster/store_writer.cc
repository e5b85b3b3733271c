#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/log.h"
#include "ductile/cluster/store_writer_impl.h"

namespace ductile::cluster {
namespace {

constexpr std::chrono::milliseconds kAfterFailure{1000};

}  // namespace

Poster make_poster(net::Loop& loop, const std::weak_ptr<void>& alive) {
  return [mailbox = loop.mailbox(), alive](std::function<void()> what) {
    mailbox.post([alive, what = std::move(what)] {
      if (alive.lock()) what();
    });
  };
}

void StoreWriter::write(CommitQueue::Write write, std::function<void()> then) {
  if (failed_) return;
  writes_.push_back({std::move(write), std::move(then)});
  write_next();
}

void StoreWriter::write_next() {
  if (writing_ || writes_.empty()) return;
  writing_ = true;
  try {
    queue_.post(writes_.front().write,
                [post = make_poster(loop_, alive_), this](const Error* error) {
                  const auto copy = error == nullptr ? std::nullopt : std::optional<Error>(*error);
                  post([this, copy] { written(copy); });
                });
  } catch (const Error& error) {  // too many requests wait for the disk
    written(error);
  }
}

void StoreWriter::written(const std::optional<Error>& error) {
  writing_ = false;
  if (error && error->code() == ErrorCode::unavailable) {  // a full disk: it has to wait
    if (!refused_since_) {
      refused_since_ = loop_.now();
      log_line(fmt::format("store: {}; it is tried again until it can be written", error->what()));
    }
    again_ = loop_.after(kAfterFailure, [this] { write_next(); });
    return;
  }
  if (error) {
    failed_ = true;
    writes_.clear();
    log_line(fmt::format("store: {}", error->what()));
    if (on_failure_) on_failure_(*error);
    return;
  }
  if (std::exchange(refused_since_, std::nullopt)) log_line("store: it can be written again");
  const Pending done = std::move(writes_.front());
  writes_.pop_front();
  if (done.then) done.then();
  write_next();
  if (idle() && on_idle_) on_idle_();
}

}  // namespace ductile::cluster
