#include "ductile/train/served_model.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "ductile/base/error.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/safetensors.h"
#include "ductile/data/augment.h"
#include "ductile/data/image_probe.h"
#include "ductile/data/images.h"
#include "ductile/data/sample_writer.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/torch_error.h"
#include "ductile/train/trained.h"

namespace ductile::train {
namespace {

// A data set of the one image that is being prepared.
class OneImage final : public data::Dataset {
 public:
  // Whatever its size, it becomes as large as the model reads it.
  explicit OneImage(const nn::ModelInfo& model) {
    info_.format = "images";
    info_.size = 1;
    info_.channels = model.channels;
    info_.height = model.height;
    info_.width = model.width;
  }

  void show(const data::Sample& image) { image_ = image; }

  int64_t label(int64_t) const override { return 0; }
  data::Sample read(int64_t, std::vector<std::byte>& scratch) const override {
    return data::with_channels(image_, info_.channels, scratch);
  }
  std::string where(int64_t) const override { return "image"; }

 private:
  data::Sample image_;
};

class ServedModel final : public serving::Model {
 public:
  ServedModel(std::unique_ptr<Trained> trained, std::string name) : trained_(std::move(trained)) {
    const DataForm& form = trained_->form();
    if (!form.model.inputs.empty())
      fail(ErrorCode::invalid_argument,
           "{}: its model reads several inputs for each sample, and requests carry one; serve a "
           "model "
           "that reads images or tokens",
           name);
    card_.name = std::move(name);
    card_.version = trained_->step();
    card_.digest = trained_->weights_digest();
    card_.tokens = form.tokens;
    card_.input = form.sample_shape();
    card_.class_names = form.class_names;
    channels_last_ = !form.tokens && lies_channels_last(trained_->job(), trained_->model());
    const auto values = static_cast<size_t>(num_elements(card_.input));
    // Of a prompt: its length, and then its tokens.
    card_.row_bytes = form.tokens ? (values + 1) * sizeof(int64_t) : values * sizeof(float);
    if (!form.tokens) {
      image_.emplace(form.model);
      augmenter_.emplace(form.augment_for_others(), image_->info(), false, 0);
      writer_.emplace(*image_, *augmenter_, nullptr, channels_last_);
    }
    learn_output();
  }

  const serving::ModelCard& card() const override { return card_; }

  void prepare(const serving::Sample& sample, std::byte* row) override {
    using Kind = serving::Sample::Kind;
    if (sample.kind == Kind::tokens) return prepare_tokens(sample.bytes, row);
    if (sample.kind == Kind::values) return prepare_values(sample.bytes, row);
    data::Sample image;
    image.bytes = sample.bytes;
    if (sample.kind == Kind::file) {
      image.encoding = data::detect_image(sample.bytes);
    } else {
      image.height = sample.shape[0];
      image.width = sample.shape[1];
      image.channels = sample.shape[2];
    }
    image_->show(image);
    writer_->write_image(0, 0, reinterpret_cast<float*>(row));
  }

  void run(const std::byte* rows, int64_t count, float* out) override {
    const at::Tensor logits = forward(rows, count);
    DUCTILE_CHECK(logits.numel() == count * num_elements(card_.output));
    std::memcpy(out, logits.data_ptr<float>(), static_cast<size_t>(logits.numel()) * sizeof(float));
  }

 private:
  static void prepare_tokens_at(std::byte* row, size_t at, int64_t token) {
    std::memcpy(row + at * sizeof token, &token, sizeof token);
  }

  void prepare_tokens(std::span<const std::byte> bytes, std::byte* row) const {
    const size_t count = bytes.size() / sizeof(int64_t);
    const int64_t vocabulary = card_.output[0];
    std::memset(row, 0, card_.row_bytes);
    prepare_tokens_at(row, 0, static_cast<int64_t>(count));
    for (size_t i = 0; i < count; ++i) {
      int64_t token = 0;
      std::memcpy(&token, bytes.data() + i * sizeof token, sizeof token);
      if (token < 0 || token >= vocabulary)
        fail(ErrorCode::invalid_argument, "token {} is {}; tokens are from 0 to {}", i, token,
             vocabulary - 1);
      prepare_tokens_at(row, i + 1, token);
    }
  }

  // What the model sees, as [C, H, W].
  void prepare_values(std::span<const std::byte> bytes, std::byte* row) const {
    if (!channels_last_) {
      std::memcpy(row, bytes.data(), bytes.size());
      return;
    }
    const auto channels = static_cast<size_t>(card_.input[0]);
    const size_t pixels = bytes.size() / sizeof(float) / channels;
    for (size_t c = 0; c < channels; ++c) {
      for (size_t i = 0; i < pixels; ++i)
        std::memcpy(row + (i * channels + c) * sizeof(float),
                    bytes.data() + (c * pixels + i) * sizeof(float), sizeof(float));
    }
  }

  // The logits, in fp32 and contiguous: of images those of the model, of prompts of the next token.
  at::Tensor forward(const std::byte* rows, int64_t count) try {
    const at::NoGradGuard no_grad;
    void* const data = const_cast<std::byte*>(rows);
    if (card_.tokens) {
      const int64_t positions = card_.input[0];
      const at::Tensor all = at::from_blob(data, {count, positions + 1}, at::kLong);
      const at::Tensor logits =
          trained_->model().forward(all.slice(1, 1, positions + 1).contiguous());
      const int64_t vocabulary = logits.size(2);
      at::Tensor last = at::empty({count, vocabulary}, at::kFloat);
      for (int64_t i = 0; i < count; ++i) {
        const auto length = all[i][0].item<int64_t>();
        last[i].copy_(logits[i][std::max<int64_t>(length, 1) - 1]);
      }
      return last;
    }
    Shape shape = card_.input;
    shape.insert(shape.begin(), count);
    const int64_t c = shape[1], h = shape[2], w = shape[3];
    const at::Tensor images = channels_last_
                                  ? at::from_blob(data, shape, {h * w * c, 1, w * c, c}, at::kFloat)
                                  : at::from_blob(data, shape, at::kFloat);
    return trained_->model().forward(images).to(at::kCPU, at::kFloat).contiguous();
  } catch (const c10::Error& e) {
    throw error_of(e);
  }

  // What comes of a sample of zeros.
  void learn_output() {
    const std::vector<int64_t> zeros(card_.row_bytes / sizeof(int64_t) + 1);
    const at::Tensor logits = forward(reinterpret_cast<const std::byte*>(zeros.data()), 1);
    if (logits.dim() < 2 || logits.size(0) != 1)
      fail(ErrorCode::invalid_argument,
           "the model's output is of shape [{}], and must have a first dimension for the samples",
           fmt::join(logits.sizes().vec(), ", "));
    card_.output = logits.sizes().slice(1).vec();
  }

  std::unique_ptr<Trained> trained_;
  serving::ModelCard card_;
  bool channels_last_ = false;
  std::optional<OneImage> image_;
  std::optional<data::Augmenter> augmenter_;
  std::optional<data::SampleWriter> writer_;
};

class RunSource final : public serving::ModelSource {
 public:
  RunSource(const run::RunFolder& folder, const spec::JobOptions& job, std::string name)
      : folder_(folder), job_(job), name_(std::move(name)) {}

  std::unique_ptr<serving::Model> load(std::optional<int64_t> version) override try {
    const auto load_one = [this](std::optional<int64_t> step) {
      // Without any weights Trained says what to do.
      const bool final_ones = !step || step == final_step();
      return std::make_unique<ServedModel>(
          std::make_unique<Trained>(folder_, job_, final_ones ? std::nullopt : step), name_);
    };
    if (version) return load_one(version);
    return load_newest([this] { return newest(); }, load_one);
  } catch (const Error& error) {
    // No checkpoint was deleted where the whole run is not to be seen.
    if (error.code() != ErrorCode::not_found || kind_of(folder_.job_file()) != FileKind::none)
      throw;
    fail(ErrorCode::unavailable,
         "{}: the run is not there now, as where its disk is not mounted: mount the disk, and ask "
         "for its weights again",
         folder_.path().string());
  }

  std::optional<int64_t> newest() override {
    std::optional<int64_t> out = final_step();
    for (const ckpt::CheckpointSummary& one : ckpt::list(folder_.checkpoints())) {
      if (one.error.empty()) out = std::max(out.value_or(one.step), one.step);
    }
    return out;
  }

 private:
  std::optional<int64_t> final_step() const {
    if (kind_of(folder_.model_file()) == FileKind::none) return std::nullopt;
    const ckpt::SafetensorsFile file(folder_.model_file());
    const auto step = file.metadata().find("step");
    return step == file.metadata().end() ? std::optional<int64_t>(0)
                                         : std::optional<int64_t>(std::atoll(step->second.c_str()));
  }

  run::RunFolder folder_;
  spec::JobOptions job_;
  std::string name_;
};

}  // namespace

std::unique_ptr<serving::Model> load_newest(
    const std::function<std::optional<int64_t>()>& newest,
    const std::function<std::unique_ptr<serving::Model>(std::optional<int64_t>)>& load) {
  constexpr int kMost = 10;
  std::optional<int64_t> step = newest();
  for (int tried = 1;; ++tried) {
    try {
      return load(step);
    } catch (const Error& error) {
      // A checkpoint may go while it is read, which is then damaged.
      if (error.code() != ErrorCode::not_found && error.code() != ErrorCode::data_loss) throw;
      const std::optional<int64_t> next = newest();
      if (!next || next == step) throw;
      if (tried == kMost)
        fail(ErrorCode::unavailable,
             "{}: {} newest checkpoints, one after the other, were removed before they were read: "
             "the run saves faster than its weights are loaded; a larger checkpoint.keep, or "
             "checkpoint.every_seconds, leaves them there for longer",
             error.message(), kMost);
      step = next;
    }
  }
}

std::unique_ptr<serving::ModelSource> serve_run(const run::RunFolder& folder,
                                                const spec::JobOptions& job, std::string name) {
  return std::make_unique<RunSource>(folder, job, std::move(name));
}

}  // namespace ductile::train
