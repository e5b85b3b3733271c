#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/data/encoded_dataset.h"
#include "ductile/data/formats.h"
#include "ductile/data/image_probe.h"

// ImageFolder: ROOT/CLASS/.../name.jpg. With ROOT/train and ROOT/val (or test) below the path each
// is its split; otherwise the path is the training set and test_path the other. Classes are the
// training set's folders in the order of their names, which test folders must be among.
namespace ductile::data {
namespace {

fs::path train_root(const spec::DataOptions& options) {
  const fs::path path = options.path;
  if (!fs::is_directory(path)) {
    fail(ErrorCode::not_found, "{}: no such folder; format \"folder\" reads FOLDER/CLASS/*.jpg",
         path.string());
  }
  return fs::is_directory(path / "train") ? path / "train" : path;
}

fs::path test_root(const spec::DataOptions& options) {
  if (!options.test_path.empty()) {
    if (fs::is_directory(options.test_path)) return options.test_path;
    fail(ErrorCode::not_found, "{}: no such folder (data.test_path)", options.test_path);
  }
  for (const char* name : {"val", "test"}) {
    if (fs::is_directory(fs::path(options.path) / name)) return fs::path(options.path) / name;
  }
  fail(ErrorCode::not_found, "{}: no val or test folder inside; set data.test_path", options.path);
}

std::vector<std::string> class_folders(const fs::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && !name.starts_with('.')) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
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
    const std::string path = where(index);
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail_errno(path, errno);
    struct stat info {};
    size_t done = 0;
    ssize_t got = ::fstat(fd, &info);
    if (got == 0) {
      scratch.resize(static_cast<size_t>(info.st_size));
      while (done < scratch.size() &&
             (got = ::read(fd, scratch.data() + done, scratch.size() - done)) > 0) {
        done += static_cast<size_t>(got);
      }
    }
    const int error = errno;
    ::close(fd);
    if (got < 0) fail_errno(path + ": read", error);
    scratch.resize(done);
    return {detect_image(scratch), scratch};
  }

  std::string where(int64_t index) const override {
    return (root_ / files_[static_cast<size_t>(index)]).string();
  }

 private:
  void list(const std::string& name, int32_t label) {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(
             root_ / name, fs::directory_options::follow_directory_symlink)) {
      if (entry.is_regular_file() && has_image_name(entry.path().filename().string())) {
        found.push_back(entry.path().lexically_relative(root_).string());
      }
    }
    std::sort(found.begin(), found.end());
    labels_.insert(labels_.end(), found.size(), label);
    files_.insert(files_.end(), std::make_move_iterator(found.begin()),
                  std::make_move_iterator(found.end()));
  }

  fs::path root_;
  std::vector<std::string> files_;  // relative to root_
};

}  // namespace

std::shared_ptr<const Dataset> open_folder(const spec::DataOptions& options, Split split) {
  return std::make_shared<FolderDataset>(options, split);
}

}  // namespace ductile::data
