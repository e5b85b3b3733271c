#include "ductile/link/disk.h"

#include <utility>

namespace ductile::link {
namespace {

std::exception_ptr error_of(const Disk::Work& work) {
  try {
    work();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

void DiskHere::run(Work work, Done done) {
  if (!done) return work();
  done(error_of(work));
}

DiskThread::DiskThread(net::Loop& loop)
    : mailbox_(loop.mailbox()), thread_([this](const std::stop_token& stop) { serve(stop); }) {}

DiskThread::~DiskThread() {
  *alive_ = false;
  thread_.request_stop();
  thread_.join();
}

void DiskThread::run(Work work, Done done) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(work), std::move(done)});
  }
  changed_.notify_one();
}

void DiskThread::serve(const std::stop_token& stop) {
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return !jobs_.empty(); }) || stop.stop_requested())
        return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    if (!job.done) {
      job.work();
      continue;
    }
    mailbox_.post([alive = alive_, done = std::move(job.done), error = error_of(job.work)] {
      if (*alive) done(error);
    });
  }
}

}  // namespace ductile::link
