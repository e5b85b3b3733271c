#include "ductile/data/inspect.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "ductile/base/error.h"
#include "ductile/base/interruption.h"
#include "ductile/base/json_value.h"
#include "ductile/data/jpeg.h"
#include "ductile/data/png.h"

namespace ductile::data {
namespace {

constexpr std::array<std::string_view, 6> kEncodingNames = {"pixels", "jpeg", "png",
                                                            "u16",    "u32",  "inputs"};
constexpr int64_t kMaxChannels = 4;

// What one thread has seen; sums are integers, so that the total does not depend on who saw what.
struct Tally {
  std::vector<int64_t> class_counts;
  std::array<int64_t, kEncodingNames.size()> encodings{};
  std::array<uint64_t, kMaxChannels> sum{}, squares{};
  uint64_t pixels = 0;
  int64_t good = 0, bytes = 0;
  int64_t min_height = INT64_MAX, max_height = 0, min_width = INT64_MAX, max_width = 0;
  std::vector<std::pair<int64_t, BadItem>> bad;
};

class Reader {
 public:
  explicit Reader(const Dataset& dataset) : dataset_(dataset) {
    tally.class_counts.resize(
        dataset.info().tokens ? 0 : static_cast<size_t>(dataset.info().num_classes));
  }

  void look(int64_t index) {
    try {
      const Sample sample = dataset_.read(index, scratch_);
      ++tally.encodings[static_cast<size_t>(sample.encoding)];
      if (!dataset_.info().tokens) {
        if (dataset_.info().images()) add(decode(sample));
        ++tally.class_counts[static_cast<size_t>(dataset_.label(index))];
      }
      tally.bytes += static_cast<int64_t>(sample.bytes.size());
      ++tally.good;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::data_loss) throw;  // it cannot be read now, which is no damage
      tally.bad.push_back({index, {dataset_.where(index), e.what()}});
    }
  }

  Tally tally;

 private:
  ImageView decode(const Sample& sample) {
    if (sample.encoding == Encoding::jpeg) {
      jpeg_.open(sample.bytes);
      return jpeg_.decode_rgb(rgb_);
    }
    if (sample.encoding == Encoding::png) return decode_png(sample.bytes, rgb_);
    return {reinterpret_cast<const uint8_t*>(sample.bytes.data()),
            sample.height,
            sample.width,
            sample.channels,
            sample.channels,
            0};
  }

  void add(const ImageView& image) {
    tally.min_height = std::min(tally.min_height, image.height);
    tally.max_height = std::max(tally.max_height, image.height);
    tally.min_width = std::min(tally.min_width, image.width);
    tally.max_width = std::max(tally.max_width, image.width);
    const size_t channels = static_cast<size_t>(image.channels);
    const size_t values = static_cast<size_t>(image.height * image.width) * channels;
    for (size_t c = 0; c < channels; ++c) {
      uint64_t sum = 0, squares = 0;
      for (size_t i = c; i < values; i += channels) {
        const uint64_t v = image.data[i];
        sum += v;
        squares += v * v;
      }
      tally.sum[c] += sum;
      tally.squares[c] += squares;
    }
    tally.pixels += static_cast<uint64_t>(image.height * image.width);
  }

  const Dataset& dataset_;
  JpegDecoder jpeg_;
  std::vector<std::byte> scratch_;
  std::vector<uint8_t> rgb_;
};

void merge(Tally& into, const Tally& from) {
  for (size_t c = 0; c < from.class_counts.size(); ++c) {
    into.class_counts[c] += from.class_counts[c];
  }
  for (size_t e = 0; e < from.encodings.size(); ++e) into.encodings[e] += from.encodings[e];
  for (size_t c = 0; c < kMaxChannels; ++c) {
    into.sum[c] += from.sum[c];
    into.squares[c] += from.squares[c];
  }
  into.pixels += from.pixels;
  into.good += from.good;
  into.bytes += from.bytes;
  into.min_height = std::min(into.min_height, from.min_height);
  into.max_height = std::max(into.max_height, from.max_height);
  into.min_width = std::min(into.min_width, from.min_width);
  into.max_width = std::max(into.max_width, from.max_width);
  into.bad.insert(into.bad.end(), from.bad.begin(), from.bad.end());
}

}  // namespace

InspectResult inspect(const spec::DataOptions& options, Split split) {
  spec::DataOptions lenient = options;
  lenient.on_bad_sample = "skip";
  const auto dataset = open_dataset(lenient, split);
  InspectResult result;
  result.info = dataset->info();
  result.split = split;

  constexpr int64_t kChunk = 64;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  Tally total = Reader(*dataset).tally;
  std::exception_ptr trouble;
  const auto work = [&] {
    try {
      Reader reader(*dataset);
      for (int64_t begin; (begin = next.fetch_add(kChunk)) < result.info.size;) {
        const int64_t end = std::min(begin + kChunk, result.info.size);
        for (int64_t i = begin; i < end; ++i) {
          ask_whether_wanted();
          reader.look(i);
        }
      }
      const std::lock_guard lock(mutex);
      merge(total, reader.tally);
    } catch (...) {
      next = result.info.size;  // nothing more is wanted of the others
      const std::lock_guard lock(mutex);
      if (!trouble) trouble = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    try {
      for (unsigned t = 1; t < std::thread::hardware_concurrency(); ++t) helpers.emplace_back(work);
    } catch (const std::system_error&) {  // those that there are do the work
    }
    work();
  }
  if (trouble) std::rethrow_exception(trouble);

  result.class_counts = total.class_counts;
  result.good = total.good;
  result.stored_bytes = total.bytes;
  if (total.pixels > 0) {
    result.min_height = total.min_height;
    result.max_height = total.max_height;
    result.min_width = total.min_width;
    result.max_width = total.max_width;
    for (size_t c = 0; c < result.info.mean.size(); ++c) {
      const double n = static_cast<double>(total.pixels);
      const double mean = static_cast<double>(total.sum[c]) / n;
      const double variance = static_cast<double>(total.squares[c]) / n - mean * mean;
      result.info.mean[c] = mean / 255;
      result.info.std[c] = std::sqrt(std::max(0.0, variance)) / 255;
    }
  }
  for (size_t e = 0; e < kEncodingNames.size(); ++e) {
    if (total.encodings[e] > 0) {
      result.encodings.emplace_back(kEncodingNames[e], total.encodings[e]);
    }
  }
  result.bad = dataset->bad_items();
  std::sort(total.bad.begin(), total.bad.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [index, item] : total.bad) result.bad.push_back(std::move(item));
  return result;
}

nlohmann::json to_json(const InspectResult& r) {
  using nlohmann::json;
  json out = {{"format", r.info.format}, {"split", r.split == Split::train ? "train" : "test"},
              {"samples", r.good},       {"num_classes", r.info.num_classes},
              {"bytes", r.stored_bytes}, {"bad_count", r.bad.size()}};
  out["encodings"] = json::object();
  for (const auto& [name, count] : r.encodings) out["encodings"][name] = count;
  out["bad"] = json::array();
  for (const BadItem& b : r.bad) out["bad"].push_back({{"where", b.where}, {"what", b.what}});
  if (r.info.tokens) {
    out["sequence_length"] = r.info.sequence_length;
    return out;
  }
  out["classes"] = json::array();
  for (size_t c = 0; c < r.class_counts.size(); ++c) {
    out["classes"].push_back({{"name", r.info.class_names[c]}, {"count", r.class_counts[c]}});
  }
  if (!r.info.images()) {
    out["inputs"] = spec::to_texts(r.info.inputs);
    return out;
  }
  out["shape"] = {{"channels", r.info.channels},
                  {"min_height", r.min_height},
                  {"max_height", r.max_height},
                  {"min_width", r.min_width},
                  {"max_width", r.max_width}};
  out["mean"] = r.info.mean;
  out["std"] = r.info.std;
  return out;
}

}  // namespace ductile::data
