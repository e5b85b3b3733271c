#include "ductile/ckpt/safetensors.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <tuple>
#include <unordered_set>
#include <utility>

#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/disk.h"

namespace ductile::ckpt {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr uint64_t kMaxHeader = uint64_t{32} << 20;
constexpr size_t kPiece = size_t{1} << 20;

std::string upper(std::string_view name) {
  std::string text(name);
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// A file under another name that takes its own at commit(), or vanishes.
class NewFile {
 public:
  explicit NewFile(const fs::path& path) : path_(path), temporary_(path) {
    temporary_ += ".tmp" + std::to_string(::getpid());
    const int fd = disk_.open_new(temporary_);
    check(fd);
    fd_ = Descriptor(fd);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (!done_) disk_.remove(temporary_);
  }

  void write(std::span<const std::byte> bytes) { check(disk_.write(fd_.get(), bytes)); }

  void commit() {
    check(disk_.sync(fd_.get()));
    check(disk_.rename(temporary_, path_));
    done_ = true;
    fsync_folder(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
  }

 private:
  void check(int result) const {
    if (result < 0) fail_errno(path_.string(), -result);
  }

  Disk& disk_ = real_disk();
  fs::path path_;
  fs::path temporary_;
  Descriptor fd_;
  bool done_ = false;
};

uint64_t read_u64(const std::byte* p) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<uint64_t>(p[i]);
  return value;
}

// Parses the header; a name given twice, which a parser would silently drop, is refused.
json parse_header(std::string_view text) {
  constexpr int kMaxDepth = 3;  // the object, a tensor, its shape
  if (!text.starts_with('{') || json_depth(text) > kMaxDepth) {
    fail(ErrorCode::data_loss, "the header is no object of tensors");
  }
  std::unordered_set<std::string> names;
  const json::parser_callback_t once = [&](int depth, json::parse_event_t event, json& value) {
    if (depth == 1 && event == json::parse_event_t::key &&
        !names.insert(value.get_ref<const std::string&>()).second) {
      fail(ErrorCode::data_loss, "two tensors are named '{}'", value.get<std::string>());
    }
    return true;
  };
  json header = parse_json(text, once);
  if (!header.is_object()) fail(ErrorCode::data_loss, "the header is not JSON");
  return header;
}

uint64_t size_value(const json& value, const std::string& name) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    fail(ErrorCode::data_loss, "tensor '{}': {} is no size", name, dump_json(value));
  }
  return value.get<uint64_t>();
}

TensorInfo parse_entry(const std::string& name, const json& entry) {
  const auto bad = [&](const char* what) {
    fail(ErrorCode::data_loss, "tensor '{}': no {}", name, what);
  };
  TensorInfo t;
  t.name = name;
  const auto dtype = entry.find("dtype");
  const auto shape = entry.find("shape");
  const auto offsets = entry.find("data_offsets");
  if (!entry.is_object() || dtype == entry.end() || !dtype->is_string()) bad("dtype");
  if (shape == entry.end() || !shape->is_array()) bad("shape");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2) bad("data_offsets");
  try {
    const auto& type = dtype->get_ref<const std::string&>();
    t.dtype = type == "BOOL" ? DType::u8 : dtype_from_string(type);  // a byte for each truth value
  } catch (Error& e) {
    e.with_context("tensor '" + name + "'");
    throw;
  }
  for (const json& d : *shape) t.shape.push_back(static_cast<int64_t>(size_value(d, name)));
  try {
    t.num_bytes = checked_num_bytes(name, t.dtype, t.shape);
  } catch (const Error& e) {
    throw Error(ErrorCode::data_loss, e.message());
  }
  const uint64_t begin = size_value((*offsets)[0], name);
  const uint64_t end = size_value((*offsets)[1], name);
  if (end < begin || end - begin != static_cast<uint64_t>(t.num_bytes)) {
    fail(ErrorCode::data_loss, "tensor '{}' lies at {} to {}; its shape says {} bytes", name, begin,
         end, t.num_bytes);
  }
  t.offset = static_cast<int64_t>(begin);
  return t;
}

}  // namespace

void write_safetensors(const fs::path& file, std::span<const TensorInfo> tensors,
                       const Metadata& metadata, const TensorReader& read) {
  // Wider elements first, so that all are aligned in a mapping of the file.
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tuple(size_of(tensors[b].dtype), tensors[a].name) <
           std::tuple(size_of(tensors[a].dtype), tensors[b].name);
  });
  json header = json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  int64_t end = 0;
  for (size_t i : order) {
    const TensorInfo& t = tensors[i];
    if (t.name == kMetadata) {
      fail(ErrorCode::invalid_argument, "a tensor cannot be named '{}' in safetensors", t.name);
    }
    header[t.name] = {{"dtype", upper(to_string(t.dtype))},
                      {"shape", t.shape},
                      {"data_offsets", {end, end + t.num_bytes}}};
    end += t.num_bytes;
  }
  std::string text = dump_json_exactly(header, "a name or metadata for " + file.string());
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length;
  for (int i = 0; i < 8; ++i) length.push_back(static_cast<char>(text.size() >> (8 * i)));

  NewFile out(file);
  out.write(std::as_bytes(std::span(length)));
  out.write(std::as_bytes(std::span(text)));
  std::vector<std::byte> piece;
  for (size_t i : order) {
    for (int64_t offset = 0; offset < tensors[i].num_bytes; offset += kPiece) {
      piece.resize(std::min(kPiece, static_cast<size_t>(tensors[i].num_bytes - offset)));
      read(i, offset, piece);
      out.write(piece);
    }
  }
  out.commit();
}

void write_safetensors(const fs::path& file, std::span<const TensorView> tensors,
                       const Metadata& metadata) {
  check_views(tensors);
  std::vector<TensorInfo> infos;
  for (const TensorView& t : tensors) {
    infos.push_back({t.name, t.dtype, t.shape, static_cast<int64_t>(t.bytes.size()), 0});
  }
  write_safetensors(file, infos, metadata,
                    [&](size_t index, int64_t offset, std::span<std::byte> into) {
                      std::memcpy(into.data(), tensors[index].bytes.data() + offset, into.size());
                    });
}

SafetensorsFile::SafetensorsFile(const fs::path& file) : mapped_(file) {
  try {
    parse();
  } catch (Error& e) {
    e.with_context(file.string());
    throw;
  }
}

void SafetensorsFile::parse() {
  const std::span<const std::byte> all = mapped_.bytes();
  if (all.size() < 8) fail(ErrorCode::data_loss, "no safetensors file: only {} bytes", all.size());
  const uint64_t length = read_u64(all.data());
  if (length > kMaxHeader || length > all.size() - 8) {
    fail(ErrorCode::data_loss,
         "the header would have {} bytes; the file has {}, at most {} are read", length, all.size(),
         kMaxHeader);
  }
  data_begin_ = 8 + static_cast<size_t>(length);
  const json header =
      parse_header({reinterpret_cast<const char*>(all.data()) + 8, static_cast<size_t>(length)});
  for (const auto& [name, entry] : header.items()) {
    if (name != kMetadata) {
      tensors_.push_back(parse_entry(name, entry));
      continue;
    }
    if (!entry.is_object()) fail(ErrorCode::data_loss, "the metadata are no object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) fail(ErrorCode::data_loss, "metadata '{}' is no string", key);
      metadata_[key] = value.get<std::string>();
    }
  }

  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tuple(a.offset, a.num_bytes, std::string_view(a.name)) <
           std::tuple(b.offset, b.num_bytes, std::string_view(b.name));
  });
  int64_t end = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorInfo& t = tensors_[i];
    if (t.offset != end) {
      fail(ErrorCode::data_loss, "tensor '{}' begins at {}; the one before it ends at {}", t.name,
           t.offset, end);
    }
    end += t.num_bytes;  // no overflow: both are below 2^62 until the check below fails
    if (static_cast<uint64_t>(end) > all.size() - data_begin_) {
      fail(ErrorCode::data_loss, "tensor '{}' ends at {}; the file has {} bytes of data", t.name,
           end, all.size() - data_begin_);
    }
    index_[t.name] = i;
  }
  if (static_cast<uint64_t>(end) != all.size() - data_begin_) {
    fail(ErrorCode::data_loss, "the file has {} bytes of data; its tensors {}",
         all.size() - data_begin_, end);
  }
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& tensor) const {
  return mapped_.bytes().subspan(data_begin_ + static_cast<size_t>(tensor.offset),
                                 static_cast<size_t>(tensor.num_bytes));
}

}  // namespace ductile::ckpt
