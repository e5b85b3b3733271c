#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/paths.h"
#include "ductile/data/encoded_dataset.h"
#include "ductile/data/formats.h"
#include "ductile/data/image_probe.h"
#include "ductile/data/read_lines.h"
#include "ductile/data/tar_index.h"

// Images in tar archives, used in place through a mapping. The path is an archive, a folder of
// archives, or a pattern "name-{000..007}.tar".
//   plain       .../CLASS/name.jpg, or .../train|val|test/CLASS/name.jpg for both splits in one
//   WebDataset  members of one basename are one sample: NAME.jpg|png and NAME.cls (the class
//               number as text); class names from a classes.txt beside the shards, one a line
// In a folder, archives named train*.tar (or lying in train/) are the training set, and val* or
// test* ones the held-out set; other names are all training data and need data.test_path. A set
// whose data.test_path is its data.path is only evaluated: its held-out part, or all of it if it
// has none.
namespace ductile::data {
namespace {

constexpr int64_t kMaxShards = 1 << 20;
constexpr const char* kLink = "a symbolic link; write the archive with `tar --dereference`";
constexpr int64_t kOwnClasses = 1 << 16;  // of a set that is only evaluated, without names

std::vector<fs::path> expand_braces(const std::string& pattern) {
  const size_t open = pattern.find('{'), dots = pattern.find("..", open),
               close = pattern.find('}', open);
  int64_t first = 0, last = -1;
  if (dots < close && close != std::string::npos) {
    std::from_chars(pattern.data() + open + 1, pattern.data() + dots, first);
    std::from_chars(pattern.data() + dots + 2, pattern.data() + close, last);
  }
  if (last < first || first < 0 || last - first >= kMaxShards) {
    fail(ErrorCode::invalid_argument, "{}: expected a pattern such as shard-{{000..007}}.tar",
         pattern);
  }
  std::vector<fs::path> files;
  for (int64_t i = first; i <= last; ++i) {
    files.emplace_back(pattern.substr(0, open) + fmt::format("{:0{}}", i, dots - open - 1) +
                       pattern.substr(close + 1));
  }
  return files;
}

std::vector<fs::path> archives_in(const fs::path& folder, std::string_view start) {
  std::vector<fs::path> files;
  if (!is_folder(folder)) return files;
  for (const fs::path& path : list_folder(folder)) {
    const std::string name = path.filename().string();
    if (path.extension() == ".tar" && name.starts_with(start)) files.push_back(path);
  }
  return files;
}

// The archives of one split. `shared`: both splits may lie in them; `alone`: the set is only
// evaluated.
struct Shards {
  std::vector<fs::path> files;
  bool shared = false, alone = false;
};

Shards find_all(const std::string& path) {
  if (path.find('{') != std::string::npos && kind_of(path) == FileKind::none)
    return {.files = expand_braces(path)};
  if (is_folder(path)) {
    auto files = archives_in(path, "");
    if (files.empty()) fail(ErrorCode::not_found, "{}: no .tar files in this folder", path);
    return {.files = std::move(files)};
  }
  if (!is_file(path)) fail(ErrorCode::not_found, "{}: no such file or folder", path);
  return {.files = {path}};
}

Shards find_shards(const spec::DataOptions& options, Split split) {
  const bool train = split == Split::train;
  const bool alone = !train && options.test_path == options.path;
  if (!train && !options.test_path.empty() && !alone) return find_all(options.test_path);
  if (is_folder(options.path)) {
    for (const char* name : {"train", "val", "test"}) {
      if (train != (std::string_view(name) == "train")) continue;
      auto files = archives_in(options.path, name);
      if (files.empty()) files = archives_in(fs::path(options.path) / name, "");
      if (!files.empty()) return {.files = std::move(files), .alone = alone};
    }
  }
  Shards shards = find_all(options.path);
  shards.alone = alone;
  shards.shared = (options.test_path.empty() || alone) && shards.files.size() == 1;
  if (!train && !shards.shared && !alone) {
    fail(ErrorCode::not_found, "{}: no val*.tar or test*.tar; set data.test_path", options.path);
  }
  return shards;
}

struct Found {
  size_t file;
  TarEntry entry;
  std::string class_name;  // plain
  int64_t label = -1;      // WebDataset
};

class TarDataset final : public EncodedDataset {
 public:
  TarDataset(const spec::DataOptions& options, Split split) : EncodedDataset(options, "tar") {
    const Shards shards = find_shards(options, split);
    std::vector<Found> found = list(shards, split);
    // The classes are the training set's, also where the test set has fewer.
    if (split == Split::train || shards.alone) {
      set_classes(found, shards);
    } else if (shards.shared) {
      set_classes(TarLister(shards, Split::train).found, shards);
    } else {
      const Shards train = find_shards(options, Split::train);
      set_classes(TarLister(train, Split::train).found, train);
    }
    for (Found& f : found) {
      if (web_) {
        if (f.label < 0) {
          reject(
              place(f.file, f.entry.header),
              fmt::format("member \"{}\": no .cls member beside it, and others of the set have one",
                          f.entry.name));
          continue;
        }
        if (f.label >= info_.num_classes) {
          reject(place(f.file, f.entry.header),
                 fmt::format("label {} is not below {}, {}", f.label, info_.num_classes, bound_));
          continue;
        }
      } else {
        const auto& names = info_.class_names;
        const auto at = std::lower_bound(names.begin(), names.end(), f.class_name);
        if (at == names.end() || *at != f.class_name) {
          reject(place(f.file, f.entry.header),
                 fmt::format("class {} is not in the training set", f.class_name));
          continue;
        }
        f.label = at - names.begin();
      }
      labels_.push_back(static_cast<int32_t>(f.label));
      samples_.push_back({static_cast<uint32_t>(f.file), f.entry.offset, f.entry.size});
    }
    finish(options, split, shards.files.front().string());
  }

  Sample read(int64_t index, std::vector<std::byte>&) const override {
    const Place& p = samples_[static_cast<size_t>(index)];
    const auto bytes = files_[p.file].bytes().subspan(p.offset, p.size);
    return {detect_image(bytes), bytes};
  }

  std::string where(int64_t index) const override {
    const Place& p = samples_[static_cast<size_t>(index)];
    return place(p.file, p.offset);
  }

 private:
  struct Place {
    uint32_t file;
    uint64_t offset, size;
  };

  std::string place(size_t file, uint64_t offset) const {
    return fmt::format("{}, offset {}", names_[file], offset);
  }

  // The training members of other archives, for their classes only.
  struct TarLister {
    TarLister(const Shards& shards, Split split) {
      for (size_t i = 0; i < shards.files.size(); ++i) {
        const MappedFile file(shards.files[i]);
        sort_members(index_tar(file.bytes(), shards.files[i].string()), file.bytes(), i, split,
                     shards, found, [](const TarEntry&, const std::string&) {});
      }
    }
    std::vector<Found> found;
  };

  std::vector<Found> list(const Shards& shards, Split split) {
    std::vector<Found> found;
    for (size_t i = 0; i < shards.files.size(); ++i) {
      names_.push_back(shards.files[i].string());
      files_.emplace_back(shards.files[i]);
      sort_members(index_tar(files_[i].bytes(), names_[i]), files_[i].bytes(), i, split, shards,
                   found, [&](const TarEntry& e, const std::string& what) {
                     reject(place(i, e.header), fmt::format("member \"{}\": {}", e.name, what));
                   });
    }
    return found;
  }

  // Turns the members of one archive into samples of the split.
  template <class Reject>
  static void sort_members(const std::vector<TarEntry>& entries, std::span<const std::byte> bytes,
                           size_t file, Split split, const Shards& shards,
                           std::vector<Found>& found, Reject reject) {
    const auto ends_with_cls = [](const TarEntry& e) { return e.name.ends_with(".cls"); };
    if (std::any_of(entries.begin(), entries.end(), ends_with_cls)) {
      sort_web(entries, bytes, file, found, reject);
      return;
    }
    const auto parts_of = [](const std::string& name) {
      std::vector<std::string> parts;
      for (const auto& p : fs::path(name)) {
        if (p != "/" && p != "." && !p.empty()) parts.push_back(p.string());
      }
      return parts;
    };
    const auto has_part = [&](std::string_view part) {
      return std::any_of(entries.begin(), entries.end(), [&](const TarEntry& e) {
        const auto parts = parts_of(e.name);
        return parts.size() >= 3 && parts[parts.size() - 3] == part;
      });
    };
    // Members ".../train/CLASS/file" show that the archive holds both splits.
    const bool has_splits = shards.shared && has_part("train") &&
                            (!shards.alone || has_part("val") || has_part("test"));
    for (const TarEntry& e : entries) {
      if (!has_image_name(e.name)) continue;
      if (e.link) {
        reject(e, kLink);
        continue;
      }
      const auto parts = parts_of(e.name);
      if (parts.size() < 2 || parts[parts.size() - 2] == "..") {
        reject(e, "not of the form CLASS/name.jpg");
        continue;
      }
      if (has_splits) {
        const std::string& where = parts.size() >= 3 ? parts[parts.size() - 3] : parts[0];
        const bool wanted =
            split == Split::train ? where == "train" : where == "val" || where == "test";
        if (!wanted) continue;
      }
      found.push_back({file, e, parts[parts.size() - 2]});
    }
  }

  template <class Reject>
  static void sort_web(const std::vector<TarEntry>& entries, std::span<const std::byte> bytes,
                       size_t file, std::vector<Found>& found, Reject reject) {
    struct Pair {
      const TarEntry* image = nullptr;
      const TarEntry* label = nullptr;
    };
    std::map<std::string, Pair> pairs;
    std::vector<const std::string*> order;
    for (const TarEntry& e : entries) {
      const bool image = has_image_name(e.name), label = e.name.ends_with(".cls");
      if (!image && !label) continue;
      if (e.link) {
        reject(e, kLink);
        continue;
      }
      // The key ends at the first dot of the basename.
      const size_t slash = e.name.rfind('/');
      const size_t dot = e.name.find('.', slash == std::string::npos ? 0 : slash + 1);
      const auto [at, added] = pairs.try_emplace(e.name.substr(0, dot));
      if (added) order.push_back(&at->first);
      const TarEntry*& place = image ? at->second.image : at->second.label;
      if (place != nullptr) {
        reject(e, "a second member of this kind for one sample");
      } else {
        place = &e;
      }
    }
    for (const std::string* key : order) {
      const Pair& pair = pairs[*key];
      if (pair.image == nullptr || pair.label == nullptr) {
        const TarEntry& only = pair.image != nullptr ? *pair.image : *pair.label;
        reject(only, pair.image != nullptr ? "no .cls member beside it" : "no image beside it");
        continue;
      }
      std::string_view text(reinterpret_cast<const char*>(bytes.data()) + pair.label->offset,
                            pair.label->size);
      while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) {
        text.remove_suffix(1);
      }
      int64_t label = -1;
      const auto r = std::from_chars(text.data(), text.data() + text.size(), label);
      if (r.ec != std::errc() || r.ptr != text.data() + text.size() || label < 0) {
        reject(*pair.label, "not a class number");
        continue;
      }
      found.push_back({file, *pair.image, "", label});
    }
  }

  void set_classes(const std::vector<Found>& found, const Shards& shards) {
    const auto is_web = [](const Found& f) { return f.label >= 0; };
    web_ = std::any_of(found.begin(), found.end(), is_web);
    if (!web_) {
      std::set<std::string> names;
      for (const Found& f : found) names.insert(f.class_name);
      info_.class_names.assign(names.begin(), names.end());
    } else {
      const fs::path list = shards.files.front().parent_path() / "classes.txt";
      if (is_file(list)) {
        info_.class_names = read_lines(list);
        bound_ = "the classes of " + list.string();
      } else {
        // Every class has a training sample, so there are no more classes than these.
        const auto samples = static_cast<int64_t>(found.size());
        const int64_t most = shards.alone ? kOwnClasses : samples;
        bound_ = shards.alone ? fmt::format("and a set without classes.txt has at most {}", most)
                              : fmt::format("the classes of {} training samples", samples);
        int64_t last = -1;
        for (const Found& f : found) {
          if (f.label < most) last = std::max(last, f.label);
        }
        for (int64_t c = 0; c <= last; ++c) info_.class_names.push_back(std::to_string(c));
      }
    }
    info_.num_classes = static_cast<int64_t>(info_.class_names.size());
  }

  std::vector<std::string> names_;
  std::vector<MappedFile> files_;
  std::vector<Place> samples_;
  bool web_ = false;
  std::string bound_;  // of the labels, in words
};

}  // namespace

std::shared_ptr<const Dataset> open_tar(const spec::DataOptions& options, Split split) {
  return std::make_shared<TarDataset>(options, split);
}

}  // namespace ductile::data
