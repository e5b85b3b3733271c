#include "ductile/cluster/commit_queue.h"

#include <future>
#include <utility>
#include <vector>

namespace ductile::cluster {
namespace {

constexpr size_t kBatch = 500;  // changes of one transaction

// What the change threw, as an Error.
std::optional<StoreError> error_of(const std::function<void()>& body) {
  const auto other = [](const Error& error) { return StoreError(error, StoreFault::none); };
  try {
    body();
    return std::nullopt;
  } catch (const StoreError& error) {
    return error;
  } catch (const Error& error) {
    return other(error);
  } catch (const std::exception& error) {
    return other(Error(ErrorCode::internal, error.what()));
  } catch (...) {
    return other(Error(ErrorCode::internal, "something that is no error was thrown"));
  }
}

}  // namespace

CommitQueue::CommitQueue(Store& store, size_t most)
    : store_(store), most_(most), thread_([this] { run(); }) {}

CommitQueue::~CommitQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  arrived_.notify_one();
  thread_.join();
}

void CommitQueue::post(Write write, Done done, Room room) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= most_)
      fail(ErrorCode::unavailable,
           "{} changes wait for the disk of the store; try again in a moment", waiting_.size());
    waiting_.push_back({std::move(write), std::move(done), room, {}});
  }
  arrived_.notify_one();
}

void CommitQueue::commit(const Write& write, Room room) {
  std::promise<std::optional<StoreError>> promise;
  const auto done = [&](const StoreError* error) {
    promise.set_value(error == nullptr ? std::nullopt : std::optional<StoreError>(*error));
  };
  post(write, done, room);
  if (const auto error = promise.get_future().get()) throw *error;
}

uint64_t CommitQueue::commits() const {
  const std::lock_guard lock(mutex_);
  return commits_;
}

QueueFigures CommitQueue::figures() const {
  const std::lock_guard lock(mutex_);
  return {commits_, waiting_.size()};
}

uint64_t CommitQueue::follow(std::function<void()> told) {
  const std::lock_guard lock(mutex_);
  followers_.emplace(++last_follower_, std::move(told));
  return last_follower_;
}

void CommitQueue::unfollow(uint64_t number) {
  const std::lock_guard lock(mutex_);
  followers_.erase(number);
}

void CommitQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    arrived_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    std::deque<Waiting> batch;
    while (!waiting_.empty() && batch.size() < kBatch) {
      batch.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    lock.unlock();
    carry_out(batch);
    lock.lock();
    ++commits_;  // before anybody is told: who is told may look
    for (const auto& [number, told] : followers_) told();
    lock.unlock();
    for (Waiting& change : batch) change.done(change.error ? &*change.error : nullptr);
    batch.clear();
    lock.lock();
  }
}

// Without room those that may use what is kept are tried, together, since each transaction takes
// some of it; the others are refused.
void CommitQueue::carry_out(std::deque<Waiting>& batch) {
  const auto full = error_of([&] { store_.require_room(); });
  const auto missing = full ? error_of([&] { store_.require_file(); }) : std::nullopt;
  std::vector<Waiting*> changes;
  for (Waiting& change : batch) {
    if (missing || (full && change.room == Room::usual))
      change.error = missing ? missing : full;
    else
      changes.push_back(&change);
  }
  if (changes.empty() || try_together(changes, full.has_value())) return;
  for (Waiting* change : changes) try_alone(*change, full.has_value());
}

// False if the transaction was taken back; nothing of it has happened then.
bool CommitQueue::try_together(const std::vector<Waiting*>& changes, bool short_of_room) {
  Database& database = store_.database();
  std::optional<Transaction> transaction;
  const auto refused = error_of([&] {
    store_.require_file();
    transaction.emplace(database);
  });
  if (refused) {
    for (Waiting* change : changes) change->error = refused;
    return true;  // another one would wait for the same lock as long
  }
  const auto failed = error_of([&] {
    Change writes(database, short_of_room);
    for (Waiting* change : changes) {
      database.execute("SAVEPOINT one");
      change->error = error_of([&] { change->write(writes); });
      // A full disk ends the whole transaction, whatever the change makes of it.
      if (!database.in_transaction()) throw Error(ErrorCode::unavailable, "taken back");
      database.execute(change->error ? "ROLLBACK TO one; RELEASE one" : "RELEASE one");
    }
    transaction->commit();
  });
  return !failed;
}

void CommitQueue::try_alone(Waiting& change, bool short_of_room) {
  change.error = error_of([&] {
    Transaction transaction(store_.database());
    Change writes(store_.database(), short_of_room);
    change.write(writes);
    transaction.commit();
  });
}

}  // namespace ductile::cluster
