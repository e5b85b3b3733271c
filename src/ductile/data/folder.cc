#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/paths.h"
#include "ductile/data/encoded_dataset.h"
#include "ductile/data/formats.h"
#include "ductile/data/image_probe.h"
#include "ductile/data/limits.h"

// ImageFolder: ROOT/CLASS/.../name.jpg. With ROOT/train and ROOT/val (or test) below the path each
// is its split; otherwise the path is the training set and test_path the other. Classes are the
// training set's folders in the order of their names, which test folders must be among.
namespace ductile::data {
namespace {

fs::path train_root(const spec::DataOptions& options) {
  const fs::path path = options.path;
  if (!is_folder(path)) {
    fail(ErrorCode::not_found, "{}: no such folder; format \"folder\" reads FOLDER/CLASS/*.jpg",
         path.string());
  }
  return is_folder(path / "train") ? path / "train" : path;
}

fs::path test_root(const spec::DataOptions& options) {
  if (!options.test_path.empty()) {
    if (is_folder(options.test_path)) return options.test_path;
    fail(ErrorCode::not_found, "{}: no such folder (data.test_path)", options.test_path);
  }
  for (const char* name : {"val", "test"}) {
    if (is_folder(fs::path(options.path) / name)) return fs::path(options.path) / name;
  }
  fail(ErrorCode::not_found, "{}: no val or test folder inside; set data.test_path", options.path);
}

std::vector<std::string> class_folders(const fs::path& root) {
  std::vector<std::string> names;
  for (const fs::path& path : list_folder(root)) {
    const std::string name = path.filename().string();
    if (!name.starts_with('.') && kind_of(path) == FileKind::folder) names.push_back(name);
  }
  if (names.empty()) {
    fail(ErrorCode::invalid_argument, "{}: no class folders; expected FOLDER/CLASS/*.jpg",
         root.string());
  }
  return names;
}

class FolderDataset final : public EncodedDataset {
 public:
  FolderDataset(const spec::DataOptions& options, Split split)
      : EncodedDataset(options, "folder"),
        root_(split == Split::train ? train_root(options) : test_root(options)) {
    info_.class_names = class_folders(train_root(options));
    info_.num_classes = static_cast<int64_t>(info_.class_names.size());
    for (const std::string& name : class_folders(root_)) {
      const auto at = std::lower_bound(info_.class_names.begin(), info_.class_names.end(), name);
      if (at == info_.class_names.end() || *at != name) {
        reject((root_ / name).string(), "this class is not in the training set");
        continue;
      }
      list(name, static_cast<int32_t>(at - info_.class_names.begin()));
    }
    finish(options, split, root_.string());
  }

  Sample read(int64_t index, std::vector<std::byte>& scratch) const override {
    read_regular_file(where(index), kMaxImageBytes, scratch);
    return {detect_image(scratch), scratch};
  }

  std::string where(int64_t index) const override {
    return (root_ / files_[static_cast<size_t>(index)]).string();
  }

 private:
  void list(const std::string& name, int32_t label) {
    std::vector<std::string> found;
    std::vector<fs::path> above;
    walk(root_ / name, above, found);
    std::sort(found.begin(), found.end());
    labels_.insert(labels_.end(), found.size(), label);
    files_.insert(files_.end(), std::make_move_iterator(found.begin()),
                  std::make_move_iterator(found.end()));
  }

  // Adds the images in and below a folder. `above`: the folder and those it lies in, links
  // resolved.
  void walk(const fs::path& folder, std::vector<fs::path>& above, std::vector<std::string>& found) {
    above.push_back(fs::canonical(folder));
    for (const fs::path& path : list_folder(folder)) {
      FileKind kind = FileKind::none;
      try {
        kind = kind_of(path);
      } catch (const Error& e) {
        // Links that lead to each other are bad data; other reasons may pass.
        if (e.code() != ErrorCode::invalid_argument) throw;
        reject(path.string(), "a loop of links");
        continue;
      }
      const bool image = has_image_name(path.filename().string());
      if (kind == FileKind::folder) {
        const fs::path real = fs::is_symlink(path) ? fs::canonical(path) : fs::path();
        const auto inside = [&](const fs::path& inner) {
          return std::mismatch(real.begin(), real.end(), inner.begin(), inner.end()).first ==
                 real.end();
        };
        if (!real.empty() && std::any_of(above.begin(), above.end(), inside)) {
          reject(path.string(), "a link that leads back to a folder which it lies in");
        } else {
          walk(path, above, found);
        }
      } else if (image && kind == FileKind::file) {
        found.push_back(path.lexically_relative(root_).string());
      } else if (image) {
        reject(path.string(), kind_text(path) + ", not a file");
      }
    }
    above.pop_back();
  }

  fs::path root_;
  std::vector<std::string> files_;  // relative to root_
};

}  // namespace

std::shared_ptr<const Dataset> open_folder(const spec::DataOptions& options, Split split) {
  return std::make_shared<FolderDataset>(options, split);
}

}  // namespace ductile::data
