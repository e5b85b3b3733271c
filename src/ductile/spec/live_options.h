#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/spec/job.h"

namespace ductile::spec {

// A live option is a number of the job that every step may bring anew (optim::Hyper::options), as
// it brings the learning rate: whoever reads it takes another value between two steps, no shape of
// the state depends on it, and nothing that is prepared ahead of the steps does. A tuner inside a
// run may choose it (tune.options).

// How values lie between the least and the largest one of a search (tune::Scale).
enum class LiveScale : uint8_t { linear, log, log_to_one };

struct LiveOption {
  std::string_view key;
  LiveScale scale;
  std::string_view reader;  // which jobs read it, in words: "optimizer.name = \"lars\""
  bool (*is_read)(const JobOptions&);
  bool by_epoch = false;     // it is read only as an epoch begins
  bool shapes_loss = false;  // the training loss by which trials are judged is another one with it
};

// The table. A row is all that registers an option whose reader takes its group of options anew:
// Optimizer::set_options(), StepMethod::set_options(), nn::Model::set_options(); a loss of ours
// reads the job's train.label_smoothing in every step.
std::span<const LiveOption> live_options();
const LiveOption* find_live_option(std::string_view key);  // nullptr: it is none

// What tune.options says of one option.
struct TunedOption {
  const LiveOption* option = nullptr;
  double least = 0, largest = 0;
  bool whole = false;  // its values are whole numbers
};

// All that tune.options says, in its order. Throws invalid_argument for a text that is no range,
// for an option that is not live (which says why, and what is), that the job does not read, or that
// is there twice, and for bounds beyond those of the option or of its scale.
std::vector<TunedOption> tuned_options(const JobOptions& job);

// The value of a live option in the job file.
double live_value(const JobOptions& job, std::string_view key);

// The job with other values of live options. Throws invalid_argument, which names the option, for
// one that is not live and for a value beyond its bounds.
JobOptions with_options(JobOptions job, const std::map<std::string, double>& values);

}  // namespace ductile::spec
