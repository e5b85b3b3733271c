#include "ductile/run/tensorboard.h"

#include <array>
#include <bit>

#include <fcntl.h>
#include <unistd.h>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"

namespace ductile::run {
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

uint32_t crc32c(std::string_view text) {
  return run::crc32c(std::as_bytes(std::span(text.data(), text.size())));
}

// Rotated and offset: a CRC of data that itself holds CRCs would otherwise be weak.
uint32_t masked(uint32_t crc) { return std::rotr(crc, 15) + 0xA282EAD8u; }

template <class T>
void put_little_endian(std::string& out, T value) {
  for (size_t i = 0; i < sizeof value; ++i) {
    out += static_cast<char>((value >> (8 * i)) & 0xFF);
  }
}

// Protocol-buffer wire format: a key (field * 8 + type), then the value.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, uint32_t field, WireType type) {
  put_varint(out, field << 3 | type);
}

void put_int(std::string& out, uint32_t field, int64_t value) {
  put_key(out, field, kVarint);
  put_varint(out, static_cast<uint64_t>(value));
}

void put_double(std::string& out, uint32_t field, double value) {
  put_key(out, field, kFixed64);
  put_little_endian(out, std::bit_cast<uint64_t>(value));
}

void put_float(std::string& out, uint32_t field, float value) {
  put_key(out, field, kFixed32);
  put_little_endian(out, std::bit_cast<uint32_t>(value));
}

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
//         SessionLog session_log = 7; }
std::string event_head(double wall, int64_t step) {
  std::string event;
  put_double(event, 1, wall);
  if (step != 0) put_int(event, 2, step);
  return event;
}

// Fields of an event of these messages.
constexpr uint32_t kFileVersion = 3;
constexpr uint32_t kSummary = 5;
constexpr uint32_t kSessionLog = 7;

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes) {
  uint32_t crc = ~0u;
  for (const std::byte b : bytes) {
    crc = kCrcTable[(crc ^ static_cast<uint8_t>(b)) & 0xFF] ^ (crc >> 8);
  }
  return ~crc;
}

TensorBoardWriter::TensorBoardWriter(const fs::path& folder, int64_t resume_after) {
  const double wall = wall_seconds();
  const std::string stem = fmt::format("events.out.tfevents.{:010d}.{}.{}",
                                       static_cast<int64_t>(wall), host_name(), ::getpid());
  std::string name = stem;
  // A run's folder that was made by hand, or has lost this one since, is no reason to lose the run.
  // Where the run itself is not to be seen, as where its disk is not mounted, nothing is made: the
  // folder of all runs would count as one that somebody made, in which they begin anew.
  std::error_code error;
  fs::create_directory(folder, error);
  for (int n = 1;; ++n) {
    path_ = folder / name;
    try {
      file_ = AppendFile(path_, O_WRONLY | O_CREAT | O_EXCL);
      break;
    } catch (const Error& taken) {
      if (taken.code() != ErrorCode::conflict) throw;
    }
    name = stem + "." + std::to_string(n);
  }
  std::string version = event_head(wall, 0);
  put_bytes(version, kFileVersion, "brain.Event:2");
  record(version);
  if (resume_after >= 0) {
    std::string session;
    put_int(session, 1, 1);  // status = START
    std::string event = event_head(wall, resume_after + 1);
    put_bytes(event, kSessionLog, session);
    record(event);
  }
}

void TensorBoardWriter::scalars(int64_t step, double wall, std::span<const Scalar> values) {
  // Summary { repeated Value value = 1; }  Value { string tag = 1; float simple_value = 2; ... }
  std::string summary;
  for (const Scalar& s : values) {
    std::string value;
    put_bytes(value, 1, s.tag);
    put_float(value, 2, static_cast<float>(s.value));
    put_bytes(summary, 1, value);
  }
  std::string event = event_head(wall, step);
  put_bytes(event, kSummary, summary);
  record(event);
}

void TensorBoardWriter::scalar(std::string_view tag, int64_t step, double value, double wall) {
  const Scalar one{tag, value};
  scalars(step, wall, std::span(&one, 1));
}

void TensorBoardWriter::text(std::string_view tag, int64_t step, std::string_view markdown,
                             double wall) {
  // Value { tag = 1; TensorProto tensor = 8 { dtype = 1 (DT_STRING = 7); tensor_shape = 2;
  //         string_val = 8; }  SummaryMetadata metadata = 9 { plugin_data = 1 { name = 1; } } }
  std::string tensor;
  put_int(tensor, 1, 7);
  put_bytes(tensor, 2, "");
  put_bytes(tensor, 8, markdown);
  std::string plugin;
  put_bytes(plugin, 1, "text");
  std::string metadata;
  put_bytes(metadata, 1, plugin);
  std::string value;
  put_bytes(value, 1, tag);
  put_bytes(value, 8, tensor);
  put_bytes(value, 9, metadata);
  std::string summary;
  put_bytes(summary, 1, value);
  std::string event = event_head(wall, step);
  put_bytes(event, kSummary, summary);
  record(event);
}

void TensorBoardWriter::record(std::string_view event) {
  std::string out;
  out.reserve(event.size() + 16);
  put_little_endian(out, static_cast<uint64_t>(event.size()));
  put_little_endian(out, masked(crc32c(out)));
  out += event;
  put_little_endian(out, masked(crc32c(event)));
  file_.append(out);
}

void TensorBoardWriter::sync() { file_.sync(); }

}  // namespace ductile::run
