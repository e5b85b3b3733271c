#include "ductile/spec/pool.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "ductile/base/json_fields.h"
#include "ductile/base/options.h"

namespace ductile::spec {
namespace {

bool is_plain_word(std::string_view text) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  return !text.empty() && text.size() <= 48 && text.front() != '-' &&
         text.find_first_not_of(kLetters) == std::string_view::npos;
}

}  // namespace

void describe(Describer& d, Pool& p) {
  d.field("engine", p.engine, "the batch system that lends the nodes: slurm");
  d.field("name", p.name, "name of the pool; its nodes are NAME-1, NAME-2 ...; empty: the engine");
  d.field("type", p.type, "type of the devices");
  d.field("devices", p.devices, "devices of each pilot").range(1, kMostDevicesOfNode);
  d.field("gpus", p.gpus,
          "GPUs of each pilot (sbatch --gres=gpu:N), for commands that ask for GPUs")
      .range(0, 1024);
  d.field("min", p.min, "pilots that are there without any demand").range(0, 10000);
  d.field("max", p.max, "most pilots").range(1, 10000);
  d.field("partition", p.partition, "partition of the pilots; empty: the default one");
  d.field("account", p.account, "account that pays for the pilots; empty: the default one");
  d.field("time_limit", p.time_limit, "minutes that a pilot may run").range(1, 1e6);
  d.field("notice", p.notice, "seconds before the time limit in which jobs move to other nodes")
      .range(1, 1e5);
  d.field("idle", p.idle, "seconds without a job after which a pilot is given back").range(0, 1e6);
  d.field("checkpoint", p.checkpoint,
          "most seconds between two checkpoints of a job; 0: as the job says")
      .range(0, 1e6);
  d.field("options", p.options, "further options of sbatch, one a text: \"--exclusive\"");
}

std::string error_of(const Pool& pool) {
  if (pool.engine != "slurm")
    return fmt::format("engine is \"{}\"; the one that there is, is \"slurm\"",
                       JsonFields::shorten(pool.engine));
  if (pool.type.empty()) return "type is empty; write the type of the devices";
  if (!is_plain_word(pool.name))
    return fmt::format("name is \"{}\"; write letters, digits, '-', '_' and '.', 48 at most",
                       JsonFields::shorten(pool.name));
  for (const std::string& word : {pool.partition, pool.account})
    if (!word.empty() && !is_plain_word(word))
      return fmt::format("\"{}\" is no name of a partition or account", JsonFields::shorten(word));
  if (pool.min > pool.max) return fmt::format("min = {} is above max = {}", pool.min, pool.max);
  if (pool.notice >= 60 * pool.time_limit)
    return fmt::format("notice = {} seconds is not shorter than time_limit = {} minutes",
                       pool.notice, pool.time_limit);
  for (const std::string& option : pool.options)
    if (!option.starts_with("--") || option.find('\n') != std::string::npos)
      return fmt::format("options: \"{}\" is no option of sbatch; write \"--name=value\"",
                         JsonFields::shorten(option));
  if (pool.gpus > 0 && options_name_gpus(pool))
    return fmt::format(
        "gpus = {} and options both ask for GPUs; leave the one out of options, or gpus where it "
        "has to be another option of sbatch",
        pool.gpus);
  return "";
}

bool options_name_gpus(const Pool& pool) {
  return std::ranges::any_of(pool.options, [](const std::string& option) {
    const bool lists = option.starts_with("--gres=") || option.starts_with("--tres-per-");
    return option.starts_with("--gpus") || (lists && option.find("gpu") != std::string::npos);
  });
}

NodeGroup group_of(const Pool& pool) {
  NodeGroup group;
  group.type = pool.type;
  group.name = pool.name;
  group.count = pool.max;
  group.devices = pool.devices;
  for (int64_t n = 1; n <= pool.max; ++n) group.hosts.push_back(fmt::format("{}-{}", pool.name, n));
  return group;
}

}  // namespace ductile::spec
