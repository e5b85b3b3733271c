#include "ductile/data/records.h"

#include <cerrno>
#include <cstring>

#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/paths.h"
#include "ductile/data/encoded_dataset.h"
#include "ductile/data/formats.h"
#include "ductile/data/limits.h"

namespace ductile::data {
namespace {

constexpr uint64_t kMaxRecordSide = 1 << 20;

template <class T>
T get(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

fs::path find_file(const spec::DataOptions& options, Split split) {
  const bool test = split == Split::test;
  const fs::path path = test && !options.test_path.empty() ? options.test_path : options.path;
  if (is_folder(path)) {
    for (const char* name : {"train.records", "val.records", "test.records"}) {
      if (test == (std::string_view(name) == "train.records")) continue;
      if (is_file(path / name)) return path / name;
    }
    fail(ErrorCode::not_found, "{}: no {} in this folder", path.string(),
         test ? "val.records or test.records" : "train.records");
  }
  if (kind_of(path) == FileKind::none)
    fail(ErrorCode::not_found, "{}: no such file or folder", path.string());
  if (test && options.test_path.empty()) {
    fail(ErrorCode::not_found, "{}: one file is one split; set data.test_path", path.string());
  }
  return path;
}

class RecordsDataset final : public EncodedDataset {
 public:
  RecordsDataset(const spec::DataOptions& options, Split split)
      : EncodedDataset(options, "records"), path_(find_file(options, split)), file_(path_) {
    const auto bytes = file_.bytes();
    const uint64_t total = bytes.size();
    if (total < kRecordsHeader || std::memcmp(bytes.data(), kRecordsMagic, 8) != 0) {
      fail(ErrorCode::data_loss, "{}, offset 0: does not start with {} as a records file does",
           path_.string(), kRecordsMagic);
    }
    const auto count = get<uint64_t>(bytes, 8), index = get<uint64_t>(bytes, 16),
               names = get<uint64_t>(bytes, 24);
    if (index < kRecordsHeader || index > total || names > total || names < index ||
        (names - index) % kRecordsEntry != 0 || (names - index) / kRecordsEntry != count) {
      fail(ErrorCode::data_loss,
           "{}, offset 8: {} samples, index at {} and names at {} do not fit a file of {} bytes; "
           "truncated?",
           path_.string(), count, index, names, total);
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + names, total - names);
    for (size_t at = 0; at < text.size();) {
      if (static_cast<int64_t>(info_.class_names.size()) == kMaxClasses) {
        fail(ErrorCode::data_loss, "{}, offset {}: more than {} classes", path_.string(),
             names + at, kMaxClasses);
      }
      const size_t end = std::min(text.find('\n', at), text.size());
      info_.class_names.emplace_back(text.substr(at, end - at));
      at = end + 1;
    }
    info_.num_classes = static_cast<int64_t>(info_.class_names.size());
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t entry = index + i * kRecordsEntry;
      const auto offset = get<uint64_t>(bytes, entry), size = get<uint64_t>(bytes, entry + 8);
      const auto label = get<uint32_t>(bytes, entry + 16),
                 encoding = get<uint32_t>(bytes, entry + 20);
      const uint64_t height = get<uint32_t>(bytes, entry + 24),
                     width = get<uint32_t>(bytes, entry + 28);
      const auto bad = [&](std::string what) {
        reject(fmt::format("{}, offset {}", path_.string(), entry), std::move(what));
      };
      if (offset < kRecordsHeader || offset > index || size > index - offset) {
        bad(fmt::format("a sample at {} of {} bytes lies outside the data", offset, size));
      } else if (label >= info_.class_names.size()) {
        bad(fmt::format("label {} is not below {}", label, info_.num_classes));
      } else if (encoding > 2) {
        bad(fmt::format("encoding {} is not known", encoding));
      } else if (encoding == 0 && (height == 0 || width == 0 || height > kMaxRecordSide ||
                                   width > kMaxRecordSide || size != height * width * 3)) {
        bad(fmt::format("{} bytes for {} x {} raw pixels", size, height, width));
      } else {
        labels_.push_back(static_cast<int32_t>(label));
        entries_.push_back(entry);
      }
    }
    finish(options, split, path_.string());
  }

  Sample read(int64_t index, std::vector<std::byte>&) const override {
    const auto bytes = file_.bytes();
    const uint64_t entry = entries_[static_cast<size_t>(index)];
    Sample sample;
    sample.bytes = bytes.subspan(get<uint64_t>(bytes, entry), get<uint64_t>(bytes, entry + 8));
    const auto encoding = get<uint32_t>(bytes, entry + 20);
    sample.encoding = static_cast<Encoding>(encoding);
    if (sample.encoding == Encoding::pixels) {
      sample.height = get<uint32_t>(bytes, entry + 24);
      sample.width = get<uint32_t>(bytes, entry + 28);
      sample.channels = 3;
    }
    return sample;
  }

  std::string where(int64_t index) const override {
    return fmt::format("{}, offset {}", path_.string(),
                       get<uint64_t>(file_.bytes(), entries_[static_cast<size_t>(index)]));
  }

 private:
  fs::path path_;
  MappedFile file_;
  std::vector<uint64_t> entries_;  // offsets in the index
};

static_assert(static_cast<uint32_t>(Encoding::pixels) == 0 &&
              static_cast<uint32_t>(Encoding::jpeg) == 1 &&
              static_cast<uint32_t>(Encoding::png) == 2);

}  // namespace

RecordsWriter::RecordsWriter(fs::path path, std::vector<std::string> class_names)
    : path_(std::move(path)), temporary_(path_), class_names_(std::move(class_names)) {
  temporary_ += ".tmp" + std::to_string(::getpid());
  file_ = std::fopen(temporary_.c_str(), "wb");
  if (file_ == nullptr) fail_errno(temporary_.string(), errno);
  const std::string header(kRecordsHeader, '\0');
  write(header.data(), header.size());
}

RecordsWriter::~RecordsWriter() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  ::unlink(temporary_.c_str());
}

void RecordsWriter::write(const void* data, size_t size) {
  if (size > 0 && std::fwrite(data, 1, size, file_) != size) {
    fail_errno(path_.string() + ": write", errno);
  }
}

void RecordsWriter::add(const Sample& sample, int64_t label) {
  write(sample.bytes.data(), sample.bytes.size());
  put<uint64_t>(index_, offset_);
  put<uint64_t>(index_, sample.bytes.size());
  put<uint32_t>(index_, static_cast<uint32_t>(label));
  put<uint32_t>(index_, static_cast<uint32_t>(sample.encoding));
  put<uint32_t>(index_, static_cast<uint32_t>(sample.height));
  put<uint32_t>(index_, static_cast<uint32_t>(sample.width));
  offset_ += sample.bytes.size();
}

void RecordsWriter::finish() {
  write(index_.data(), index_.size());
  std::string names;
  for (const std::string& name : class_names_) names += name + "\n";
  write(names.data(), names.size());
  std::string header(kRecordsMagic, 8);
  put<uint64_t>(header, index_.size() / kRecordsEntry);
  put<uint64_t>(header, offset_);
  put<uint64_t>(header, offset_ + index_.size());
  if (std::fseek(file_, 0, SEEK_SET) != 0) fail_errno(path_.string() + ": seek", errno);
  write(header.data(), header.size());
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) {
    fail_errno(path_.string() + ": write", errno);
  }
  std::fclose(std::exchange(file_, nullptr));
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail_errno(path_.string() + ": rename", errno);
  }
}

std::shared_ptr<const Dataset> open_records(const spec::DataOptions& options, Split split) {
  return std::make_shared<RecordsDataset>(options, split);
}

}  // namespace ductile::data
