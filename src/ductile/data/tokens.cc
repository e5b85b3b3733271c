#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/data/formats.h"
#include "ductile/data/limits.h"

// Token numbers as they lie in memory: little-endian u16 or u32, nothing else in the file. Sample i
// is tokens [i * T, i * T + T]; the last of them is only predicted. Without a test_path the last
// tenth of the file is held out.
namespace ductile::data {
namespace {

template <class T>
uint64_t largest(std::span<const std::byte> bytes) {
  uint64_t most = 0;
  for (size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    T token;
    std::memcpy(&token, bytes.data() + i, sizeof(T));
    most = std::max<uint64_t>(most, token);
  }
  return most;
}

class TokenDataset final : public Dataset {
 public:
  TokenDataset(const spec::DataOptions& options, Split split)
      : wide_(options.tokens.type == "u32"), token_bytes_(wide_ ? 4 : 2) {
    skip_bad_ = options.on_bad_sample == "skip";
    const bool own_file = !options.test_path.empty();
    path_ = own_file && split == Split::test ? options.test_path : options.path;
    file_ = MappedFile(path_);
    int64_t count = tokens_in(file_, path_);
    if (!own_file) {
      const int64_t held_out = count / 10;
      if (split == Split::train) {
        count -= held_out;
      } else {
        first_ = count - held_out;
        count = held_out;
      }
    }
    info_.format = "tokens";
    info_.tokens = true;
    info_.sequence_length = options.tokens.sequence_length;
    info_.size = limited(options, split, (count - 1) / options.tokens.sequence_length);
    if (info_.size < 1) {
      fail(
          ErrorCode::invalid_argument,
          "{}: {} tokens for this split are not one sample of data.tokens.sequence_length = {} + 1",
          path_, count, options.tokens.sequence_length);
    }
    // The vocabulary spans both splits: a held-out token must have its embedding.
    uint64_t most = largest_in(file_);
    if (own_file) {
      const std::string other = split == Split::test ? options.path : options.test_path;
      const MappedFile file(other);
      tokens_in(file, other);
      most = std::max(most, largest_in(file));
    }
    if (most >= kMaxVocabulary) {
      fail(ErrorCode::data_loss,
           "{}: token {}; token numbers are below {}. Is data.tokens.type = \"{}\" right?",
           options.path, most, kMaxVocabulary, options.tokens.type);
    }
    info_.num_classes = static_cast<int64_t>(most) + 1;
  }

  int64_t label(int64_t) const override { return 0; }

  Sample read(int64_t index, std::vector<std::byte>&) const override {
    return {wide_ ? Encoding::tokens32 : Encoding::tokens16,
            file_.bytes().subspan(static_cast<size_t>(offset(index)),
                                  static_cast<size_t>((info_.sequence_length + 1) * token_bytes_))};
  }

  std::string where(int64_t index) const override {
    return fmt::format("{}, offset {}", path_, offset(index));
  }

 private:
  int64_t offset(int64_t index) const {
    return (first_ + index * info_.sequence_length) * token_bytes_;
  }

  int64_t tokens_in(const MappedFile& file, const std::string& path) {
    const int64_t bytes = static_cast<int64_t>(file.bytes().size());
    if (bytes % token_bytes_ != 0) {
      reject(fmt::format("{}, offset {}", path, bytes / token_bytes_ * token_bytes_),
             fmt::format("{} bytes are no whole number of {}-byte tokens; see data.tokens.type",
                         bytes, token_bytes_));
    }
    return bytes / token_bytes_;
  }

  uint64_t largest_in(const MappedFile& file) const {
    return wide_ ? largest<uint32_t>(file.bytes()) : largest<uint16_t>(file.bytes());
  }

  bool wide_;
  int64_t token_bytes_;
  std::string path_;
  MappedFile file_;
  int64_t first_ = 0;  // token where the split begins
};

}  // namespace

std::shared_ptr<const Dataset> open_tokens(const spec::DataOptions& options, Split split) {
  return std::make_shared<TokenDataset>(options, split);
}

}  // namespace ductile::data
