#include "ductile/ckpt/writer.h"

#include <chrono>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <sys/resource.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/ckpt/commit_impl.h"
#include "ductile/ckpt/folder_lock_impl.h"
#include "ductile/ckpt/layout_impl.h"
#include "ductile/ckpt/pending_impl.h"
#include "ductile/ckpt/staging_impl.h"

namespace ductile::ckpt {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double thread_cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Who writes for somebody else has its folder in a run's; where that is not there, as where its
// disk is not mounted, nothing is made in its place.
const fs::path& made(const fs::path& folder, const WriterOptions& options) {
  std::error_code error;
  if (options.pending_tag.empty())
    fs::create_directories(folder, error);
  else
    fs::create_directory(folder, error);
  if (error) fail_errno(folder.string(), error.value());
  return folder;
}

WriterOptions checked(WriterOptions o) {
  if (o.keep < 1) fail(ErrorCode::invalid_argument, "checkpoint.keep is {}; at least 1", o.keep);
  if (o.chunk_bytes < 0 || o.chunk_bytes % 4096 != 0 || o.chunk_bytes > kMaxChunkBytes) {
    fail(ErrorCode::invalid_argument, "chunk_bytes is {}; 0 or a multiple of 4096 up to {}",
         o.chunk_bytes, kMaxChunkBytes);
  }
  if (!o.pending_tag.empty()) check_tag(o.pending_tag);
  return o;
}

std::unique_ptr<FolderLock> lock_of(const fs::path& folder, const WriterOptions& options) {
  return options.pending_tag.empty() ? std::make_unique<FolderLock>(folder) : nullptr;
}

}  // namespace

struct CheckpointWriter::Impl {
  Impl(const fs::path& folder, WriterOptions o)
      : options(checked(std::move(o))),
        lock(lock_of(made(folder, options), options)),
        committer(folder, options),
        thread([this] { run(); }) {}

  ~Impl() {
    {
      const std::lock_guard guard(mutex);
      stopping = true;
    }
    changed.notify_all();
  }

  // ---- the caller's

  void wait_until_idle() {
    std::unique_lock guard(mutex);
    changed.wait(guard, [this] { return !busy; });
  }

  void plan(std::span<const TensorView> views) {
    const int64_t chosen = options.chunk_bytes;
    layout = plan_layout(views, chosen > 0 ? chosen : default_chunk_bytes(views));
  }

  void hand_over() {
    {
      const std::lock_guard guard(mutex);
      busy = true;
    }
    changed.notify_all();
  }

  // ---- the thread's

  void run() {
    ::setpriority(PRIO_PROCESS, 0,
                  options.nice);  // of this thread alone; a failure costs only speed
    std::unique_lock guard(mutex);
    while (true) {
      changed.wait(guard, [this] { return busy || stopping; });
      if (!busy) return;
      guard.unlock();
      if (preparing) {
        prepare();
        guard.lock();
      } else {
        std::exception_ptr failure = write();
        guard.lock();
        error = std::move(failure);
        results.push_back(std::move(result));
      }
      busy = false;
      changed.notify_all();
    }
  }

  void prepare() {
    try {
      staging.prepare(layout);
    } catch (const Error&) {
      // save() meets the same lack of memory, and reports it.
    }
    preparing = false;
  }

  std::exception_ptr write() {
    const Clock::time_point begin = Clock::now();
    const double cpu = thread_cpu_seconds();
    std::exception_ptr failure;
    try {
      committer.commit(result.step, state, tensors, staging.chunks(), result);
    } catch (const std::exception& e) {
      failure = std::current_exception();
      result.error = e.what();
    }
    if (!options.keep_memory) staging.release();
    result.write_seconds = seconds_since(begin);
    result.write_cpu_seconds = thread_cpu_seconds() - cpu;
    return failure;
  }

  const WriterOptions options;
  const std::unique_ptr<FolderLock> lock;  // none for a writer of pending checkpoints
  Committer committer;                     // the thread's

  // The job: the thread's while busy, the caller's otherwise.
  Layout layout;
  Staging staging;
  bool preparing = false;  // the job is to get memory, not to save
  std::vector<TensorInfo> tensors;
  std::string state;
  SaveResult result;

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  bool busy = false;
  bool stopping = false;
  std::exception_ptr error;
  std::deque<SaveResult> results;

  std::jthread thread;  // last: starts when all else is there, and is joined first
};

CheckpointWriter::CheckpointWriter(fs::path folder, WriterOptions options)
    : impl_(std::make_unique<Impl>(folder, options)) {}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::prepare(std::span<const TensorView> tensors) {
  check_views(tensors);
  impl_->wait_until_idle();
  impl_->plan(tensors);
  impl_->preparing = true;
  impl_->hand_over();
}

void CheckpointWriter::save(int64_t step, const nlohmann::json& state,
                            std::span<const TensorView> tensors) {
  Impl& s = *impl_;
  if (step < 0) fail(ErrorCode::invalid_argument, "checkpoint of step {}: negative", step);
  check_views(tensors);
  std::string text = dump_json_exactly(state, "the checkpoint's state");
  const Clock::time_point begin = Clock::now();
  s.wait_until_idle();
  s.error = nullptr;
  s.plan(tensors);
  s.result = SaveResult{.step = step, .wait_seconds = seconds_since(begin)};
  const Clock::time_point copy_begin = Clock::now();
  s.staging.fill(tensors, s.layout);
  s.state = std::move(text);
  s.tensors.clear();
  for (size_t i : s.layout.order) {
    const TensorView& t = tensors[i];
    s.tensors.push_back({t.name, t.dtype, t.shape, static_cast<int64_t>(t.bytes.size()),
                         s.layout.tensor_offsets[i]});
  }
  s.result.copy_seconds = seconds_since(copy_begin);
  s.hand_over();
}

bool CheckpointWriter::idle() const {
  const std::lock_guard guard(impl_->mutex);
  return !impl_->busy;
}

void CheckpointWriter::wait() {
  impl_->wait_until_idle();
  if (impl_->error) std::rethrow_exception(std::exchange(impl_->error, nullptr));
}

std::optional<SaveResult> CheckpointWriter::take_result() {
  const std::lock_guard guard(impl_->mutex);
  if (impl_->results.empty()) return std::nullopt;
  SaveResult result = std::move(impl_->results.front());
  impl_->results.pop_front();
  return result;
}

}  // namespace ductile::ckpt
