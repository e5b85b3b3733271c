// Data sets and their batches, for ductile.data.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/data/augment.h"
#include "ductile/data/cursor.h"
#include "ductile/data/data_format.h"
#include "ductile/data/dataset.h"
#include "ductile/data/inspect.h"
#include "ductile/data/jpeg.h"
#include "ductile/data/loader.h"
#include "ductile/data/png.h"
#include "ductile/data/sampler.h"
#include "ductile/python/base_functions_impl.h"
#include "ductile/run/folder.h"
#include "ductile/spec/datasets.h"
#include "ductile/spec/job.h"

namespace ductile::python {
namespace {

namespace py = pybind11;
using DatasetHandle = std::shared_ptr<const data::Dataset>;

template <class Options>
Options options_from(const std::string& text, const std::string& name) {
  Options options;
  OptionSet(options).read_json(parse_json(text, name, ErrorCode::invalid_argument), name);
  return options;
}

data::Split split_from(const std::string& name) {
  if (name == "train") return data::Split::train;
  if (name == "test") return data::Split::test;
  const std::vector<std::string> known = {"train", "test"};
  fail_unknown_name("split", name, known);
}

spec::DataOptions data_from(const std::string& text) {
  const auto options = options_from<spec::DataOptions>(text, "data");
  const bool needs_path = spec::datasets().at(options.format).needs_path;
  if (needs_path && options.path.empty())
    fail(ErrorCode::invalid_argument, "format \"{}\" needs a path", options.format);
  return options;
}

// A data set, and how many of its samples count.
struct OpenDataset {
  DatasetHandle data;
  data::Split split;
};

OpenDataset open(const std::string& options, const std::string& split) {
  return unlocked([&] {
    const data::Split which = split_from(split);
    const spec::DataOptions data = data_from(options);
    // An array holds one input, and the job's own model reads several.
    if (data.format == "synthetic") {
      fail(ErrorCode::invalid_argument,
           "format \"synthetic\": samples of several inputs cannot be read from Python; "
           "`ductile train` reads them");
    }
    return OpenDataset{data::open_dataset(data, which), which};
  });
}

std::string info_of(const OpenDataset& set) {
  const data::DatasetInfo& info = set.data->info();
  nlohmann::ordered_json out = {{"format", info.format},
                                {"split", set.split == data::Split::train ? "train" : "test"},
                                {"size", info.size},
                                {"num_classes", info.num_classes},
                                {"class_names", info.class_names}};
  if (info.tokens) {
    out["sequence_length"] = info.sequence_length;
  } else {
    out["channels"] = info.channels;
    out["height"] = info.height;
    out["width"] = info.width;
    out["mean"] = info.mean;
    out["std"] = info.std;
  }
  nlohmann::ordered_json& bad = out["bad"] = nlohmann::ordered_json::array();
  for (const data::BadItem& item : set.data->bad_items())
    bad.push_back({{"where", item.where}, {"what", item.what}});
  return dump_json(out);
}

void check_index(const OpenDataset& set, int64_t index) {
  if (index < 0 || index >= set.data->info().size)
    fail(ErrorCode::invalid_argument, "sample {} of a data set of {}", index,
         set.data->info().size);
}

template <class T>
py::array copied(const T* values, const Shape& shape) {
  return py::array_t<T>(shape, values);
}

// As it is stored: an image's bytes [H, W, C], or token numbers [T + 1].
py::array sample(const OpenDataset& set, int64_t index) {
  check_index(set, index);
  std::vector<std::byte> scratch;
  std::vector<uint8_t> rgb;
  data::JpegDecoder jpeg;
  data::Sample read;
  data::ImageView image;
  unlocked([&] {
    read = set.data->read(index, scratch);
    if (read.encoding == data::Encoding::jpeg) {
      jpeg.open(read.bytes);
      image = jpeg.decode_rgb(rgb);
    } else if (read.encoding == data::Encoding::png) {
      image = data::decode_png(read.bytes, rgb);
    } else if (read.encoding == data::Encoding::pixels) {
      image.data = reinterpret_cast<const uint8_t*>(read.bytes.data());
      image.height = read.height;
      image.width = read.width;
      image.channels = read.channels;
    }
  });
  const auto tokens = [&]<class T>(T) {
    const auto count = static_cast<int64_t>(read.bytes.size() / sizeof(T));
    std::vector<T> values(static_cast<size_t>(count));
    std::memcpy(values.data(), read.bytes.data(), values.size() * sizeof(T));
    return copied(values.data(), {count});
  };
  if (read.encoding == data::Encoding::tokens16) return tokens(uint16_t{});
  if (read.encoding == data::Encoding::tokens32) return tokens(uint32_t{});
  return copied(image.data, {image.height, image.width, image.channels});
}

std::string inspect(const std::string& options, const std::string& split) {
  return unlocked([&] {
    return dump_json(data::to_json(data::inspect(data_from(options), split_from(split))));
  });
}

std::string resolve_augment(const std::string& augment, const OpenDataset& train) {
  spec::AugmentOptions resolved = data::resolve_augment(
      options_from<spec::AugmentOptions>(augment, "augment"), train.data->info());
  return dump_json(OptionSet(resolved).to_json());
}

// An array over the memory of a batch, which lives as long as the array.
template <class T>
py::array view_of(const std::shared_ptr<const data::Batch>& batch, const T* values, Shape shape) {
  auto* const held = new std::shared_ptr<const data::Batch>(batch);
  const py::capsule owner(
      held, [](void* p) { delete static_cast<std::shared_ptr<const data::Batch>*>(p); });
  return py::array_t<T>(std::move(shape), const_cast<T*>(values), owner);
}

py::object arrays_of(const std::shared_ptr<const data::Batch>& batch) {
  if (!batch) return py::none();
  const Shape& shape = batch->shape;
  py::array input, labels;
  if (batch->dtype == DType::i64) {
    input = view_of(batch, reinterpret_cast<const int64_t*>(batch->input), shape);
    labels = view_of(batch, batch->labels, shape);
  } else {
    input = view_of(batch, reinterpret_cast<const float*>(batch->input), shape);
    labels = view_of(batch, batch->labels, {batch->num_samples});
  }
  const py::array_t<uint64_t> samples(static_cast<py::ssize_t>(batch->samples.size()),
                                      batch->samples.data());
  return py::make_tuple(input, labels, samples, batch->epoch, batch->first, batch->next_cursor,
                        batch->part);
}

// Arrays are laid out as their shape says. `augment` is resolved against the set `train`.
std::unique_ptr<data::Loader> make_loader(const OpenDataset& set, const std::string& augment,
                                          const std::string& loader, uint64_t seed,
                                          int64_t batch_size, int64_t parts, int64_t first_part,
                                          int64_t num_parts, bool training, int64_t start,
                                          const OpenDataset& train) {
  return unlocked([&] {
    data::LoaderTask task;
    task.seed = seed;
    task.batch_size = batch_size;
    task.parts = parts;
    task.first_part = first_part;
    task.num_parts = num_parts;
    task.training = training;
    task.start = start;
    task.channels_last = false;
    auto options = options_from<spec::AugmentOptions>(augment, "augment");
    if (!training) {
      const data::DatasetInfo& trained_on = train.data->info();
      task.height = trained_on.height;
      task.width = trained_on.width;
      data::check_crop(options, trained_on);
      options = data::evaluation_augment(options, std::min(task.height, task.width));
    }
    return std::make_unique<data::Loader>(
        set.data, options, options_from<spec::LoaderOptions>(loader, "loader"), task);
  });
}

// The places [first, first + count) of an epoch, into int64.
void order(uint64_t seed, uint64_t epoch, int64_t size, int64_t first, const py::object& into) {
  const Bytes bytes(into, true);
  const std::span<int64_t> out(reinterpret_cast<int64_t*>(bytes.span().data()),
                               bytes.span().size() / sizeof(int64_t));
  const auto count = static_cast<int64_t>(out.size());
  if (size < 1 || first < 0 || first > size || count > size - first)
    fail(ErrorCode::invalid_argument, "places {} to {} of an epoch over {} samples", first,
         first + count, size);
  unlocked([&] {
    const data::Permutation permutation(seed, epoch, size);
    for (int64_t i = 0; i < count; ++i) {
      if (i % 4096 == 0) ask_whether_wanted();
      out[static_cast<size_t>(i)] = permutation[first + i];
    }
  });
}

std::tuple<int64_t, int64_t, int64_t> step(int64_t cursor, int64_t batch_size, int64_t size) {
  const data::StepSamples samples = data::samples_of_step(cursor, batch_size, size);
  return {samples.epoch, samples.first, samples.next};
}

std::string formats() {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const spec::DatasetHelp& format : spec::datasets())
    out.push_back(
        {{"name", format.name}, {"help", format.help}, {"needs_path", format.needs_path}});
  return dump_json(out);
}

// The options of a run's job, and the parts into which it cuts a batch.
std::tuple<std::string, int64_t> job_of(const std::string& run) {
  spec::JobOptions job;
  OptionSet set(job);
  set.read_toml(run::RunFolder::open(run).job_file(), Moved::follow);
  return {dump_json(set.to_json()), spec::batch_parts(job)};
}

}  // namespace

void bind_data(py::module_& m) {
  py::class_<OpenDataset>(m, "Dataset")
      .def(py::init(&open), py::arg("options"), py::arg("split"))
      .def("info", info_of)
      .def("label",
           [](const OpenDataset& set, int64_t index) {
             check_index(set, index);
             return set.data->label(index);
           })
      .def("where",
           [](const OpenDataset& set, int64_t index) {
             check_index(set, index);
             return set.data->where(index);
           })
      .def("sample", sample, py::arg("index"));
  py::class_<data::Loader>(m, "Loader")
      .def(py::init(&make_loader), py::arg("dataset"), py::arg("augment"), py::arg("loader"),
           py::arg("seed"), py::arg("batch_size"), py::arg("parts"), py::arg("first_part"),
           py::arg("num_parts"), py::arg("training"), py::arg("start"), py::arg("train"))
      .def("next",
           [](data::Loader& loader) { return arrays_of(unlocked([&] { return loader.next(); })); })
      .def("fetch",
           [](data::Loader& loader, const std::vector<int64_t>& indices, int64_t epoch) {
             return arrays_of(unlocked([&] { return loader.fetch(indices, epoch); }));
           })
      .def("indices", &data::Loader::indices_of, py::arg("epoch"), py::arg("first"),
           py::arg("count"))
      .def("sample_shape", &data::Loader::sample_shape);
  m.def("inspect", inspect, py::arg("options"), py::arg("split"));
  m.def("resolve_augment", resolve_augment, py::arg("augment"), py::arg("train"));
  m.def("order", order, py::arg("seed"), py::arg("epoch"), py::arg("size"), py::arg("first"),
        py::arg("into"));
  m.def("step", step, py::arg("cursor"), py::arg("batch_size"), py::arg("size"));
  m.def("formats", formats);
  m.def("guess_format", [](const std::string& path) { return data::guess_data_format(path); });
  m.def("job_of", job_of, py::arg("run"));
}

}  // namespace ductile::python
