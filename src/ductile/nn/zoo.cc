#include <algorithm>
#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/options.h"
#include "ductile/nn/custom_model.h"
#include "ductile/nn/model.h"
#include "ductile/nn/zoo_impl.h"
#include "ductile/spec/models.h"

namespace ductile::nn {
namespace {

struct Maker {
  std::string_view name;
  std::unique_ptr<Model> (*make)(const ModelArgs&);
  Threads threads;  // threads_test.cc proves `any`
};

// Names and help are in spec/models.cc, where the torch-free command line reads them.
constexpr Maker kMakers[] = {
    {"mlp", make_mlp, Threads::any},
    {"cnn", make_cnn, Threads::any},
    {"resnet8", make_resnet_cifar<1>, Threads::any},
    {"resnet20", make_resnet_cifar<3>, Threads::any},
    {"resnet32", make_resnet_cifar<5>, Threads::any},
    {"resnet56", make_resnet_cifar<9>, Threads::any},
    {"resnet18", make_resnet18, Threads::any},
    {"resnet18-cifar", make_resnet18_cifar, Threads::any},
    {"resnet50", make_resnet50, Threads::any},
    {"unet", make_unet, Threads::any},
    {"gpt", make_gpt, Threads::any},
};

}  // namespace

std::vector<ModelEntry> model_table() {
  std::vector<ModelEntry> table;
  for (const spec::ModelHelp& help : spec::models()) {
    for (const Maker& maker : kMakers) {
      if (maker.name != help.name) continue;
      table.push_back({help.name, help.help, help.num_parameters, maker.make});
    }
  }
  DUCTILE_CHECK(table.size() == std::size(kMakers) && table.size() == spec::models().size(),
                "the model tables of spec and nn differ");
  return table;
}

bool thread_invariant(const spec::ModelOptions& options) {
  if (!options.library.empty()) return library_threads(options.library) == Threads::any;
  return std::ranges::any_of(kMakers, [&](const Maker& maker) {
    return maker.name == options.name && maker.threads == Threads::any;
  });
}

std::unique_ptr<Model> make_model(const ModelArgs& args) {
  if (!args.options.library.empty()) return load_model(args.options.library, args);
  std::vector<std::string> names;
  for (const ModelEntry& entry : model_table()) {
    if (entry.name == args.options.name) return entry.make(args);
    names.emplace_back(entry.name);
  }
  if (args.options.name == "custom") {
    fail(ErrorCode::invalid_argument,
         "model.name = \"custom\" needs model.library, the shared library that holds the model");
  }
  const auto near = nearest_name(args.options.name, names);
  fail(ErrorCode::invalid_argument,
       "model.name = \"{}\" is not known{}; `ductile models` lists them", args.options.name,
       near ? fmt::format(" (did you mean \"{}\"?)", *near) : "");
}

std::unique_ptr<Model> make_model(const spec::ModelOptions& options, const ModelInfo& info,
                                  std::string_view precision, uint64_t seed) {
  return make_model(ModelArgs{options, info, std::string(precision), seed});
}

void require_images(const ModelArgs& args, int64_t side) {
  const ModelInfo& i = args.info;
  if (i.channels < 1 || i.height < side || i.width < side) {
    fail(ErrorCode::invalid_argument,
         "model.name = \"{}\" reads images of at least {}x{} pixels; the data has {}x{} with {} "
         "channels",
         args.options.name, side, side, i.width, i.height, i.channels);
  }
}

}  // namespace ductile::nn
