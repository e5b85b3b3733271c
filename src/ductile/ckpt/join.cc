#include "ductile/ckpt/join.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/catalog_impl.h"
#include "ductile/ckpt/pending_impl.h"

namespace ductile::ckpt {
namespace {

void require(int result, const fs::path& path, const char* what) {
  if (result < 0) fail_errno(path.string() + ": " + what, -result);
}

// The manifest that the writer with this tag left.
Manifest part_of(const fs::path& folder, int64_t step, const std::string& tag) {
  const fs::path path = pending_path(folder, step, tag);
  try {
    return load_manifest({step, path});
  } catch (Error& e) {
    e.with_context(path.string());
    throw;
  }
}

// As a writer leaves its manifest: under its name only once it is durable.
void write_pending(Disk& disk, const fs::path& folder, int64_t step, std::string_view tag,
                   std::string_view text) {
  const fs::path intent = intent_path(folder, step, tag);
  const fs::path pending = pending_path(folder, step, tag);
  try {
    const int fd = disk.open_new(intent);
    require(fd, intent, "create");
    const Descriptor file(fd);
    require(disk.write(fd, std::as_bytes(std::span(text))), intent, "write");
    require(disk.sync(fd), intent, "fsync");
    require(disk.rename(intent, pending), pending, "rename");
  } catch (...) {
    disk.remove(intent);
    throw;
  }
  require(disk.sync_folder(pending.parent_path()), pending.parent_path(), "fsync");
}

// What a part's state says of its tensors that are pieces.
std::map<std::string, TensorPiece> pieces_in(const nlohmann::json& state, const fs::path& path) {
  std::map<std::string, TensorPiece> out;
  if (!state.is_object() || !state.contains("pieces")) return out;
  try {
    for (const nlohmann::json& p : state.at("pieces")) {
      const auto name = p.at("name").get<std::string>();
      out[name] = {name, p.at("of").get<std::string>(), p.at("shape").get<Shape>(),
                   p.at("begin").get<int64_t>()};
    }
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorCode::data_loss, "{}: its pieces of tensors are not described: {}", path.string(),
         e.what());
  }
  return out;
}

// Makes one list of tensors, and of the chunks that they tile, of those of parts.
class Joining {
 public:
  void add(Manifest part, const fs::path& path) {
    const std::map<std::string, TensorPiece> pieces = pieces_in(part.state, path);
    size_t next = 0;       // chunk
    int64_t position = 0;  // where it begins in the part
    int64_t taken = 0;     // bytes of pieces up to here
    const auto chunks_up_to = [&](int64_t end, std::vector<ChunkRef>& to) {
      for (; position < end && next < part.chunks.size(); ++next) {
        to.push_back(part.chunks[next]);
        position += part.chunks[next].size;
      }
      return position == end;
    };
    for (TensorInfo& tensor : part.tensors) {
      const auto piece = pieces.find(tensor.name);
      if (piece == pieces.end()) {
        require_new(tensor.name, path);
        tensor.offset += bytes_ - taken;
        tensors_.push_back(std::move(tensor));
        continue;
      }
      Piece own{tensor.num_bytes, {}};
      if (!chunks_up_to(tensor.offset, chunks_) ||
          !chunks_up_to(tensor.offset + tensor.num_bytes, own.chunks)) {
        fail(ErrorCode::conflict, "{}: the piece {} shares a chunk with another tensor",
             path.string(), tensor.name);
      }
      taken += tensor.num_bytes;
      add_piece(piece->second, tensor.dtype, std::move(own), path);
    }
    chunks_up_to(part.total_bytes, chunks_);
    bytes_ += part.total_bytes - taken;
  }

  // After all parts: the tensors that are in pieces.
  void join_pieces(const fs::path& folder) {
    for (auto& [name, whole] : wholes_) {
      require_new(name, folder);
      const int64_t size = checked_num_bytes(name, whole.dtype, whole.shape);
      int64_t end = 0;
      for (auto& [begin, piece] : whole.pieces) {
        if (begin != end) break;
        end += piece.bytes;
        chunks_.insert(chunks_.end(), piece.chunks.begin(), piece.chunks.end());
      }
      if (end != size) {
        fail(ErrorCode::conflict, "{}: the parts hold {} of the {} bytes of tensor {} in a row",
             folder.string(), end, size, name);
      }
      tensors_.push_back({name, whole.dtype, whole.shape, size, bytes_});
      bytes_ += size;
    }
  }

  const std::vector<ChunkRef>& chunks() const { return chunks_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  int64_t bytes() const { return bytes_; }

 private:
  struct Piece {
    int64_t bytes = 0;
    std::vector<ChunkRef> chunks;
  };
  struct Whole {
    DType dtype = DType::f32;
    Shape shape;
    std::map<int64_t, Piece> pieces;  // by first byte
  };

  void require_new(const std::string& name, const fs::path& path) {
    if (names_.insert(name).second) return;
    fail(ErrorCode::conflict, "{}: tensor {} is in another part of the checkpoint, too",
         path.string(), name);
  }

  void add_piece(const TensorPiece& piece, DType dtype, Piece own, const fs::path& path) {
    const auto [place, is_new] = wholes_.try_emplace(piece.of);
    Whole& whole = place->second;
    if (is_new) {
      whole.dtype = dtype;
      whole.shape = piece.shape;
    }
    const int64_t begin = piece.begin * static_cast<int64_t>(size_of(dtype));
    if (whole.dtype != dtype || whole.shape != piece.shape ||
        !whole.pieces.emplace(begin, std::move(own)).second) {
      fail(ErrorCode::conflict, "{}: another part holds other pieces of tensor {}, or the same one",
           path.string(), piece.of);
    }
  }

  std::vector<ChunkRef> chunks_;
  std::vector<TensorInfo> tensors_;
  std::unordered_set<std::string> names_;
  std::map<std::string, Whole> wholes_;
  int64_t bytes_ = 0;
};

}  // namespace

nlohmann::json state_of_part(std::span<const TensorPiece> pieces) {
  nlohmann::json out = nlohmann::json::object();
  for (const TensorPiece& p : pieces) {
    out["pieces"].push_back(
        {{"name", p.name}, {"of", p.of}, {"shape", p.shape}, {"begin", p.begin}});
  }
  return out;
}

bool parts_are_there(const fs::path& folder, int64_t step, std::span<const std::string> tags) {
  return std::ranges::all_of(tags, [&](const std::string& tag) {
    return kind_of(pending_path(folder, step, tag)) == FileKind::file;
  });
}

int64_t join_parts(const fs::path& folder, int64_t step, std::span<const std::string> tags,
                   int64_t num_tensors, std::string_view tag, const nlohmann::json& state,
                   Disk* disk) {
  check_tag(tag);
  Joining joining;
  for (const std::string& part_tag : tags) {
    joining.add(part_of(folder, step, part_tag), pending_path(folder, step, part_tag));
  }
  joining.join_pieces(folder);
  if (std::ssize(joining.tensors()) != num_tensors) {
    fail(ErrorCode::conflict, "{}: the parts of the checkpoint of step {} hold {} of {} tensors",
         folder.string(), step, joining.tensors().size(), num_tensors);
  }
  check_chunks(folder, joining.chunks());
  const std::string text = manifest_text(step, dump_json_exactly(state, "the checkpoint's state"),
                                         joining.chunks(), joining.tensors());
  write_pending(disk != nullptr ? *disk : real_disk(), folder, step, tag, text);
  return joining.bytes();
}

}  // namespace ductile::ckpt
