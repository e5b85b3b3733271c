#include "ductile/serving/batcher.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ductile/base/error.h"

namespace ductile::serving {

Batcher::Batcher(BatchRules rules, Deployment deployment, OnBatch on_batch,
                 std::function<void()> prepare_thread)
    : on_batch_(std::move(on_batch)),
      queue_(rules),
      deployment_(std::move(deployment)),
      thread_([this, prepare_thread = std::move(prepare_thread)] {
        if (prepare_thread) prepare_thread();
        work();
      }) {}

Batcher::~Batcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool Batcher::submit(WorkPtr work) {
  {
    const std::lock_guard lock(mutex_);
    work->arrived = Clock::now();
    work->idle = !running_ && queue_.waiting() == 0;
    if (!queue_.push(std::move(work))) return false;
  }
  changed_.notify_all();
  return true;
}

void Batcher::replace(Deployment deployment) {
  const std::lock_guard lock(mutex_);
  deployment_ = std::move(deployment);
}

Deployment Batcher::deployment() const {
  const std::lock_guard lock(mutex_);
  return deployment_;
}

int64_t Batcher::waiting() const {
  const std::lock_guard lock(mutex_);
  return queue_.waiting();
}

void Batcher::work() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    BatchQueue::Next next = queue_.next(Clock::now());
    for (const Piece& piece : next.batch) {
      if (!piece.work->deployment.model) piece.work->deployment = deployment_;
    }
    if (next.batch.empty() && next.expired.empty()) {
      if (next.look_again == Time::max()) {
        changed_.wait(lock);
      } else {
        changed_.wait_until(lock, next.look_again);
      }
      continue;
    }
    running_ = true;
    lock.unlock();
    BatchReport report;
    for (const WorkPtr& work : next.expired) {
      work->error.emplace(ErrorCode::deadline, "the request waited longer than it may");
      report.done.push_back(work);
    }
    if (!next.batch.empty()) run(next.batch, report);
    on_batch_(std::move(report));
    next = {};
    lock.lock();
    running_ = false;
  }
}

// A sample that cannot be read fails its own request alone; its place stays empty.
void Batcher::prepare(const std::vector<Piece>& batch, size_t row) {
  size_t at = 0;
  for (const Piece& piece : batch) {
    Work& work = *piece.work;
    for (size_t i = piece.first; i < piece.first + piece.count; ++i, ++at) {
      if (work.error) continue;
      std::byte* const to = rows_.data() + at * row;
      try {
        work.deployment.model->prepare(work.samples[i], to);
      } catch (const std::exception& error) {
        work.error.emplace(ErrorCode::invalid_argument,
                           fmt::format("sample {}: {}", i, error.what()));
        std::memset(to, 0, row);
      }
    }
  }
}

void Batcher::run(const std::vector<Piece>& batch, BatchReport& report) {
  const auto began = Clock::now();
  const Deployment deployment = batch.front().work->deployment;
  Model& model = *deployment.model;
  const size_t row = model.card().row_bytes;
  const auto values = static_cast<size_t>(num_elements(model.card().output));
  for (const Piece& piece : batch) report.samples += static_cast<int64_t>(piece.count);
  const int64_t most = deployment.sizes.back();
  const size_t bytes = static_cast<size_t>(report.samples + most) * row;
  rows_.need(static_cast<int64_t>(bytes));
  std::memset(rows_.data(), 0, bytes);
  out_.resize(static_cast<size_t>(report.samples + most) * values);
  prepare(batch, row);
  std::optional<Error> broken;
  try {
    for (int64_t done = 0; done < report.samples;) {
      const int64_t count = std::min(report.samples - done, most);
      const int64_t size = deployment.size_for(count);
      // From the same place in memory, so that kernels find each batch equally aligned.
      if (done > 0)
        std::memmove(rows_.data(), rows_.data() + static_cast<size_t>(done) * row,
                     static_cast<size_t>(size) * row);
      model.run(rows_.data(), size, out_.data() + static_cast<size_t>(done) * values);
      done += count;
      report.size += size;
    }
  } catch (const std::exception& error) {
    broken.emplace(ErrorCode::internal, fmt::format("the model failed: {}", error.what()));
  }
  report.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  hand_out(batch, broken, report);
}

void Batcher::hand_out(const std::vector<Piece>& batch, const std::optional<Error>& broken,
                       BatchReport& report) {
  size_t at = 0;
  for (const Piece& piece : batch) {
    Work& work = *piece.work;
    const auto values = static_cast<size_t>(num_elements(work.deployment.model->card().output));
    const float* const from = out_.data() + at * values;
    at += piece.count;
    if (broken && !work.error) work.error = broken;
    if (work.error) {  // the queue drops what is left of it
      report.done.push_back(piece.work);
      continue;
    }
    work.out.resize(work.samples.size() * values);
    std::copy_n(from, piece.count * values, work.out.data() + piece.first * values);
    work.finished += piece.count;
    if (work.finished == work.samples.size()) report.done.push_back(piece.work);
  }
}

}  // namespace ductile::serving
