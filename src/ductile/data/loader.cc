#include "ductile/data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "ductile/base/aligned_array.h"
#include "ductile/base/error.h"
#include "ductile/data/augment.h"
#include "ductile/data/cursor.h"
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

  bool fetched() const { return batch.first < 0; }
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

// The batch, whose memory goes back to the pool with its last reference.
std::shared_ptr<const Batch> hand_out(std::unique_ptr<Slot> slot, std::shared_ptr<SlotPool> pool) {
  const Batch* batch = &slot->batch;
  return {batch, [pool = std::move(pool), raw = slot.release()](const Batch*) {
            pool->give(std::unique_ptr<Slot>(raw));
          }};
}

void check_divides(int64_t batch_size, int64_t parts) {
  if (batch_size < 1 || parts < 1 || batch_size % parts != 0) {
    fail(ErrorCode::invalid_argument,
         "train.batch_size = {} must be a positive multiple of train.virtual_ranks = {}",
         batch_size, parts);
  }
}

void check_parts(const LoaderTask& task) {
  if (task.first_part < 0 || task.num_parts < 1 || task.first_part + task.num_parts > task.parts) {
    fail(ErrorCode::invalid_argument, "parts {}..{} of {}", task.first_part,
         task.first_part + task.num_parts - 1, task.parts);
  }
}

// Errors of samples begin with the place, which is told apart.
BadItem item_of(std::string where, std::string_view what) {
  const std::string begin = where + ": ";
  while (what.starts_with(begin)) what.remove_prefix(begin.size());
  return {std::move(where), std::string(what)};
}

Augmenter make_augmenter(const spec::AugmentOptions& options, DatasetInfo info,
                         const LoaderTask& task) {
  if (task.height > 0) {
    info.height = task.height;
    info.width = task.width;
  }
  return {resolve_augment(options, info), info, task.training, task.seed};
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
        stream_pool_(std::make_shared<SlotPool>()),
        fetch_pool_(std::make_shared<SlotPool>()),
        augmenter_(make_augmenter(augment, info_, task)),
        cache_(DecodedCache::make(*dataset_, options.cache_mb << 20)) {
    check_parts(task);
    sample_values_ = num_elements(sample_shape());
    batch_size_ = task.batch_size;
    step_ = step_at(task.start, task.batch_size);
    part_ = task.first_part;

    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    max_threads_ = options.threads > 0 ? static_cast<int>(options.threads) : cores;
    active_ = options.threads > 0 ? max_threads_ : 1;
    threads_.reserve(static_cast<size_t>(max_threads_));
    const int wanted = active_;
    for (active_ = 0; active_ < wanted && add_thread();) ++active_;
    if (active_ == 0)
      fail(
          ErrorCode::unavailable,
          "no thread can be started that reads the data; the machine's or the container's limit of "
          "processes is reached");
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
      wait_until([&] { return at_end_locked() || front_ready(); }, lock);
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
    count_batch();
    return hand_out(std::move(slot), stream_pool_);
  }

  std::shared_ptr<const Batch> fetch(std::span<const int64_t> indices, int64_t epoch) {
    if (epoch < 0) {
      fail(ErrorCode::invalid_argument, "a batch of epoch {}; epochs count from 0", epoch);
    }
    for (const int64_t index : indices) {
      if (index < 0 || index >= info_.size) {
        fail(ErrorCode::invalid_argument, "there is no sample {}: the {} set has {}, from 0 on",
             index, task_.training ? "training" : "held-out", info_.size);
      }
    }
    auto slot = fetch_pool_->take();
    slot->batch.epoch = epoch;
    slot->batch.first = slot->batch.next_cursor = -1;
    slot->batch.part = 0;
    prepare(*slot, static_cast<int64_t>(indices.size()));
    std::ranges::copy(indices, slot->samples.begin());

    std::unique_lock lock(mutex_);
    fetching_ = slot.get();
    room_.notify_all();
    wait_until([&] { return slot->ready(); }, lock);
    fetching_ = nullptr;
    if (slot->error) std::rethrow_exception(slot->error);
    if (!task_.training) drop_bad(*slot);
    count_batch();
    return hand_out(std::move(slot), fetch_pool_);
  }

  std::vector<int64_t> indices_of(int64_t epoch, int64_t first, int64_t count) const {
    if (epoch < 0 || first < 0 || count < 0 || count > info_.size - first) {
      fail(ErrorCode::invalid_argument,
           "there are no {} samples from position {} on in epoch {}; an epoch has {}", count, first,
           epoch, info_.size);
    }
    const Permutation order = order_of(epoch);
    std::vector<int64_t> indices(static_cast<size_t>(count));
    for (int64_t& index : indices) index = index_at(order, first++);
    return indices;
  }

  void restart(int64_t cursor, int64_t batch_size) {
    const StepSamples step = step_at(cursor, batch_size);
    std::unique_lock lock(mutex_);
    if (batch_size == batch_size_ && comes_next(step)) return;
    const auto discarded = std::exchange(queue_, {});
    batch_size_ = batch_size;
    step_ = step;
    part_ = task_.first_part;
    error_ = nullptr;
    cold_ = true;
    room_.notify_all();
    for (const auto& slot : discarded) slot->next_sample = slot->batch.num_samples;
    filled_.wait(lock, [&] {
      return std::ranges::all_of(discarded, [](const auto& slot) { return slot->ready(); });
    });
  }

  Shape sample_shape() const {
    if (!info_.inputs.empty()) return {info_.inputs.front().length};
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
  bool at_end_locked() const { return queue_.empty() && all_opened(); }
  bool all_opened() const { return !task_.training && step_.first >= info_.size; }

  // What a step at `cursor` takes; throws invalid_argument where there is none.
  StepSamples step_at(int64_t cursor, int64_t batch_size) const {
    check_divides(batch_size, task_.parts);
    if (task_.training) return samples_of_step(cursor, batch_size, info_.size);
    if (cursor < 0) fail(ErrorCode::invalid_argument, "evaluation from sample {} on", cursor);
    const int64_t first = std::min(cursor, info_.size);
    return {0, first, first + std::min(batch_size, info_.size - first)};
  }

  // The next batch to be handed out is the first part of this step.
  bool comes_next(const StepSamples& step) const {
    if (error_) return false;
    if (queue_.empty()) return part_ == task_.first_part && step_ == step;
    const Batch& b = queue_.front()->batch;
    return b.part == task_.first_part && b.epoch == step.epoch &&
           b.first == step.first + b.part * (batch_size_ / task_.parts);
  }

  template <class Done>
  void wait_until(const Done& done, std::unique_lock<std::mutex>& lock) {
    if (done()) return;
    const auto start = Clock::now();
    filled_.wait(lock, done);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    wait_seconds_ += seconds;
    if (!cold_) window_wait_ += seconds;
  }

  void count_batch() {
    ++batches_;
    cold_ = false;
    maybe_add_thread();
  }

  // False: the system gives no more. Those that there are do the work, and the bytes are the same.
  bool add_thread() try {
    threads_.emplace_back([this] { work(); });
    return true;
  } catch (const std::system_error&) {
    return false;
  }

  // Growth by measurement: the consumer waiting for a noticeable share of its time is the one sign
  // that another thread would help.
  void maybe_add_thread() {
    if (batches_ % kWindow != 0) return;
    const auto now = Clock::now();
    const double elapsed = std::chrono::duration<double>(now - window_start_).count();
    if (window_wait_ > kWaitShare * elapsed && active_ < max_threads_) {
      if (add_thread()) {
        ++active_;
      } else {
        max_threads_ = active_;
      }
    }
    window_start_ = now;
    window_wait_ = 0;
  }

  // A batch with samples to claim: the one that the consumer waits for, or one of the queue; opens
  // the next one where there is room.
  Slot* claimable() {
    if (fetching_ != nullptr && !fetching_->all_claimed()) return fetching_;
    for (const auto& slot : queue_) {
      if (!slot->all_claimed()) return slot.get();
    }
    if (queue_.size() >= prefetch_ || all_opened()) return nullptr;
    queue_.push_back(open_slot());
    return queue_.back().get();
  }

  std::unique_ptr<Slot> open_slot() {
    auto slot = stream_pool_->take();
    const int64_t per_part = batch_size_ / task_.parts;
    Batch& b = slot->batch;
    b.epoch = step_.epoch;
    b.first = step_.first + part_ * per_part;
    b.next_cursor = step_.next;
    b.part = part_;
    try {
      prepare(*slot, std::clamp<int64_t>(info_.size - b.first, 0, per_part));
    } catch (...) {  // no memory, which next() tells
      b.num_samples = slot->next_sample = slot->open_chunks = 0;
      slot->error = std::current_exception();
    }
    if (++part_ == task_.first_part + task_.num_parts) {
      part_ = task_.first_part;
      step_ = step_at(step_.next, batch_size_);
    }
    return slot;
  }

  // Makes the slot ready to be filled with `count` samples.
  void prepare(Slot& slot, int64_t count) const {
    Batch& b = slot.batch;
    b.num_samples = count;
    b.channels_last = task_.channels_last && info_.images();
    const bool numbers = info_.inputs.empty() ? info_.tokens : info_.inputs.front().is_numbers();
    b.dtype = numbers ? DType::i64 : DType::f32;
    if (info_.inputs.empty()) {
      slot.input.need(count * sample_values_ * static_cast<int64_t>(size_of(b.dtype)));
    } else {
      slot.input.need(place_inputs(count, nullptr, b.inputs));
      place_inputs(count, slot.input.data(), b.inputs);
    }
    b.input = slot.input.data();
    const auto n = static_cast<size_t>(count);
    slot.labels.resize(n * static_cast<size_t>(info_.tokens ? sample_values_ : 1));
    slot.samples.resize(n);
    slot.good.assign(n, 1);
    slot.next_sample = 0;
    slot.open_chunks = 0;
    slot.error = nullptr;
    publish(slot);
  }

  // Lays the inputs of `count` samples out from `begin` on, each on a border of 64 bytes. Returns
  // the bytes of all of them.
  int64_t place_inputs(int64_t count, const std::byte* begin,
                       std::vector<BatchInput>& inputs) const {
    inputs.clear();
    int64_t at = 0;
    for (const spec::SampleInput& input : info_.inputs) {
      const DType dtype = input.is_numbers() ? DType::i64 : DType::f32;
      inputs.push_back({dtype, {count, input.length}, begin == nullptr ? nullptr : begin + at});
      at += count * input.length * static_cast<int64_t>(size_of(dtype));
      at = (at + 63) / 64 * 64;
    }
    return at;
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
    const Permutation order = order_of(b.epoch);
    for (int64_t i = begin; i < end; ++i) {
      auto index = slot.fetched() ? static_cast<int64_t>(slot.samples[static_cast<size_t>(i)])
                                  : index_at(order, b.first + i);
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

  Permutation order_of(int64_t epoch) const {
    return {task_.seed, static_cast<uint64_t>(epoch), info_.size};
  }
  int64_t index_at(const Permutation& order, int64_t position) const {
    return shuffle_ ? order[position] : position;
  }

  // False for a bad sample that is to be skipped.
  bool try_sample(SampleWriter& writer, Slot& slot, int64_t i, int64_t index) {
    const size_t at = static_cast<size_t>(i), values = static_cast<size_t>(sample_values_);
    slot.samples[at] = static_cast<uint64_t>(index);
    try {
      if (!info_.inputs.empty()) {
        write_inputs(writer, slot, at, index);
      } else if (info_.tokens) {
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
        bad_items_.push_back(item_of(dataset_->where(index), e.what()));
      }
      return false;
    }
  }

  static void write_inputs(SampleWriter& writer, Slot& slot, size_t at, int64_t index) {
    std::span<const std::byte> bytes = writer.read_inputs(index);
    for (const BatchInput& input : slot.batch.inputs) {
      const size_t size = static_cast<size_t>(input.shape[1]) * size_of(input.dtype);
      std::memcpy(slot.input.data() + (input.data - slot.batch.input) + at * size, bytes.data(),
                  size);
      bytes = bytes.subspan(size);
    }
    std::memcpy(&slot.labels[at], bytes.data(), sizeof(int64_t));
  }

  // Evaluation: closes the gaps that skipped samples left.
  void drop_bad(Slot& slot) const {
    const size_t values = static_cast<size_t>(sample_values_);
    const size_t bytes = values * size_of(slot.batch.dtype);
    const size_t labels = info_.tokens ? values : 1;
    size_t kept = 0;
    for (size_t i = 0; i < slot.good.size(); ++i) {
      if (slot.good[i] == 0) continue;
      DUCTILE_CHECK(kept == i || info_.inputs.empty(), "a sample that is drawn cannot be bad");
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
  // Apart, since a fetched batch may be far larger than those of the stream.
  const std::shared_ptr<SlotPool> stream_pool_, fetch_pool_;
  const Augmenter augmenter_;
  const std::unique_ptr<DecodedCache> cache_;
  int64_t sample_values_ = 0;
  int max_threads_ = 1;

  mutable std::mutex mutex_;
  std::condition_variable room_;    // a worker may find something to do
  std::condition_variable filled_;  // what the consumer waits for may be ready
  // Guarded by mutex_ from here on. Of a queued slot, the samples of a claimed chunk belong to the
  // thread that claimed it.
  std::deque<std::unique_ptr<Slot>> queue_;
  Slot* fetching_ = nullptr;  // the consumer's
  int64_t batch_size_ = 1;
  StepSamples step_;  // of the next batch to open
  int64_t part_ = 0;
  int active_ = 1;
  bool stop_ = false;
  std::exception_ptr error_;
  bool cold_ = true;  // the first batch is always waited for
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
std::shared_ptr<const Batch> Loader::fetch(std::span<const int64_t> indices, int64_t epoch) {
  return impl_->fetch(indices, epoch);
}
std::vector<int64_t> Loader::indices_of(int64_t epoch, int64_t first, int64_t count) const {
  return impl_->indices_of(epoch, first, count);
}
void Loader::restart(int64_t cursor, int64_t batch_size) { impl_->restart(cursor, batch_size); }
Shape Loader::sample_shape() const { return impl_->sample_shape(); }
LoaderStats Loader::stats() const { return impl_->stats(); }

}  // namespace ductile::data
