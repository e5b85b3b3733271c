#include "ductile/spec/job.h"

#include "ductile/base/error.h"
#include "ductile/spec/datasets.h"
#include "ductile/spec/methods.h"
#include "ductile/spec/models.h"
#include "ductile/spec/optimizers.h"
#include "ductile/spec/schedules.h"

namespace ductile::spec {
namespace {

// Every number has two bounds, so that what is computed from it stays a number: steps of a run
// (epochs times steps an epoch) fit 64 bits, seconds fit a clock's nanoseconds, and what a model
// computes with fits a float.
constexpr double kMostCount = 1e15;
constexpr double kMostEpochs = 1e6;

}  // namespace

void describe(Describer& d, TokensOptions& o) {
  d.field("type", o.type, "type of a token number in the file").one_of({"u16", "u32"});
  d.field("sequence_length", o.sequence_length, "tokens per sample").range(1, 1 << 20);
}

void describe(Describer& d, DataOptions& o) {
  d.field("format", o.format, "what the path holds").one_of(datasets());
  d.field("path", o.path, "file or folder of the training data");
  d.field("test_path", o.test_path,
          "held-out data; empty: found beside the path as the format names it");
  d.field("train_limit", o.train_limit, "use only the first n training samples; 0 = all")
      .range(0, kMostCount);
  d.field("test_limit", o.test_limit, "use only the first n held-out samples; 0 = all")
      .range(0, kMostCount);
  d.field("on_bad_sample", o.on_bad_sample,
          "a sample that cannot be read: fail, or skip, count and report it")
      .one_of({"fail", "skip"});
  d.section("tokens", o.tokens, "What only the format tokens reads.");
  d.moved("token_type", {"tokens.type"});
  d.moved("sequence_length", {"tokens.sequence_length"});
}

void describe(Describer& d, AugmentOptions& o) {
  d.field("crop", o.crop, "side of the square crop fed to the model; 0 = the image's own size")
      .range(0, 4096);
  d.field("pad", o.pad, "padding on each side before a random crop (training)").range(0, 256);
  d.field("pad_mode", o.pad_mode, "what padding shows: zero (black), or the image reflected")
      .one_of({"zero", "reflect"});
  d.field("flip", o.flip, "mirror left-right with probability 1/2 (training)");
  d.field("random_resized_crop", o.random_resized_crop,
          "crop a random area and aspect, resized to `crop` (training)");
  d.field("min_scale", o.min_scale, "smallest area of a random-resized crop, as a share")
      .range(0.001, 1);
  d.field("max_ratio", o.max_ratio, "largest aspect ratio of a random-resized crop").range(1, 10);
  d.field("resize", o.resize, "short side before the centre crop (evaluation); 0 = crop * 8 / 7")
      .range(0, 8192);
  d.field("cutout", o.cutout, "side of a random square set to the mean (training); 0 = none")
      .range(0, 1024);
  d.field("normalize", o.normalize, "subtract the mean and divide by the standard deviation");
  d.field("mean", o.mean, "mean a channel, of values in [0, 1]; empty = the data set's own")
      .range(-10, 10);
  d.field("std", o.std, "standard deviation a channel; empty = the data set's own")
      .range(1e-6, 1e6);
}

void describe(Describer& d, LoaderOptions& o) {
  d.field("threads", o.threads, "reading and decoding threads; 0 = found by measuring")
      .range(0, 256);
  d.field("prefetch", o.prefetch, "batches prepared ahead of the trainer").range(1, 1024);
  d.field("cache_mb", o.cache_mb, "keep decoded samples in memory where all fit in this many MiB")
      .range(0, 1 << 30);
  d.field("shuffle", o.shuffle, "a new order each epoch, from seed and epoch alone");
}

void describe(Describer& d, ModelOptions& o) {
  d.field("name", o.name, "which model")
      .one_of(models())
      .one_of("custom", "a model of your own, from model.library");
  d.field("library", o.library, "shared library that holds the model (custom)");
  d.field("num_classes", o.num_classes, "outputs of a classifier; 0 = as many as the data has")
      .range(0, 1 << 24);
  d.field("hidden", o.hidden, "widths of the hidden layers (mlp)").range(1, 1 << 20);
  d.field("width", o.width, "first-stage channels (cnn, resnet); 0 = the model's own")
      .range(0, 4096);
  d.field("layers", o.layers, "blocks (gpt)").range(1, 1000);
  d.field("heads", o.heads, "attention heads (gpt)").range(1, 1000);
  d.field("dim", o.dim, "embedding width (gpt)").range(1, 1 << 17);
  d.field("vocab_size", o.vocab_size, "tokens known (gpt); 0 = from the data").range(0, 1 << 24);
  d.field("dropout", o.dropout, "share of activations dropped (gpt)").range(0, 0.99);
}

void describe(Describer& d, SgdOptions& o) { d.field("nesterov", o.nesterov, "Nesterov momentum"); }

void describe(Describer& d, AdamOptions& o) {
  d.field("beta1", o.beta1, "decay of the mean of gradients, per step").range(0, 1);
  d.field("beta2", o.beta2, "decay of the mean of squared gradients, per step").range(0, 1);
  d.field("eps", o.eps, "added to the root of the mean of squares").range(0, 1e6);
}

void describe(Describer& d, LarsOptions& o) {
  d.field("trust_coefficient", o.trust_coefficient, "how far a layer moves, as a share of its norm")
      .range(1e-9, 1e6);
  d.field("trust_outside", o.trust_outside,
          "layer-wise rate and lr applied to the momentum's sum, not inside it");
  d.field("eps", o.eps, "added to the norm that is divided by").range(0, 1e6);
}

void describe(Describer& d, OptimizerOptions& o) {
  d.field("name", o.name, "update rule").one_of(optimizers());
  d.field("lr", o.lr, "peak learning rate").range(0, 1e6);
  d.field("momentum", o.momentum, "sgd, lars").range(0, 1);
  d.field("weight_decay", o.weight_decay,
          "L2 in the gradient (sgd, adam, lars), decoupled (adamw, lamb)")
      .range(0, 1e6);
  d.field("no_decay", o.no_decay,
          "parameters without weight decay and layer scaling: bias, norm, or a part of the name");
  d.field("clip_norm", o.clip_norm, "largest global gradient norm; 0 = no clipping").range(0, 1e30);
  d.section("sgd", o.sgd, "What only sgd reads.");
  d.section("adam", o.adam, "What adam, adamw and lamb read.");
  d.section("lars", o.lars, "What only lars reads.");
  d.moved("nesterov", {"sgd.nesterov"});
  d.moved("beta1", {"adam.beta1"});
  d.moved("beta2", {"adam.beta2"});
  d.moved("eps", {"adam.eps", "lars.eps"});
  d.moved("trust_coefficient", {"lars.trust_coefficient"});
  d.moved("trust_outside", {"lars.trust_outside"});
}

void describe(Describer& d, StepOptions& o) {
  d.field("milestones", o.milestones, "epochs at which the rate is multiplied by gamma")
      .range(1, kMostEpochs);
  d.field("gamma", o.gamma, "factor at each milestone").range(0, 1);
}

void describe(Describer& d, PolynomialOptions& o) {
  d.field("power", o.power, "exponent").range(1e-6, 1e6);
}

void describe(Describer& d, OneCycleOptions& o) {
  d.field("peak_at", o.peak_at, "share of the run at which the peak stands").range(0, 1);
}

void describe(Describer& d, ScheduleOptions& o) {
  d.field("name", o.name, "shape of the learning rate over the run").one_of(schedules());
  d.field("warmup_epochs", o.warmup_epochs, "linear rise at the start; fractions allowed")
      .range(0, kMostEpochs);
  d.field("warmup_start", o.warmup_start, "share of the peak at which the rise begins").range(0, 1);
  d.field("final_fraction", o.final_fraction, "share of the peak at the end").range(0, 1);
  d.section("step", o.step, "What only the schedule step reads.");
  d.section("polynomial", o.polynomial, "What only the schedule polynomial reads.");
  d.section("one_cycle", o.one_cycle, "What only the schedule one_cycle reads.");
  d.moved("milestones", {"step.milestones"});
  d.moved("gamma", {"step.gamma"});
  d.moved("power", {"polynomial.power"});
  d.moved("peak_at", {"one_cycle.peak_at"});
}

void describe(Describer& d, TrainOptions& o) {
  d.field("epochs", o.epochs, "passes over the training data").range(1, kMostEpochs);
  d.field("max_steps", o.max_steps, "stop after this many steps; 0 = no limit")
      .range(0, kMostCount);
  d.field("batch_size", o.batch_size, "samples a step, over all virtual ranks").range(1, 1 << 24);
  d.field("virtual_ranks", o.virtual_ranks,
          "logical world size; fixed for the job, whatever machines it runs on")
      .range(1, 65536);
  d.field("method", o.method, "what a step does").one_of(step_methods());
  d.field("rate_control", o.rate_control,
          "what chooses learning rate, momentum, decay and batch size of each step")
      .one_of(rate_controls());
  d.field(
       "bn_group", o.bn_group,
       "virtual ranks whose batches are normalised together by batch norm; divides virtual_ranks")
      .range(1, 65536);
  d.field(
       "reduction", o.reduction,
       "how workers sum gradients: canonical (the same bits for every number of workers) or fast "
       "(the quickest all-reduce; results depend on the number of workers)")
      .one_of({"canonical", "fast"});
  d.field("wire", o.wire, "numbers that gradients travel in between hosts (reduction = fast)")
      .one_of({"fp32", "bf16", "fp16"});
  d.field("shard_optimizer", o.shard_optimizer,
          "spread the optimiser's state and update over the workers; changes no bit");
  d.field("shard_copies", o.shard_copies,
          "workers that keep each part of it; with 1 a lost worker costs the way back to the last "
          "checkpoint, with 2 one step")
      .range(1, 64);
  d.field("precision", o.precision, "arithmetic of forward and backward; master weights are fp32")
      .one_of({"fp32", "bf16", "fp16"});
  d.field("memory_format", o.memory_format, "layout of images in memory")
      .one_of({"auto", "channels_last", "contiguous"});
  d.field("label_smoothing", o.label_smoothing, "share of the target spread over all classes")
      .range(0, 1);
  d.field("ema_decay", o.ema_decay,
          "evaluate an exponential moving average of the weights; 0 = off")
      .range(0, 1);
  d.field("loss_scale", o.loss_scale, "first loss scale (fp16); adapted as the run goes")
      .range(1.0 / 65536, 16777216);
  d.field("eval_every_epochs", o.eval_every_epochs,
          "epochs between evaluations; 0 = at the end only")
      .range(0, kMostEpochs);
  d.field("eval_batch_size", o.eval_batch_size, "samples a batch in evaluation; 0 = as in training")
      .range(0, 1 << 24);
  d.field("log_every", o.log_every, "steps between metric lines").range(1, kMostCount);
  d.field("threads", o.threads,
          "compute threads of a worker; 0 = the cores it may use, and 1 for a model.library whose "
          "results may depend on the number")
      .range(0, 4096);
}

void describe(Describer& d, ElasticOptions& o) {
  d.field("peer_deadline", o.peer_deadline,
          "seconds after which a worker that says nothing (stopped, cut off) is replaced")
      .range(0.2, 3600);
}

void describe(Describer& d, CheckpointOptions& o) {
  d.field("every_seconds", o.every_seconds, "seconds between checkpoints; 0 = not by time")
      .range(0, 1e9);
  d.field("every_steps", o.every_steps, "steps between checkpoints; 0 = not by steps")
      .range(0, kMostCount);
  d.field("keep", o.keep, "checkpoints kept; older ones are deleted").range(1, 1e6);
  d.field("at_end", o.at_end, "write one when the run ends");
}

void describe(Describer& d, TargetOptions& o) {
  d.field("metric", o.metric, "stop when this evaluation metric is reached; empty = run to the end")
      .one_of({"", "accuracy", "loss", "perplexity"});
  d.field("value", o.value, "accuracy: at least this; loss and perplexity: at most this")
      .range(-1e9, 1e9);
}

void describe(Describer& d, JobOptions& o) {
  d.field("name", o.name, "name of the job; begins the name of its run directory");
  d.field("seed", o.seed, "every random choice of the run derives from it").at_least(0);
  d.field("runs", o.runs, "folder under which run directories are made");
  d.section("data", o.data, "What is trained on.");
  d.section("augment", o.augment, "How an image becomes an input.");
  d.section("loader", o.loader, "How inputs are prepared beside the training.");
  d.section("model", o.model, "What is trained.");
  d.section("optimizer", o.optimizer, "How weights are updated.");
  d.section("schedule", o.schedule, "How the learning rate moves over the run.");
  d.section("train", o.train, "The run.");
  d.section("elastic", o.elastic, "How losses are noticed, with several workers.");
  d.section("checkpoint", o.checkpoint, "When state is saved.");
  d.section("target", o.target, "What ends the run early, with the cost reported.");
}

void check(const JobOptions& job) {
  const auto bad = [](const std::string& text) { throw Error(ErrorCode::invalid_argument, text); };
  if (job.train.batch_size % job.train.virtual_ranks != 0) {
    bad(fmt::format("train.batch_size = {} is not divisible by train.virtual_ranks = {}",
                    job.train.batch_size, job.train.virtual_ranks));
  }
  if (job.train.virtual_ranks % job.train.bn_group != 0) {
    bad(fmt::format("train.virtual_ranks = {} is not divisible by train.bn_group = {}",
                    job.train.virtual_ranks, job.train.bn_group));
  }
  if (job.train.wire != "fp32" && job.train.reduction != "fast") {
    bad(fmt::format(
        "train.wire = \"{0}\" needs train.reduction = \"fast\": the canonical sum is the "
        "same on every placement of the workers, so it cannot round what leaves a host",
        job.train.wire));
  }
  const DatasetHelp* format = datasets().find(job.data.format);
  if (format != nullptr && format->needs_path && job.data.path.empty()) {
    bad(fmt::format("data.format = \"{}\" needs data.path", job.data.format));
  }
  if (job.augment.random_resized_crop && job.augment.crop == 0) {
    bad("augment.random_resized_crop needs augment.crop, the side of the result");
  }
  if (job.augment.mean.size() != job.augment.std.size()) {
    bad(fmt::format("augment.mean has {} values and augment.std has {}; give one a channel in both",
                    job.augment.mean.size(), job.augment.std.size()));
  }
  if (job.schedule.name == "step" && job.schedule.step.milestones.empty()) {
    bad("schedule.name = \"step\" needs schedule.step.milestones, for example [100, 150]");
  }
  if (job.schedule.warmup_epochs > static_cast<double>(job.train.epochs)) {
    bad(fmt::format("schedule.warmup_epochs = {} is longer than train.epochs = {}",
                    job.schedule.warmup_epochs, job.train.epochs));
  }
  if ((job.model.name == "gpt") != (job.data.format == "tokens") && job.model.library.empty()) {
    bad(
        fmt::format("model.name = \"{}\" and data.format = \"{}\" do not fit: gpt reads tokens, "
                    "the other models read images",
                    job.model.name, job.data.format));
  }
  if (job.model.name == "gpt" && job.model.dim % job.model.heads != 0) {
    bad(fmt::format("model.dim = {} is not divisible by model.heads = {}", job.model.dim,
                    job.model.heads));
  }
  if (job.model.name == "custom" && job.model.library.empty()) {
    bad("model.name = \"custom\" needs model.library, the shared library that holds the model");
  }
  if (job.model.name != "custom" && !job.model.library.empty()) {
    bad(
        fmt::format("model.library = \"{}\" holds the model of model.name = \"custom\", but "
                    "model.name is \"{}\"; say which one is meant",
                    job.model.library, job.model.name));
  }
}

}  // namespace ductile::spec
