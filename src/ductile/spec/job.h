#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/options.h"

// A training job as its user writes it (job.toml). Plain values with defaults; describe() gives
// each its help text and its bounds. Everything that shapes the result of a run is here, so the
// resolved file in a run directory is enough to repeat it.
namespace ductile::spec {

// Options that only one choice reads form a group named after it (job.optimizer.lars). An option
// that several choices read in the same sense lies beside the choice.
struct TokensOptions {
  std::string type = "u16";
  int64_t sequence_length = 128;
};

struct SyntheticOptions {
  std::vector<std::string> inputs;  // sample_inputs.h
  int64_t classes = 10;
  int64_t samples = 8192;
  int64_t test_samples = 1024;
  int64_t seed = 1;
};

struct DataOptions {
  std::string format = "digits";  // datasets.h
  std::string path;               // file or folder of the training data
  std::string test_path;          // held-out data; empty: beside `path` by the format's convention
  int64_t train_limit = 0;        // use only the first n training samples; 0 = all
  int64_t test_limit = 0;
  std::string on_bad_sample = "fail";
  TokensOptions tokens;
  SyntheticOptions synthetic;
};

struct AugmentOptions {
  int64_t crop = 0;
  int64_t pad = 0;
  std::string pad_mode = "zero";
  bool flip = false;
  std::string flip_mode = "random";
  bool random_resized_crop = false;
  double min_scale = 0.08;
  double max_ratio = 4.0 / 3.0;
  int64_t resize = 0;
  int64_t cutout = 0;
  bool normalize = true;
  std::vector<double> mean;
  std::vector<double> std;
};

struct LoaderOptions {
  int64_t threads = 0;
  int64_t prefetch = 4;
  int64_t cache_mb = 1024;
  bool shuffle = true;
};

// These options are not grouped by model, since a user's own model may read any of them.
struct ModelOptions {
  std::string name = "cnn";  // models.h, or "custom"
  std::string library;       // shared library of a user's model
  int64_t num_classes = 0;
  std::vector<int64_t> hidden = {128};  // mlp, dlrm, candle-uno
  int64_t width = 0;                    // 0 = the model's own
  int64_t layers = 4;                   // gpt, mmt
  int64_t heads = 4;
  int64_t dim = 128;
  int64_t vocab_size = 0;           // 0 = from the data
  std::string activation = "gelu";  // airbench
  double dropout = 0;
  int64_t convolutions = 2;  // airbench: of each group
  int64_t later_width = 0;   // airbench: 0 = 4 * width
};

struct SgdOptions {
  bool nesterov = false;
};

struct AdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

struct LarsOptions {
  double trust_coefficient = 0.001;
  bool trust_outside = false;
  bool trust_clip = false;
  double eps = 1e-8;
};

struct NadamwOptions {
  double momentum_decay = 0;
};

struct AdemamixOptions {
  double alpha = 8;
  double beta3 = 0.9995;
  double warmup = 1;
};

struct MuonOptions {
  bool nesterov = true;
  int64_t steps = 5;
  std::vector<double> coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;
  std::string adjust_lr = "spectral";
  std::string rest = "adamw";
  double rest_lr = 1;
  double rest_momentum = 0.9;
  std::vector<std::string> exclude = {"embed", "wte", "wpe"};
  int64_t renormalize_every = 0;
};

struct NeumannOptions {
  double alpha = 1e-7;
  double beta = 1e-5;
  std::string variables = "tensors";
  double gamma = 0.99;
  double mu_start = 0.5;
  std::string mu_unit = "steps";
  double warmup_epochs = 5;
  double reset_epochs = 10;
};

struct NlcgOptions {
  std::string update = "fletcher_reeves";
  std::string preconditioner = "bfgs";
  std::string line_search = "step";
  int64_t line_search_every = 5;
  double threshold = 1;
};

struct OptimizerOptions {
  std::string name = "sgd";  // optimizers.h
  double lr = 0.1;
  double momentum = 0.9;
  double weight_decay = 5e-4;
  std::vector<std::string> no_decay = {"bias", "norm"};
  std::vector<std::string> lr_factors;
  std::vector<std::string> freeze;
  double clip_norm = 0;
  SgdOptions sgd;
  AdamOptions adam;  // also of the other rules with Adam's moments
  LarsOptions lars;
  NadamwOptions nadamw;
  AdemamixOptions ademamix;
  MuonOptions muon;
  NeumannOptions neumann;
  NlcgOptions nlcg;
};

struct StepOptions {
  std::vector<int64_t> milestones;
  double gamma = 0.1;
};

struct PolynomialOptions {
  double power = 2;
};

struct OneCycleOptions {
  double peak_at = 0.3;
};

struct KneeOptions {
  double explore_epochs = 0;
  double explore_share = 0.5;
};

struct TrapezoidOptions {
  double decay = 0.2;
  std::string shape = "linear";
};

struct ScheduleOptions {
  std::string name = "cosine";  // schedules.h
  double warmup_epochs = 0;
  double warmup_start = 0;
  double final_fraction = 0;
  StepOptions step;
  PolynomialOptions polynomial;
  OneCycleOptions one_cycle;
  KneeOptions knee;
  TrapezoidOptions trapezoid;
};

struct SelectiveOptions {
  double beta = 1;
  int64_t history = 1024;
  int64_t first_epochs = 1;
  double start = 0;
  double end = 1;
  int64_t interrupt = 0;
  bool half_resolution = false;
  std::string precision = "training";
  std::string length = "epochs";
  int64_t stale_epochs = 3;
};

struct InfoBatchOptions {
  double ratio = 0.5;
  double end = 0.875;
};

// Without stages: as many as there are virtual ranks, of equal numbers of the model's operators.
struct PipelinedOptions {
  int64_t replicas = 1;
  std::vector<int64_t> stage_replicas;  // of each stage, which share its micro-batches
  int64_t micro_batches = 4;
  std::vector<std::string> stages;     // of each: its operators' names, separated by spaces
  std::vector<std::string> orders;     // of each: its tasks, as in a plan ("F2BFBFB2")
  std::vector<std::string> recompute;  // operators
  std::vector<int64_t> tensor;         // of each: the parts that divide its linear layers
  int64_t trace_steps = 0;
  std::vector<std::string> model;  // for which the plan was made (model_identity.h)
  double replan_after = 60;        // seconds without enough workers
  int64_t replans = 0;             // how often the result has become that of another plan
};

struct GradedOptions {
  double beta = 2;
  double floor = 0.2;
  double unbias = 1;
  double end = 0.875;
};

struct LrtunerOptions {
  double explore = 0.5;
  double every_epochs = 0.1;
  int64_t batches = 4;
  double smoothing = 0.5;
};

struct NoiseOptions {
  int64_t max_batch = 0;
  double factor = 1;
  int64_t patience = 20;
};

struct TrainOptions {
  int64_t epochs = 10;
  int64_t max_steps = 0;
  int64_t batch_size = 128;
  int64_t virtual_ranks = 1;
  std::string method = "plain";
  std::string rate_control = "schedule";
  LrtunerOptions lrtuner;
  NoiseOptions noise;  // of the rate control of that name
  int64_t bn_group = 1;
  int64_t staleness = 0;
  std::string reduction = "canonical";
  std::string wire = "fp32";
  bool shard_optimizer = false;
  bool pipeline_exact = false;  // of the method pipelined
  int64_t shard_copies = 2;
  std::string precision = "fp32";
  std::string memory_format = "auto";
  double label_smoothing = 0;
  double ema_decay = 0;
  double tail_average = 0;
  int64_t statistics_batches = 32;
  double loss_scale = 65536;
  double eval_every_epochs = 1;
  int64_t eval_batch_size = 0;
  int64_t log_every = 10;
  int64_t threads = 0;
  SelectiveOptions selective;  // also of stale_selective
  InfoBatchOptions infobatch;
  GradedOptions graded;
  PipelinedOptions pipelined;
};

struct EvalOptions {
  std::string views = "one";
  double views_share = 1;
};

struct ElasticOptions {
  double peer_deadline = 1.5;
};

struct CheckpointOptions {
  double every_seconds = 60;
  int64_t every_steps = 0;
  int64_t keep = 2;
  bool at_end = true;
};

struct TuneOptions {
  bool online = false;
  std::string searcher = "gp";
  std::vector<double> lr = {1e-5, 1};
  std::vector<double> momentum;
  std::vector<double> weight_decay;
  std::vector<int64_t> batch_size;
  std::vector<int64_t> staleness;
  std::vector<std::string> options;  // KEY:LEAST:LARGEST (live_options.h)
  double clock_epochs = 0.01;
  double budget = 0.25;
  int64_t patience = 4;
  int64_t retunings = 1;
};

struct TargetOptions {
  std::string metric;
  double value = 0;
};

// Of a job whose model, data and loss are a Python program's.
struct PythonOptions {
  std::string object;             // FILE.py:CLASS or MODULE:CLASS; empty: no Python job
  std::string interpreter;        // that runs it; empty: chosen when the run is made
  std::vector<std::string> args;  // sys.argv[1:]
  std::string source;             // digest of its files; empty: not compared
  std::string versions;           // of Python, torch and numpy; empty: not compared
  int64_t verify_every = 0;       // steps; 0: never
};

struct JobOptions {
  std::string name = "job";
  int64_t seed = 1;
  std::string runs = "runs";
  DataOptions data;
  AugmentOptions augment;
  LoaderOptions loader;
  ModelOptions model;
  PythonOptions python;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  TrainOptions train;
  EvalOptions eval;
  ElasticOptions elastic;
  CheckpointOptions checkpoint;
  TuneOptions tune;
  TargetOptions target;
};

void describe(Describer& d, TokensOptions& o);
void describe(Describer& d, SyntheticOptions& o);
void describe(Describer& d, DataOptions& o);
void describe(Describer& d, AugmentOptions& o);
void describe(Describer& d, LoaderOptions& o);
void describe(Describer& d, ModelOptions& o);
void describe(Describer& d, PythonOptions& o);
void describe(Describer& d, SgdOptions& o);
void describe(Describer& d, AdamOptions& o);
void describe(Describer& d, LarsOptions& o);
void describe(Describer& d, NadamwOptions& o);
void describe(Describer& d, AdemamixOptions& o);
void describe(Describer& d, MuonOptions& o);
void describe(Describer& d, NeumannOptions& o);
void describe(Describer& d, NlcgOptions& o);
void describe(Describer& d, OptimizerOptions& o);
void describe(Describer& d, StepOptions& o);
void describe(Describer& d, PolynomialOptions& o);
void describe(Describer& d, OneCycleOptions& o);
void describe(Describer& d, KneeOptions& o);
void describe(Describer& d, TrapezoidOptions& o);
void describe(Describer& d, ScheduleOptions& o);
void describe(Describer& d, SelectiveOptions& o);
void describe(Describer& d, InfoBatchOptions& o);
void describe(Describer& d, GradedOptions& o);
void describe(Describer& d, PipelinedOptions& o);
void describe(Describer& d, NoiseOptions& o);
void describe(Describer& d, TrainOptions& o);
void describe(Describer& d, EvalOptions& o);
void describe(Describer& d, ElasticOptions& o);
void describe(Describer& d, CheckpointOptions& o);
void describe(Describer& d, TuneOptions& o);
void describe(Describer& d, TargetOptions& o);
void describe(Describer& d, JobOptions& o);

// Whether samples are looked at, for their losses, in another precision than they are trained in.
bool looks_otherwise(const JobOptions& job);

// The equal parts into which a batch is cut: one for each virtual rank, or the micro-batches of
// pipelines, whose virtual ranks are stages: those of the first pipeline, then of the next one.
bool is_pipelined(const JobOptions& job);
int64_t batch_parts(const JobOptions& job);
// Where the job trains by stages: how many virtual ranks a pipeline has, and into how many stages
// the model is cut, of which each replica is one of them.
int64_t pipeline_ranks(const JobOptions& job);
int64_t num_stages(const JobOptions& job);
// The virtual ranks of one pipeline: the parts of all its stages.
int64_t pipeline_ranks(const JobOptions& job);
// Whether any stage is divided among several parts.
bool divides_tensors(const JobOptions& job);
// Of how many gradients, each of an equal part of the samples, an update is the mean: those of the
// virtual ranks, or of whole pipelines, or, with train.pipeline_exact, of their micro-batches.
int64_t num_gradients(const JobOptions& job);
// Whether a job that trains by stages has the same bits for every cut of its model into as many
// stages. Which stage an operator is in says where in the canonical tree its gradients stand, and
// so in which order those of several pipelines are added, unless each pipeline is a node of the
// tree; and replicas of a stage divide the samples of its operators.
bool any_cut_will_do(const JobOptions& job);
// Whether a job by stages that goes on by the plan of `now` comes to the bits that it would have by
// that of `before`: as many equal parts of a batch are added in the same order, whatever the
// schedules, and whatever the cuts where any will do. Two cuts of one model may still round
// otherwise, without train.pipeline_exact, where three or more operators read a tensor, or several
// hold one weight. All else of the two jobs is taken to be the same.
bool same_result(const JobOptions& before, const JobOptions& now);

// Checks the rules that span several options: the batch size is divisible by the number of virtual
// ranks, there is a path if the format needs one, and so on. Throws invalid_argument naming the
// keys.
void check(const JobOptions& job);

// That the data which the job names are there, as seen from here. Throws not_found, naming the
// option, and `remedy` if there is one. Those of a Python job are its own matter.
void require_data(const JobOptions& job, std::string_view remedy = "");

}  // namespace ductile::spec
