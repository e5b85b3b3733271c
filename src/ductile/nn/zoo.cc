#include "ductile/base/error.h"
#include "ductile/nn/custom_model.h"
#include "ductile/nn/model.h"
#include "ductile/nn/zoo_impl.h"
#include "ductile/spec/models.h"

namespace ductile::nn {
namespace {

using spec::ModelInput;

constexpr ModelEntry kModels[] = {DUCTILE_MODELS(DUCTILE_TABLE_ROW)};

}  // namespace

Table<ModelEntry> model_table() { return {"model.name =", kModels}; }

bool thread_invariant(const spec::ModelOptions& options) {
  if (!options.library.empty()) return library_threads(options.library) == Threads::any;
  const ModelEntry* entry = model_table().find(options.name);  // threads_test.cc proves `any`
  return entry != nullptr && entry->threads == Threads::any;
}

std::unique_ptr<Model> make_model(const ModelArgs& args) {
  if (!args.options.library.empty()) return load_model(args.options.library, args);
  if (args.options.name == "custom") {
    fail(ErrorCode::invalid_argument,
         "model.name = \"custom\" needs model.library, the file that holds the model: a shared "
         "library, or what ductile capture --model wrote");
  }
  return model_table().at(args.options.name).make(args);
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
