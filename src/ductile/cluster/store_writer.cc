#include <chrono>
#include <iterator>
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
  write_newest("", std::move(write), std::move(then));
}

void StoreWriter::write_newest(std::string key, CommitQueue::Write write,
                               std::function<void()> then) {
  if (failed_) return;
  const auto before = key.empty() ? by_key_.end() : by_key_.find(key);
  const bool replaces =
      refusal_ && before != by_key_.end() && !(writing_ && before->second == writes_.begin());
  if (replaces) {
    writes_.splice(writes_.end(), writes_, before->second);
    writes_.back().write = std::move(write);
  } else {
    writes_.push_back({key, std::move(write), {}});
    if (!key.empty()) by_key_[std::move(key)] = std::prev(writes_.end());
  }
  if (then) writes_.back().then.push_back(std::move(then));
  if (!again_.armed()) write_next();
}

void StoreWriter::write_next() {
  if (writing_ || writes_.empty()) return;
  writing_ = true;
  try {
    queue_.post(
        writes_.front().write, [post = make_poster(loop_, alive_), this](const StoreError* error) {
          const auto copy = error == nullptr ? std::nullopt : std::optional<StoreError>(*error);
          post([this, copy] { written(copy); });
        });
  } catch (const Error& error) {  // too many requests wait for the disk
    written(StoreError(error, StoreFault::none));
  }
}

// It has to wait. Each reason has another remedy, which the error names; none of them is a reason
// to end jobs.
void StoreWriter::refused(const StoreError& error) {
  again_ = loop_.after(kAfterFailure, [this] { write_next(); });
  const bool is_news =
      !refusal_ || refusal_->fault != error.fault() || refusal_->text != error.what();
  const net::Deadline since = refusal_ ? refusal_->since : loop_.now();
  refusal_ = Refusal{since, error.fault(), error.what()};
  if (!is_news) return;
  log_line(fmt::format("store: {}; it is tried again until it can be written", error.what()));
  if (on_refusal_) on_refusal_();
}

void StoreWriter::written(const std::optional<StoreError>& error) {
  writing_ = false;
  if (error && error->code() == ErrorCode::unavailable) return refused(*error);
  if (error) {
    failed_ = true;
    by_key_.clear();
    writes_.clear();
    log_line(fmt::format("store: {}", error->what()));
    if (on_failure_) on_failure_(*error);
    return;
  }
  if (std::exchange(refusal_, std::nullopt)) {
    log_line("store: it can be written again");
    if (on_refusal_) on_refusal_();
  }
  const Pending done = std::move(writes_.front());
  const auto known = by_key_.find(done.key);
  if (known != by_key_.end() && known->second == writes_.begin()) by_key_.erase(known);
  writes_.pop_front();
  for (const auto& then : done.then) then();
  write_next();
  if (idle() && on_idle_) on_idle_();
}

}  // namespace ductile::cluster
