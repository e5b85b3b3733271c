#include "ductile/data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "ductile/base/aligned_array.h"
#include "ductile/base/error.h"
#include "ductile/data/augment.h"
#include "ductile/data/decoded_cache.h"
#include "ductile/data/sample_writer.h"
#include "ductile/data/sampler.h"

namespace ductile::data {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kNamedBadItems = 8;
constexpr int64_t kWindow = 8;         // batches between two looks at the waiting time
constexpr double kWaitShare = 0.02;    // more waiting than this calls one more thread
constexpr int64_t kImagesAChunk = 4;   // encoded images: about a millisecond each
constexpr int64_t kPixelsAChunk = 32;  // raw ones: some microseconds each

// A batch with its memory and the state of its making.
struct Slot {
  Batch batch;
  AlignedArray<std::byte> input;
  std::vector<int64_t> labels;
  std::vector<uint64_t> samples;
  std::vector<char> good;
  int64_t next_sample = 0;  // first sample not yet claimed
  int64_t open_chunks = 0;  // claimed, not finished
  std::exception_ptr error;

  bool all_claimed() const { return next_sample >= batch.num_samples; }
  bool ready() const { return all_claimed() && open_chunks == 0; }
};

// Slots that no one uses; outlives the loader while the consumer holds batches.
class SlotPool {
 public:
  std::unique_ptr<Slot> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Slot>();
    auto slot = std::move(free_.back());
    free_.pop_back();
    return slot;
  }
  void give(std::unique_ptr<Slot> slot) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(slot));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Slot>> free_;
};

void check_task(const LoaderTask& task) {
  if (task.batch_size < 1 || task.parts < 1 || task.batch_size % task.parts != 0) {
    fail(ErrorCode::invalid_argument,
         "train.batch_size = {} must be a positive multiple of train.virtual_ranks = {}",
         task.batch_size, task.parts);
  }
  if (task.first_part < 0 || task.num_parts < 1 || task.first_part + task.num_parts > task.parts) {
    fail(ErrorCode::invalid_argument, "parts {}..{} of {}", task.first_part,
         task.first_part + task.num_parts - 1, task.parts);
  }
  if (task.start_epoch < 0 || task.start_step < 0) {
    fail(ErrorCode::invalid_argument, "a loader cannot start at epoch {}, step {}",
         task.start_epoch, task.start_step);
  }
}

}  // namespace

class Loader::Impl {
 public:
  Impl(std::shared_ptr<const Dataset> dataset, const spec::AugmentOptions& augment,
       const spec::LoaderOptions& options, const LoaderTask& task)
      : dataset_(std::move(dataset)),
        info_(dataset_->info()),
        task_(task),
        shuffle_(options.shuffle && task.training),
        prefetch_(static_cast<size_t>(std::max<int64_t>(1, options.prefetch))),
        pool_(std::make_shared<SlotPool>()),
        augmenter_(resolve_augment(augment, info_), info_, task.training, task.seed),
        cache_(DecodedCache::make(*dataset_, options.cache_mb << 20)) {
    check_task(task);
    steps_ = task.training ? info_.size / task.batch_size
                           : (info_.size + task.batch_size - 1) / task.batch_size;
    if (task.training && steps_ == 0) {
      fail(ErrorCode::invalid_argument,
           "train.batch_size = {} is more than the {} samples of the training set", task.batch_size,
           info_.size);
    }
    sample_values_ = info_.tokens ? info_.sequence_length : num_elements(augmenter_.output_shape());
    epoch_ = task.start_epoch + task.start_step / std::max<int64_t>(1, steps_);
    step_ = task.start_step % std::max<int64_t>(1, steps_);
    if (!task.training) {
      epoch_ = task.start_epoch;
      step_ = task.start_step;
    }
    part_ = task.first_part;

    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    max_threads_ = options.threads > 0 ? static_cast<int>(options.threads) : cores;
    active_ = options.threads > 0 ? max_threads_ : 1;
    threads_.reserve(static_cast<size_t>(max_threads_));
    for (int i = 0; i < active_; ++i) threads_.emplace_back([this] { work(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    room_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  std::shared_ptr<const Batch> next() {
    std::unique_lock lock(mutex_);
    std::unique_ptr<Slot> slot;
    do {
      if (error_) std::rethrow_exception(error_);
      const auto start = Clock::now();
      const bool waited = !(at_end_locked() || front_ready());
      filled_.wait(lock, [&] { return at_end_locked() || front_ready(); });
      if (waited) note_wait(std::chrono::duration<double>(Clock::now() - start).count());
      if (queue_.empty()) return nullptr;
      slot = std::move(queue_.front());
      queue_.pop_front();
      room_.notify_all();
      if (slot->error) {
        error_ = slot->error;
        std::rethrow_exception(error_);
      }
      if (!task_.training) drop_bad(*slot);
    } while (slot->batch.num_samples == 0);
    ++batches_;
    maybe_add_thread();
    lock.unlock();

    const Batch* batch = &slot->batch;
    return std::shared_ptr<const Batch>(batch, [pool = pool_, raw = slot.release()](const Batch*) {
      pool->give(std::unique_ptr<Slot>(raw));
    });
  }

  int64_t steps() const { return steps_; }
  Shape sample_shape() const {
    return info_.tokens ? Shape{info_.sequence_length} : augmenter_.output_shape();
  }

  LoaderStats stats() const {
    const std::lock_guard lock(mutex_);
    LoaderStats s;
    s.threads = active_;
    s.wait_seconds = wait_seconds_;
    s.batches = batches_;
    s.bad_items = dataset_->bad_items();
    s.bad_samples = static_cast<int64_t>(s.bad_items.size() + bad_indices_.size());
    s.bad_items.insert(s.bad_items.end(), bad_items_.begin(), bad_items_.end());
    if (s.bad_items.size() > kNamedBadItems) s.bad_items.resize(kNamedBadItems);
    return s;
  }

 private:
  bool front_ready() const { return !queue_.empty() && queue_.front()->ready(); }
  // Evaluation: every batch was made and taken.
  bool at_end_locked() const { return queue_.empty() && !task_.training && step_ >= steps_; }

  void note_wait(double seconds) {
    wait_seconds_ += seconds;
    if (batches_ > 0) window_wait_ += seconds;  // the first batch is always waited for
  }

  // Growth by measurement: the consumer waiting for a noticeable share of its time is the one sign
  // that another thread would help.
  void maybe_add_thread() {
    if (batches_ % kWindow != 0) return;
    const auto now = Clock::now();
    const double elapsed = std::chrono::duration<double>(now - window_start_).count();
    if (window_wait_ > kWaitShare * elapsed && active_ < max_threads_) {
      ++active_;
      threads_.emplace_back([this] { work(); });
    }
    window_start_ = now;
    window_wait_ = 0;
  }

  // A batch of the queue with samples to claim; opens the next one where there is room.
  Slot* claimable() {
    for (const auto& slot : queue_) {
      if (!slot->all_claimed()) return slot.get();
    }
    if (queue_.size() >= prefetch_ || (!task_.training && step_ >= steps_)) return nullptr;
    queue_.push_back(open_slot());
    return queue_.back().get();
  }

  std::unique_ptr<Slot> open_slot() {
    auto slot = pool_->take();
    const int64_t per_part = task_.batch_size / task_.parts;
    Batch& b = slot->batch;
    b.epoch = epoch_;
    b.step = step_;
    b.part = part_;
    const int64_t first = step_ * task_.batch_size + part_ * per_part;
    b.num_samples = std::clamp<int64_t>(info_.size - first, 0, per_part);
    b.channels_last = task_.channels_last && !info_.tokens;
    b.dtype = info_.tokens ? DType::i64 : DType::f32;
    const size_t bytes = static_cast<size_t>(per_part * sample_values_) * size_of(b.dtype);
    slot->input.need(static_cast<int64_t>(bytes));
    b.input = slot->input.data();
    const size_t count = static_cast<size_t>(b.num_samples);
    slot->labels.resize(count * static_cast<size_t>(info_.tokens ? sample_values_ : 1));
    slot->samples.resize(count);
    slot->good.assign(count, 1);
    slot->next_sample = 0;
    slot->open_chunks = 0;
    slot->error = nullptr;
    publish(*slot);

    if (++part_ == task_.first_part + task_.num_parts) {
      part_ = task_.first_part;
      if (++step_ == steps_ && task_.training) {
        step_ = 0;
        ++epoch_;
      }
    }
    return slot;
  }

  void publish(Slot& slot) const {
    Batch& b = slot.batch;
    b.labels = slot.labels.data();
    b.samples = {slot.samples.data(), static_cast<size_t>(b.num_samples)};
    b.shape = sample_shape();
    b.shape.insert(b.shape.begin(), b.num_samples);
  }

  void work() {
    SampleWriter writer(*dataset_, augmenter_, cache_.get(), task_.channels_last);
    std::unique_lock lock(mutex_);
    while (true) {
      Slot* slot = nullptr;
      room_.wait(lock, [&] { return stop_ || (slot = claimable()) != nullptr; });
      if (stop_) return;
      const int64_t chunk = dataset_->in_memory() || info_.tokens ? kPixelsAChunk : kImagesAChunk;
      const int64_t begin = slot->next_sample;
      const int64_t end = std::min(begin + chunk, slot->batch.num_samples);
      slot->next_sample = end;
      ++slot->open_chunks;
      lock.unlock();
      std::exception_ptr error;
      try {
        fill(writer, *slot, begin, end);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error && !slot->error) slot->error = error;
      --slot->open_chunks;
      if (slot->ready()) filled_.notify_one();
    }
  }

  void fill(SampleWriter& writer, Slot& slot, int64_t begin, int64_t end) {
    const Batch& b = slot.batch;
    const int64_t first = b.step * task_.batch_size + b.part * (task_.batch_size / task_.parts);
    const Permutation order(task_.seed, static_cast<uint64_t>(b.epoch), info_.size);
    for (int64_t i = begin; i < end; ++i) {
      int64_t index = shuffle_ ? order[first + i] : first + i;
      int64_t tries = 0;
      while (!try_sample(writer, slot, i, index)) {
        if (!task_.training) {
          slot.good[static_cast<size_t>(i)] = 0;
          break;
        }
        if (++tries == info_.size) {
          fail(ErrorCode::data_loss, "none of the {} samples can be read", info_.size);
        }
        index = (index + 1) % info_.size;
      }
    }
  }

  // False for a bad sample that is to be skipped.
  bool try_sample(SampleWriter& writer, Slot& slot, int64_t i, int64_t index) {
    const size_t at = static_cast<size_t>(i), values = static_cast<size_t>(sample_values_);
    slot.samples[at] = static_cast<uint64_t>(index);
    try {
      if (info_.tokens) {
        writer.write_tokens(index, reinterpret_cast<int64_t*>(slot.input.data()) + at * values,
                            slot.labels.data() + at * values);
      } else {
        slot.labels[at] = dataset_->label(index);
        writer.write_image(index, static_cast<uint64_t>(slot.batch.epoch),
                           reinterpret_cast<float*>(slot.input.data()) + at * values);
      }
      return true;
    } catch (const Error& e) {
      if (!dataset_->skip_bad() || e.code() != ErrorCode::data_loss) throw;
      const std::lock_guard lock(mutex_);
      if (bad_indices_.insert(index).second && bad_items_.size() < kNamedBadItems) {
        bad_items_.push_back({dataset_->where(index), e.what()});
      }
      return false;
    }
  }

  // Evaluation: closes the gaps that skipped samples left.
  void drop_bad(Slot& slot) const {
    const size_t values = static_cast<size_t>(sample_values_);
    const size_t bytes = values * size_of(slot.batch.dtype);
    const size_t labels = info_.tokens ? values : 1;
    size_t kept = 0;
    for (size_t i = 0; i < slot.good.size(); ++i) {
      if (slot.good[i] == 0) continue;
      if (kept != i) {
        std::memcpy(slot.input.data() + kept * bytes, slot.input.data() + i * bytes, bytes);
        std::copy_n(slot.labels.begin() + static_cast<ptrdiff_t>(i * labels), labels,
                    slot.labels.begin() + static_cast<ptrdiff_t>(kept * labels));
        slot.samples[kept] = slot.samples[i];
      }
      ++kept;
    }
    slot.batch.num_samples = static_cast<int64_t>(kept);
    publish(slot);
  }

  const std::shared_ptr<const Dataset> dataset_;
  const DatasetInfo& info_;
  const LoaderTask task_;
  const bool shuffle_;
  const size_t prefetch_;
  const std::shared_ptr<SlotPool> pool_;
  const Augmenter augmenter_;
  const std::unique_ptr<DecodedCache> cache_;
  int64_t steps_ = 0;
  int64_t sample_values_ = 0;
  int max_threads_ = 1;

  mutable std::mutex mutex_;
  std::condition_variable room_;    // a worker may find something to do
  std::condition_variable filled_;  // the first batch may be ready
  // Guarded by mutex_ from here on. Of a queued slot, the samples of a claimed chunk belong to the
  // thread that claimed it.
  std::deque<std::unique_ptr<Slot>> queue_;
  int64_t epoch_ = 0, step_ = 0, part_ = 0;  // of the next batch to open
  int active_ = 1;
  bool stop_ = false;
  std::exception_ptr error_;
  double wait_seconds_ = 0, window_wait_ = 0;
  Clock::time_point window_start_ = Clock::now();
  int64_t batches_ = 0;
  std::set<int64_t> bad_indices_;
  std::vector<BadItem> bad_items_;
  std::vector<std::thread> threads_;  // grown by the consumer only
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, const spec::AugmentOptions& augment,
               const spec::LoaderOptions& options, LoaderTask task)
    : impl_(std::make_unique<Impl>(std::move(dataset), augment, options, task)) {}
Loader::~Loader() = default;

std::shared_ptr<const Batch> Loader::next() { return impl_->next(); }
int64_t Loader::steps_per_epoch() const { return impl_->steps(); }
Shape Loader::sample_shape() const { return impl_->sample_shape(); }
LoaderStats Loader::stats() const { return impl_->stats(); }

}  // namespace ductile::data
