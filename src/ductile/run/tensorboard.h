#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ductile/base/files.h"
#include "ductile/run/append_file.h"

// TensorBoard event files, written without TensorFlow. A record has a length, masked CRC32Cs and a
// protocol buffer (tensorflow/core/lib/io/record_writer, tensorflow/core/util/event.proto).
namespace ductile::run {

// CRC-32C (Castagnoli, polynomial 0x1EDC6F41, reflected), as in iSCSI (RFC 3720, appendix B.4).
uint32_t crc32c(std::span<const std::byte> bytes);

struct Scalar {
  std::string_view tag;
  double value;
};

// One event file `events.out.tfevents.<seconds>.<host>.<pid>[.n]`. Each writer has a new one;
// TensorBoard merges the files of a folder. One thread uses it. Nothing is buffered: what scalars()
// has written survives the process.
class TensorBoardWriter {
 public:
  // Makes the folder, and none that it lies in. Throws not_found where these are not there.
  // `resume_after`: TensorBoard forgets later steps in earlier files of the folder. It does so on a
  // SessionLog.START with the first step that is written again.
  explicit TensorBoardWriter(const fs::path& folder, int64_t resume_after = -1);

  // Writes all values of one step as one record. `wall` is in seconds since 1970. Throws
  // unavailable that names the file; the torn record is then removed.
  void scalars(int64_t step, double wall, std::span<const Scalar> values);
  void scalar(std::string_view tag, int64_t step, double value, double wall);
  // Shown as Markdown on the text page.
  void text(std::string_view tag, int64_t step, std::string_view markdown, double wall);
  void sync();

  const fs::path& path() const { return path_; }

 private:
  void record(std::string_view event);

  fs::path path_;
  AppendFile file_;
};

}  // namespace ductile::run
