#include <charconv>
#include <unordered_set>

#include <fmt/format.h>
#include <xxhash.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/ckpt/manifest_impl.h"

namespace ductile::ckpt {
namespace {

using nlohmann::json;

constexpr std::string_view kBegin = "{\"hash\":\"";
constexpr std::string_view kMiddle = "\",\"manifest\":";
constexpr std::string_view kEnd = "}\n";
constexpr std::string_view kFormat = "ductile-checkpoint";

[[noreturn]] void refuse(std::string why) { throw Error(ErrorCode::data_loss, std::move(why)); }

ChunkId hash_text(std::string_view text) {
  return hash_bytes(std::as_bytes(std::span(text.data(), text.size())));
}

// The text between the frame's two halves, once its hash has been found right.
std::string_view checked_body(std::string_view text) {
  constexpr size_t kHex = 32;
  const size_t frame = kBegin.size() + kHex + kMiddle.size() + kEnd.size();
  ChunkId expected;
  if (text.size() < frame || !text.starts_with(kBegin) || !text.ends_with(kEnd) ||
      text.substr(kBegin.size() + kHex, kMiddle.size()) != kMiddle ||
      !parse_chunk_id(text.substr(kBegin.size(), kHex), expected)) {
    refuse(fmt::format("the manifest is truncated or no manifest ({} bytes)", text.size()));
  }
  const std::string_view body = text.substr(frame - kEnd.size(), text.size() - frame);
  if (hash_text(body) != expected) refuse("the manifest was altered: its hash does not match");
  return body;
}

int64_t integer(const json& object, const char* key, int64_t low, int64_t high) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_integer()) {
    refuse(fmt::format("the manifest's '{}' is not an integer", key));
  }
  const bool too_big = it->is_number_unsigned() && it->get<uint64_t>() > uint64_t{INT64_MAX};
  const int64_t value = too_big ? INT64_MAX : it->get<int64_t>();
  if (too_big || value < low || value > high) {
    refuse(fmt::format("the manifest's '{}' is out of range", key));
  }
  return value;
}

const json& array(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) {
    refuse(fmt::format("the manifest's '{}' is not a list", key));
  }
  return *it;
}

const std::string& text_of(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_string()) {
    refuse(fmt::format("the manifest's '{}' is not a string", key));
  }
  return it->get_ref<const std::string&>();
}

TensorInfo parse_tensor(const json& entry) {
  if (!entry.is_object()) refuse("the manifest lists a tensor that is no object");
  TensorInfo t;
  t.name = text_of(entry, "name");
  t.offset = integer(entry, "offset", 0, INT64_MAX);
  for (const json& d : array(entry, "shape")) {
    if (!d.is_number_unsigned() || d.get<uint64_t>() > uint64_t{INT64_MAX}) {
      refuse(fmt::format("tensor '{}' has a dimension that is no size", t.name));
    }
    t.shape.push_back(d.get<int64_t>());
  }
  try {
    t.dtype = dtype_from_string(text_of(entry, "dtype"));
    t.num_bytes = checked_num_bytes(t.name, t.dtype, t.shape);
  } catch (const Error& e) {
    refuse(e.message());
  }
  return t;
}

ChunkRef parse_chunk(const json& entry) {
  ChunkRef chunk;
  if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() ||
      !entry[1].is_number_unsigned() ||
      !parse_chunk_id(entry[0].get_ref<const std::string&>(), chunk.id)) {
    refuse("the manifest lists a chunk that is not [hash, size]");
  }
  const uint64_t size = entry[1].get<uint64_t>();
  if (size == 0 || size > uint64_t{kMaxChunkBytes}) {
    refuse(fmt::format("chunk {} has the impossible size {}", chunk.id.hex(), size));
  }
  chunk.size = static_cast<int64_t>(size);
  return chunk;
}

}  // namespace

std::string ChunkId::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

ChunkId hash_bytes(std::span<const std::byte> bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return {h.high64, h.low64};
}

bool parse_chunk_id(std::string_view text, ChunkId& id) {
  if (text.size() != 32 || text.find_first_not_of("0123456789abcdef") != text.npos) return false;
  std::from_chars(text.data(), text.data() + 16, id.high, 16);
  std::from_chars(text.data() + 16, text.data() + 32, id.low, 16);
  return true;
}

std::string manifest_text(int64_t step, std::string_view state, std::span<const ChunkRef> chunks,
                          std::span<const TensorInfo> tensors) {
  std::string body = fmt::format("{{\"format\":\"{}\",\"version\":{},\"step\":{},\"state\":{},",
                                 kFormat, kFormatVersion, step, state);
  body += "\"chunks\":[";
  for (size_t i = 0; i < chunks.size(); ++i) {
    body += fmt::format("{}[\"{}\",{}]", i == 0 ? "" : ",", chunks[i].id.hex(), chunks[i].size);
  }
  body += "],\"tensors\":[";
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& t = tensors[i];
    if (i > 0) body += ',';
    body += dump_json_exactly({{"name", t.name},
                               {"dtype", std::string(to_string(t.dtype))},
                               {"shape", t.shape},
                               {"offset", t.offset}},
                              "the name of a tensor");
  }
  body += "]}";
  std::string text(kBegin);
  text += hash_text(body).hex();
  text += kMiddle;
  text += body;
  text += kEnd;
  return text;
}

Manifest parse_manifest(std::string_view text) {
  const std::string_view body = checked_body(text);
  json root = parse_json(body);
  if (!root.is_object() || text_of(root, "format") != kFormat) refuse("this is no manifest");
  const int64_t version = integer(root, "version", 1, INT64_MAX);
  if (version != kFormatVersion) {
    fail(ErrorCode::conflict,
         "the checkpoint has format version {}; this program knows {}: use a newer one", version,
         kFormatVersion);
  }

  Manifest m;
  m.step = integer(root, "step", 0, INT64_MAX);
  for (const json& entry : array(root, "chunks")) {
    m.chunks.push_back(parse_chunk(entry));
    m.total_bytes += m.chunks.back().size;  // < 2^30 times the entries of a text: no overflow
  }
  int64_t end = 0;
  std::unordered_set<std::string> names;
  for (const json& entry : array(root, "tensors")) {
    TensorInfo t = parse_tensor(entry);
    if (!names.insert(t.name).second) refuse(fmt::format("two tensors are named '{}'", t.name));
    if (t.offset != end || t.num_bytes > m.total_bytes - end) {
      refuse(fmt::format("tensor '{}' does not lie where the one before it ends", t.name));
    }
    end += t.num_bytes;
    m.tensors.push_back(std::move(t));
  }
  if (end != m.total_bytes) {
    refuse(fmt::format("the tensors have {} bytes, the chunks {}", end, m.total_bytes));
  }
  const auto state = root.find("state");
  if (state == root.end()) refuse("the manifest has no 'state'");
  m.state = std::move(*state);
  return m;
}

std::string manifest_name(int64_t step) { return fmt::format("step-{:012d}.json", step); }

bool parse_manifest_name(std::string_view name, int64_t& step) {
  constexpr std::string_view kPrefix = "step-";
  constexpr std::string_view kSuffix = ".json";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return false;
  if (name.size() <= kPrefix.size() + kSuffix.size()) return false;
  const char* end = name.data() + name.size() - kSuffix.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc() && stop == end && step >= 0 && manifest_name(step) == name;
}

}  // namespace ductile::ckpt
