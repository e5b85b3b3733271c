#include "ductile/spec/job.h"

#include "ductile/base/error.h"
#include "ductile/spec/datasets.h"
#include "ductile/spec/methods.h"
#include "ductile/spec/optimizers.h"
#include "ductile/spec/schedules.h"

namespace ductile::spec {
namespace {

// Every number has two bounds, so that what is computed from it stays a number: steps of a run
// (epochs times steps per epoch) fit 64 bits, seconds fit a clock's nanoseconds, and what a model
// computes with fits a float.
constexpr double kMostCount = 1e15;
constexpr double kMostEpochs = 1e6;
constexpr double kMostStaleness = 64;  // the state holds so many copies of the weights
// Samples that are drawn: some methods hold a number for each.
constexpr double kMostDrawn = 1e9;

// How what workers compute is put together.
void describe_sums(Describer& d, TrainOptions& o) {
  d.field(
       "reduction", o.reduction,
       "how workers sum gradients: canonical (the same bits for every number of workers) or fast "
       "(the quickest all-reduce; results depend on the number of workers)")
      .one_of({"canonical", "fast"});
  d.field("wire", o.wire,
          "number format in which gradients travel between hosts (reduction = fast)")
      .one_of({"fp32", "bf16", "fp16"});
  d.field("shard_optimizer", o.shard_optimizer,
          "spread the optimiser's state and update over the workers; the result does not change by "
          "one bit; `ductile train --plan` sets it where it is not given and only saves memory");
  d.field("shard_copies", o.shard_copies,
          "workers that keep each part of a sharded optimiser; with 1, a lost worker sends the job "
          "back "
          "to its last checkpoint; with 2, it costs one step")
      .range(1, 64);
  d.field("pipeline_exact", o.pipeline_exact,
          "method = pipelined has the bits of plain with a virtual rank for each micro-batch; "
          "takes memory for log2 of their number, plus one, gradients of each stage");
}

}  // namespace

void describe(Describer& d, TokensOptions& o) {
  d.field("type", o.type, "type of a token number in the file").one_of({"u16", "u32"});
  d.field("sequence_length", o.sequence_length, "tokens per sample").range(1, 1 << 20);
}

void describe(Describer& d, SyntheticOptions& o) {
  d.field("inputs", o.inputs,
          "the inputs of each sample: vector:LENGTH, tokens:LENGTH:RANGE or indices:LENGTH:RANGE, "
          "for several alike with COUNT* before it");
  d.field("classes", o.classes, "number of labels, which a fixed random teacher gives")
      .range(2, 1000);
  d.field("samples", o.samples, "training samples").range(1, kMostDrawn);
  d.field("test_samples", o.test_samples, "held-out samples").range(1, kMostDrawn);
  d.field("seed", o.seed, "of samples and teacher").range(0, kMostCount);
}

void describe(Describer& d, DataOptions& o) {
  d.field("format", o.format, "format of the data")
      .one_of(datasets())
      .one_of("python", "the data of a Python job (python.object)");
  d.field("path", o.path, "file or folder of the training data");
  d.field(
      "test_path", o.test_path,
      "held-out data; empty = looked for beside data.path, under the names usual for the format");
  d.field("train_limit", o.train_limit, "use only the first n training samples; 0 = all")
      .range(0, kMostCount);
  d.field("test_limit", o.test_limit, "use only the first n held-out samples; 0 = all")
      .range(0, kMostCount);
  d.field("on_bad_sample", o.on_bad_sample,
          "what happens when a sample cannot be read: fail, or skip it, count it and report it")
      .one_of({"fail", "skip"});
  d.section("tokens", o.tokens, "These options are read by the format tokens only.");
  d.section("synthetic", o.synthetic, "These options are read by the format synthetic only.");
  d.moved("token_type", {"tokens.type"});
  d.moved("sequence_length", {"tokens.sequence_length"});
}

void describe(Describer& d, AugmentOptions& o) {
  d.field("crop", o.crop,
          "side of the square crop fed to the model; 0 = the images' own size, or 224 if 64 of "
          "them, from all over the training set, differ in size")
      .range(0, 4096);
  d.field("pad", o.pad, "padding on each side before a random crop (training)").range(0, 256);
  d.field("pad_mode", o.pad_mode,
          "content of the padding: zero (black), or reflect (the image mirrored)")
      .one_of({"zero", "reflect"});
  d.field("flip", o.flip, "mirror left-right in half of the cases (training)");
  d.field("flip_mode", o.flip_mode,
          "which cases: random (drawn for each sample and epoch), or alternating (drawn for each "
          "sample in the first epoch, then the other way round in every other epoch)")
      .one_of({"random", "alternating"});
  d.field("random_resized_crop", o.random_resized_crop,
          "crop a random area with a random aspect ratio, and resize it to `crop` (training)");
  d.field("min_scale", o.min_scale,
          "smallest area of a random-resized crop, as a share of the image")
      .range(0.001, 1);
  d.field("max_ratio", o.max_ratio, "largest aspect ratio of a random-resized crop").range(1, 10);
  d.field("resize", o.resize,
          "length of the short side before the crop, in evaluations and, without "
          "random_resized_crop, in training; 0 = crop * 8 / 7 if the training images differ in "
          "size; otherwise training resizes none, and evaluations resize to the short side of the "
          "training images, or to crop * 8 / 7 if random_resized_crop is set and that side is not "
          "crop")
      .range(0, 8192);
  d.field("cutout", o.cutout, "side of a random square set to the mean (training); 0 = none")
      .range(0, 1024);
  d.field("normalize", o.normalize, "subtract the mean and divide by the standard deviation");
  d.field("mean", o.mean, "mean per channel, of values in [0, 1]; empty = that of the data set")
      .range(-10, 10);
  d.field("std", o.std, "standard deviation per channel; empty = that of the data set")
      .range(1e-6, 1e6);
}

void describe(Describer& d, LoaderOptions& o) {
  d.field("threads", o.threads, "threads that read and decode; 0 = chosen by measuring")
      .range(0, 256);
  d.field("prefetch", o.prefetch, "batches prepared ahead of the trainer").range(1, 1024);
  d.field(
       "cache_mb", o.cache_mb,
       "keep decoded samples in memory if all of them fit in this many MiB; JPEG images are then "
       "decoded whole before they are resized, which has other bits")
      .range(0, 1 << 30);
  d.field("shuffle", o.shuffle,
          "draw a new order for each epoch, from the seed and the epoch number alone");
}

void describe(Describer& d, PythonOptions& o) {
  d.field("object", o.object,
          "the class of the job, FILE.py:CLASS or MODULE:CLASS, or FILE.py with a loop of its own; "
          "empty = no Python job");
  d.field("interpreter", o.interpreter,
          "the Python that runs it; empty = that of $VIRTUAL_ENV, or python3 on PATH");
  d.field("args", o.args, "arguments of the program, its sys.argv[1:]");
  d.field("source", o.source,
          "digest of the program's files, written when the run is made: a worker with others is "
          "refused; empty = not compared");
  d.field("versions", o.versions,
          "of Python, torch and numpy, written when the run is made: a worker with others is "
          "refused; empty = not compared");
  d.field("verify_every", o.verify_every,
          "steps between two in which a virtual rank is computed again, by another worker where "
          "there is one, and compared to the bit; 0 = never")
      .range(0, kMostCount);
}

void describe(Describer& d, SgdOptions& o) { d.field("nesterov", o.nesterov, "Nesterov momentum"); }

void describe(Describer& d, AdamOptions& o) {
  d.field("beta1", o.beta1, "decay of the mean of gradients, per step").range(0, 1);
  d.field("beta2", o.beta2, "decay of the mean of squared gradients, per step").range(0, 1);
  d.field("eps", o.eps, "added to the square root of the mean of squared gradients").range(0, 1e6);
}

void describe(Describer& d, LarsOptions& o) {
  d.field("trust_coefficient", o.trust_coefficient,
          "how far a layer moves per step, as a share of its norm")
      .range(1e-9, 1e6);
  d.field("trust_outside", o.trust_outside,
          "apply the layer-wise rate and lr after the momentum sum instead of inside it");
  d.field("trust_clip", o.trust_clip,
          "a layer moves by the smaller of lr and the layer-wise rate instead of by their product");
  d.field("eps", o.eps, "added to the norm in the denominator").range(0, 1e6);
}

void describe(Describer& d, NadamwOptions& o) {
  d.field("momentum_decay", o.momentum_decay,
          "how fast the momentum rises to beta1 (PyTorch's default is 0.004); 0 = beta1 throughout")
      .range(0, 1);
}

void describe(Describer& d, AdemamixOptions& o) {
  d.field("alpha", o.alpha, "weight of the slow mean of gradients beside the fast one")
      .range(0, 1e6);
  d.field("beta3", o.beta3, "decay of the slow mean, per step").range(0, 1);
  d.field("warmup", o.warmup,
          "share of the run in which alpha rises from 0 and beta3 from adam.beta1; 0 = none")
      .range(0, 1);
}

void describe(Describer& d, MuonOptions& o) {
  d.field("nesterov", o.nesterov, "orthogonalise the Nesterov momentum instead of the momentum");
  d.field("steps", o.steps, "Newton-Schulz steps; more are closer to an orthogonal matrix")
      .range(1, 50);
  d.field("coefficients", o.coefficients,
          "a, b and c of a Newton-Schulz step, aX + b(XX')X + c(XX')^2 X")
      .range(-100, 100);
  d.field("eps", o.eps, "added to the norm by which a matrix is divided at first").range(0, 1e6);
  d.field("adjust_lr", o.adjust_lr,
          "factor on lr per matrix: none; spectral (sqrt(rows / columns), at least 1); rms (0.2 * "
          "sqrt(the longer side), about the size of AdamW's updates)")
      .one_of({"none", "spectral", "rms"});
  d.field("rest", o.rest, "rule for vectors and the matrices in `exclude`")
      .one_of({"adamw", "sgd"});
  d.field("rest_lr", o.rest_lr, "factor on lr for the parameters that `rest` updates")
      .range(0, 1e6);
  d.field("rest_momentum", o.rest_momentum, "momentum factor of the rest, if rest = \"sgd\"")
      .range(0, 1);
  d.field("exclude", o.exclude,
          "matrices that `rest` updates: parts of their names; vectors are always among these");
  d.field("renormalize_every", o.renormalize_every,
          "steps after which each matrix is scaled to the norm sqrt(rows) before its update; 0 = "
          "never")
      .range(0, kMostCount);
  d.moved("adamw_lr", {"rest_lr"});
}

void describe(Describer& d, NeumannOptions& o) {
  d.field("alpha", o.alpha, "weight of the cubic regulariser").range(0, 1e30);
  d.field("beta", o.beta, "weight of the repulsive regulariser, per variable").range(0, 1e30);
  d.field("variables", o.variables, "what neumann.beta counts as a variable")
      .one_of({"tensors", "scalars"});
  d.field("gamma", o.gamma, "decay of the mean of weights that both regularisers refer to")
      .range(0, 1);
  d.field("mu_start", o.mu_start, "mu at first; it rises to optimizer.momentum").range(0, 1);
  d.field("mu_unit", o.mu_unit, "unit of t in mu = 1 - 1 / (1 + t)").one_of({"steps", "epochs"});
  d.field("warmup_epochs", o.warmup_epochs, "epochs of plain SGD at the start")
      .range(0, kMostEpochs);
  d.field("reset_epochs", o.reset_epochs,
          "epochs to the first reset of the iterate; each later period is twice as long as the one "
          "before; 0 = no resets")
      .range(0, kMostEpochs);
}

void describe(Describer& d, NlcgOptions& o) {
  d.field("update", o.update, "formula of beta").one_of({"fletcher_reeves", "polak_ribiere"});
  d.field("preconditioner", o.preconditioner, "preconditioner: the diagonal of BFGS, or none")
      .one_of({"bfgs", "none"});
  d.field("line_search", o.line_search,
          "when the loss is compared with its mean to adapt the step size: every "
          "line_search_every steps (step), each step (online), or never (none)")
      .one_of({"step", "online", "none"});
  d.field("line_search_every", o.line_search_every, "steps between two comparisons (step)")
      .range(1, kMostCount);
  d.field("threshold", o.threshold, "rise of the loss, in percent, from which steps become shorter")
      .range(0, 1e6);
}

void describe(Describer& d, OptimizerOptions& o) {
  d.field("name", o.name, "update rule")
      .one_of(optimizers())
      .one_of("python", "the optimizer() of a Python job");
  d.field("lr", o.lr, "peak learning rate").range(0, 1e6);
  d.field("momentum", o.momentum, "momentum factor (sgd, lars, muon); largest mu (neumann)")
      .range(0, 1);
  d.field("weight_decay", o.weight_decay,
          "L2 in the gradient (sgd, adam, lars, neumann, nlcg, and what muon leaves to sgd), "
          "decoupled (the other rules)")
      .range(0, 1e6);
  d.field("no_decay", o.no_decay,
          "parameters without weight decay and layer scaling: bias, norm, or a part of the name");
  d.field(
      "lr_factors", o.lr_factors,
      "factors on lr by parameter, for example [\"head:2\", \"bias:64\"]; the name is bias, norm, "
      "or a part of the parameter's, and the first that fits counts; what a step takes by weight "
      "decay stays as it is, but for adam (sgd, adam, adamw, nadamw, ademamix, muon)");
  d.field("freeze", o.freeze,
          "parameters that are not trained, for example [\"stem\", \"head.bias:3\"]; with a number "
          "they are trained in that many first epochs; names as in lr_factors");
  d.field("clip_norm", o.clip_norm, "largest global gradient norm; 0 = no clipping").range(0, 1e30);
  d.section("sgd", o.sgd, "These options are read by sgd, and by muon for rest = \"sgd\".");
  d.section("adam", o.adam,
            "These options are read by adam, adamw, nadamw, ademamix, schedule_free and lamb, and "
            "by muon for rest = \"adamw\".");
  d.section("lars", o.lars, "These options are read by lars only.");
  d.section("nadamw", o.nadamw, "These options are read by nadamw only.");
  d.section("ademamix", o.ademamix, "These options are read by ademamix only.");
  d.section("muon", o.muon, "These options are read by muon only.");
  d.section("neumann", o.neumann, "These options are read by neumann only.");
  d.section("nlcg", o.nlcg, "These options are read by nlcg only.");
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
  d.field("power", o.power, "exponent of the decay").range(1e-6, 1e6);
}

void describe(Describer& d, OneCycleOptions& o) {
  d.field("peak_at", o.peak_at,
          "share of the run after which the learning rate is at its peak, where warmup_epochs is 0")
      .range(0, 1);
}

void describe(Describer& d, KneeOptions& o) {
  d.field(
       "explore_epochs", o.explore_epochs,
       "epochs at the peak after the warm-up; 0 = explore_share of the run, after the warm-up, too")
      .range(0, kMostEpochs);
  d.field("explore_share", o.explore_share,
          "share of the run at the peak, where explore_epochs is 0; fixed, whatever the run sees")
      .range(0, 1);
}

void describe(Describer& d, TrapezoidOptions& o) {
  d.field("decay", o.decay, "share of the run, in whole steps, in which the rate falls, at its end")
      .range(0, 1);
  d.field("shape", o.shape, "how it falls: linear, or as 1 - sqrt(share of the way)")
      .one_of({"linear", "sqrt"});
}

void describe(Describer& d, ScheduleOptions& o) {
  d.field("name", o.name, "shape of the learning rate over the run").one_of(schedules());
  d.field("warmup_epochs", o.warmup_epochs,
          "epochs of linear rise at the start (one_cycle: of half a cosine); may be a fraction")
      .range(0, kMostEpochs);
  d.field("warmup_start", o.warmup_start, "share of the peak at which the rise begins").range(0, 1);
  d.field("final_fraction", o.final_fraction,
          "share of the peak at the end (all schedules but constant and step)")
      .range(0, 1);
  d.section("step", o.step, "These options are read by the schedule step only.");
  d.section("polynomial", o.polynomial, "These options are read by the schedule polynomial only.");
  d.section("one_cycle", o.one_cycle, "These options are read by the schedule one_cycle only.");
  d.section("knee", o.knee, "These options are read by the schedule knee only.");
  d.section("trapezoid", o.trapezoid, "These options are read by the schedule trapezoid only.");
  d.moved("milestones", {"step.milestones"});
  d.moved("gamma", {"step.gamma"});
  d.moved("power", {"polynomial.power"});
  d.moved("peak_at", {"one_cycle.peak_at"});
}

void describe(Describer& d, SelectiveOptions& o) {
  d.field("beta", o.beta,
          "a sample is kept with the probability (share of the last losses below its own) ^ beta; "
          "1 / (beta + 1) of all are kept")
      .range(0, 1000);
  d.field("history", o.history, "number of last losses that a loss is ranked among")
      .range(1, 1 << 24);
  d.field("first_epochs", o.first_epochs, "epochs at the start that train on every sample")
      .range(0, kMostEpochs);
  d.field("start", o.start, "share of the run before which every sample is trained").range(0, 1);
  d.field("end", o.end, "share of the run after which every sample is trained").range(0, 1);
  d.field("interrupt", o.interrupt,
          "every n-th update is by a whole batch, without a choice; 0 = none")
      .range(0, kMostCount);
  d.field("half_resolution", o.half_resolution,
          "find losses with images of half the width and height (models that pool over the whole "
          "image)");
  d.field(
       "precision", o.precision,
       "arithmetic of the passes that find losses: that of the training, or bf16, which is faster "
       "on processors that have instructions for it")
      .one_of({"training", "bf16"});
  d.field(
       "length", o.length,
       "what train.epochs and the schedule count: epochs (samples looked at) or updates (samples "
       "trained, as many as without a choice)")
      .one_of({"epochs", "updates"});
  d.field("stale_epochs", o.stale_epochs,
          "a sample's loss is found by a forward pass once in this many epochs (stale_selective)")
      .range(1, 1 << 24);
}

void describe(Describer& d, InfoBatchOptions& o) {
  d.field("ratio", o.ratio,
          "share of the samples with a loss below the mean that is skipped in each epoch")
      .range(0, 0.9);
  d.field("end", o.end,
          "share of the epochs, or of train.max_steps, after which no sample is skipped")
      .range(0, 1);
}

void describe(Describer& d, GradedOptions& o) {
  d.field("beta", o.beta,
          "a sample is kept with the probability floor + (1 - floor) * (share of all losses below "
          "its own) ^ beta")
      .range(0, 1000);
  d.field("floor", o.floor, "least probability with which a sample is kept").range(0.01, 1);
  d.field("unbias", o.unbias,
          "a kept sample's loss is multiplied by its probability ^ -unbias: 1 = the expectation of "
          "the gradient stays, 0 = samples with large losses count for more")
      .range(0, 1);
  d.field("end", o.end,
          "share of the epochs, or of train.max_steps, after which no sample is skipped")
      .range(0, 1);
}

void describe(Describer& d, LrtunerOptions& o) {
  d.field("explore", o.explore,
          "share of the run in which the learning rate grows while more updates of the same kind "
          "would lower the loss further; after it, it falls to 0 along a line")
      .range(0, 1);
  d.field("every_epochs", o.every_epochs,
          "the most epochs between two rounds of probes, but at least four updates; the first ones "
          "are "
          "2 to 8 updates apart")
      .range(1e-6, kMostEpochs);
  d.field("batches", o.batches, "mini-batches per virtual rank that each probe evaluates")
      .range(1, 1024);
  d.field("smoothing", o.smoothing,
          "where rounds are further apart than the first ones, the learning rate grows by 2 to the "
          "power of 1 minus this; before, it doubles")
      .range(0, 0.99);
}

void describe(Describer& d, NoiseOptions& o) {
  d.field("max_batch", o.max_batch,
          "largest batch_size that is chosen; 0 = eight times train.batch_size, with which the job "
          "begins")
      .range(0, 1 << 24);
  d.field("factor", o.factor,
          "the batch grows up to this share of the noise scale; more than 1 takes fewer steps and "
          "more samples")
      .range(1e-6, 1e6);
  d.field("patience", o.patience, "least number of updates between two changes of the batch")
      .range(1, kMostCount);
}

void describe(Describer& d, TrainOptions& o) {
  d.field("epochs", o.epochs, "passes over the training data").range(1, kMostEpochs);
  d.field("max_steps", o.max_steps, "stop after this many updates; 0 = no limit")
      .range(0, kMostCount);
  d.field("batch_size", o.batch_size, "samples per step, over all virtual ranks").range(1, 1 << 24);
  d.field("virtual_ranks", o.virtual_ranks,
          "logical world size; it is fixed for the job, whatever machines the job runs on")
      .range(1, 65536);
  d.field("method", o.method, "what each step computes").one_of(step_methods());
  d.field("rate_control", o.rate_control,
          "what chooses the learning rate, momentum, decay and batch size of each step")
      .one_of(rate_controls());
  d.field("bn_group", o.bn_group,
          "virtual ranks per batch norm group, whose batches are normalised together; divides "
          "virtual_ranks")
      .range(1, 65536);
  d.field(
       "staleness", o.staleness,
       "updates by which the weights that a virtual rank differentiates may be behind; drawn for "
       "each rank and update; 0 = they never are")
      .range(0, kMostStaleness);
  describe_sums(d, o);
  d.field("precision", o.precision, "arithmetic of forward and backward; master weights are fp32")
      .one_of({"fp32", "bf16", "fp16"});
  d.field("memory_format", o.memory_format, "layout of images in memory")
      .one_of({"auto", "channels_last", "contiguous"});
  d.field("label_smoothing", o.label_smoothing, "share of the target spread over all classes")
      .range(0, 1);
  d.field("ema_decay", o.ema_decay,
          "evaluate an exponential moving average of the weights; 0 = off")
      .range(0, 1);
  d.field("tail_average", o.tail_average,
          "evaluate the mean of the weights over this last share of the run; 0 = off")
      .range(0, 1);
  d.field(
       "statistics_batches", o.statistics_batches,
       "training batches from which batch norm's running statistics are computed for the weights "
       "that are evaluated, where the optimiser trains others (neumann, schedule_free); 0 = "
       "those of the trained weights are used")
      .range(0, 1 << 20);
  d.field("loss_scale", o.loss_scale, "initial loss scale (fp16); it is adapted during the run")
      .range(1.0 / 65536, 16777216);
  d.field("eval_every_epochs", o.eval_every_epochs,
          "epochs between evaluations; 0 = only at the end")
      .range(0, kMostEpochs);
  d.field("eval_batch_size", o.eval_batch_size,
          "samples per batch in evaluation; 0 = as in training")
      .range(0, 1 << 24);
  d.field("log_every", o.log_every, "updates between metric lines").range(1, kMostCount);
  d.field("threads", o.threads,
          "compute threads per worker; 0 = the cores that the worker may use, but 1 for a "
          "model.library "
          "whose results may depend on the number of threads")
      .range(0, 4096);
  d.section("selective", o.selective,
            "These options are read by the methods selective and stale_selective.");
  d.section("infobatch", o.infobatch, "These options are read by the method infobatch only.");
  d.section("graded", o.graded, "These options are read by the method graded only.");
  d.section("pipelined", o.pipelined, "These options are read by the method pipelined only.");
  d.section("lrtuner", o.lrtuner, "These options are read by the rate control lrtuner only.");
  d.section(
      "noise", o.noise,
      "These options are read by the rate control noise, and max_batch and patience by goodput.");
}

void describe(Describer& d, EvalOptions& o) {
  d.field("views", o.views,
          "views of an image whose logits are averaged: one; flip (the image and its mirror "
          "image); or flip_translate (both, also shifted by a pixel to either corner: 6 views, the "
          "shifted ones with half the weight together)")
      .one_of({"one", "flip", "flip_translate"});
  d.field("views_share", o.views_share,
          "share of the images for which all views are computed: those whose first view decides "
          "least clearly")
      .range(0, 1);
}

void describe(Describer& d, ElasticOptions& o) {
  d.field("peer_deadline", o.peer_deadline,
          "seconds after which a silent worker (stopped, or cut off) is replaced")
      .range(0.2, 3600);
}

void describe(Describer& d, CheckpointOptions& o) {
  d.field("every_seconds", o.every_seconds,
          "seconds between checkpoints; 0 = no checkpoints by time")
      .range(0, 1e9);
  d.field("every_steps", o.every_steps, "steps between checkpoints; 0 = no checkpoints by steps")
      .range(0, kMostCount);
  d.field("keep", o.keep, "number of checkpoints kept; older ones are deleted").range(1, 1e6);
  d.field("at_end", o.at_end, "write a checkpoint when the run ends");
}

void describe(Describer& d, TuneOptions& o) {
  d.field(
      "online", o.online,
      "find the options below while training: short trials on branches of the state, of which the "
      "best one is kept with its work");
  d.field("searcher", o.searcher, "what chooses the settings that are tried")
      .one_of({"random", "grid", "tpe", "gp", "curves"});
  d.field("lr", o.lr, "least and largest learning rate, on a logarithmic scale; empty = as it is")
      .range(0, 1e6);
  d.field("momentum", o.momentum, "least and largest momentum; empty = as it is").range(0, 1);
  d.field("weight_decay", o.weight_decay,
          "least and largest weight decay, on a logarithmic scale; empty = as it is")
      .range(0, 1e6);
  d.field("batch_size", o.batch_size, "batch sizes to choose from; empty = as it is")
      .range(1, kMostCount);
  d.field("staleness", o.staleness, "values of train.staleness to choose from; empty = as it is")
      .range(0, kMostStaleness);
  d.field("options", o.options,
          "other options to tune, each with its least and largest value, for example "
          "[\"optimizer.clip_norm:0.1:10\", \"train.label_smoothing:0:0.2\"]; what a step cannot "
          "bring anew is refused");
  d.field(
       "clock_epochs", o.clock_epochs,
       "epochs per clock, at least a batch: a trial is judged by its mean loss in each clock, and "
       "the shortest one has ten")
      .range(1e-6, 1000);
  d.field("budget", o.budget, "most epochs of trials per search, as a share of train.epochs")
      .range(0.01, 1000);
  d.field("patience", o.patience, "evaluations without a new best before another search begins")
      .range(1, kMostCount);
  d.field("retunings", o.retunings, "most searches after the first one").range(0, kMostCount);
}

void describe(Describer& d, TargetOptions& o) {
  d.field("metric", o.metric,
          "evaluation metric (perplexity: of tokens alone) that ends the run when it reaches "
          "target.value; empty = run to the end")
      .one_of({"", "accuracy", "loss", "perplexity"});
  d.field("value", o.value,
          "the run ends at an accuracy of at least this, or a loss or perplexity of at most this")
      .range(-1e9, 1e9);
}

void describe(Describer& d, JobOptions& o) {
  d.field("name", o.name, "name of the job; the name of its run directory begins with it");
  d.field("seed", o.seed, "seed from which every random choice of the run derives").at_least(0);
  d.field("runs", o.runs, "folder in which run directories are made");
  d.section("data", o.data, "The training data.");
  d.section("augment", o.augment, "How an image becomes an input.");
  d.section("loader", o.loader, "How inputs are prepared while the model trains.");
  d.section("model", o.model, "The model that is trained.");
  d.section("python", o.python, "The program that brings model, data and loss of a Python job.");
  d.section("optimizer", o.optimizer, "How weights are updated.");
  d.section("schedule", o.schedule, "How the learning rate moves over the run.");
  d.section("train", o.train,
            "The length of the run, its batches, and how its steps are computed.");
  d.section("eval", o.eval, "How the model is evaluated.");
  d.section("elastic", o.elastic, "How the loss of a worker is detected.");
  d.section("checkpoint", o.checkpoint, "When checkpoints are written.");
  d.section("tune", o.tune, "Options that are found while training.");
  d.section("target", o.target,
            "What ends the run early; the report then gives the cost of reaching it.");
  d.moved("batch.adaptive", {"train.rate_control"});  // where others look for it
  d.called_elsewhere("amp", {"train.precision"});
  d.called_elsewhere("betas", {"optimizer.adam.beta1", "optimizer.adam.beta2"});
  d.called_elsewhere("learning_rate", {"optimizer.lr"});
  d.called_elsewhere("lr_scheduler", {"schedule.name"});
  d.called_elsewhere("max_norm", {"optimizer.clip_norm"});
  d.called_elsewhere("num_epochs", {"train.epochs"});
  d.called_elsewhere("num_workers", {"loader.threads"});
  d.called_elsewhere("scheduler", {"schedule.name"});
}

}  // namespace ductile::spec
