#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ductile/spec/job.h"
#include "ductile/spec/sample_inputs.h"

// Indexed collections of samples, in any of the file formats.
//
// DataOptions::format chooses the reader:
//   digits    embedded; drawn in memory, needs no path (digits.h)
//   idx       MNIST's files, also gzipped: a folder with the usual names, or an images file
//   cifar10   the binary version: a folder with data_batch_1..5.bin, test_batch.bin
//   cifar100  the binary version: train.bin, test.bin
//   folder    CLASS/name.jpg|png; train/ and val|test/ below the path, or two paths
//   tar       the layout of folder inside tar files, or WebDataset shards with .cls members
//   records   our packed file of encoded or raw samples (records.h)
//   tokens    a flat file of u16 or u32 token numbers
//   synthetic several inputs for each sample, drawn in memory; needs no path (synthetic.cc)
namespace ductile::data {

enum class Split { train, test };

struct DatasetInfo {
  std::string format;
  bool tokens = false;
  int64_t size = 0;         // samples
  int64_t num_classes = 0;  // of both splits; vocabulary for tokens
  std::vector<std::string> class_names;
  int64_t channels = 0, height = 0, width = 0;  // height and width 0: sizes vary
  int64_t sequence_length = 0;                  // tokens per sample
  std::vector<double> mean, std;                // a channel, of values in [0, 1]
  // Of samples with several inputs, which are neither images nor tokens.
  std::vector<spec::SampleInput> inputs = {};

  bool images() const { return !tokens && inputs.empty(); }
};

enum class Encoding : uint8_t { pixels, jpeg, png, tokens16, tokens32, inputs };

// The stored form of one sample.
//   pixels    height x width x channels bytes, row-major, channels interleaved
//   jpeg, png the whole file
//   tokens16/32  sequence_length + 1 little-endian numbers
//   inputs    the inputs one after another as they are in memory, float or int64_t, then the label
//             as int64_t
struct Sample {
  Encoding encoding = Encoding::pixels;
  std::span<const std::byte> bytes;
  int64_t height = 0, width = 0, channels = 0;  // pixels only
};

// An item that could not be used: where it is ("file, offset 123") and why.
struct BadItem {
  std::string where;
  std::string what;
};

// The seam between formats and the loader. Immutable once opened: every method is const and may be
// called from any number of threads.
class Dataset {
 public:
  virtual ~Dataset() = default;

  const DatasetInfo& info() const { return info_; }
  // Class of sample `index` in [0, size); in [0, num_classes). 0 for tokens.
  virtual int64_t label(int64_t index) const = 0;
  // The sample's bytes: a view of memory that lives as long as the dataset, or of `scratch`.
  virtual Sample read(int64_t index, std::vector<std::byte>& scratch) const = 0;
  // File and, inside a larger file, the offset; for messages.
  virtual std::string where(int64_t index) const = 0;

  // Whether samples are decoded pixels in memory, so that a cache would gain nothing.
  virtual bool in_memory() const { return false; }

  // With on_bad_sample = "skip", unusable samples are skipped, counted and reported; they are not
  // fatal.
  bool skip_bad() const { return skip_bad_; }
  // The items that were skipped when the set was opened.
  const std::vector<BadItem>& bad_items() const { return bad_items_; }

 protected:
  // Throws data_loss "where: what", or, if bad samples are skipped, records the item.
  void reject(std::string where, std::string what);

  DatasetInfo info_;
  bool skip_bad_ = false;
  std::vector<BadItem> bad_items_;
};

// Opens one split. Throws not_found or invalid_argument (with what the format expects) or data_loss
// (file and offset of what is wrong).
std::shared_ptr<const Dataset> open_dataset(const spec::DataOptions& options, Split split);

// The limit that applies to the split (train_limit, test_limit), and `size` cut to it.
int64_t limited(const spec::DataOptions& options, Split split, int64_t size);

}  // namespace ductile::data
