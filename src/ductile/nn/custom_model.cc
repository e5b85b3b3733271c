#include "ductile/nn/custom_model.h"

#include <fstream>
#include <string_view>

#include <dlfcn.h>

#include "ductile/base/error.h"
#include "ductile/nn/script_model_impl.h"

namespace ductile::nn {
namespace {

// What a library exports; loaded for good.
const ModelExport& open_library(const std::filesystem::path& library) {
  const std::filesystem::path path = std::filesystem::absolute(library);
  if (!std::filesystem::is_regular_file(path)) {
    fail(ErrorCode::not_found,
         "model.library = \"{}\": no such file (looked for {}); build the library first, or give "
         "its full path",
         library.string(), path.string());
  }
  char begin[4] = {};
  std::ifstream(path).read(begin, sizeof begin);
  if (std::string_view(begin, sizeof begin) != std::string_view("\177ELF", 4)) {
    fail(ErrorCode::invalid_argument,
         "model.library = \"{}\" cannot be loaded: it is neither a shared library nor a model that "
         "ductile capture --model wrote; `ductile capture FILE.py:CLASS --model net.pt` writes a "
         "module of PyTorch so",
         library.string());
  }
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    fail(ErrorCode::invalid_argument,
         "model.library = \"{}\" cannot be loaded: {}. Link it as a shared library with "
         "ductile::nn",
         library.string(), dlerror());
  }
  const auto get = reinterpret_cast<const ModelExport* (*)()>(dlsym(handle, kModelSymbol));
  if (get == nullptr) {
    fail(ErrorCode::invalid_argument,
         "model.library = \"{}\" exports no model; write DUCTILE_EXPORT_MODEL(maker) in one of its "
         "sources",
         library.string());
  }
  const ModelExport* model = get();
  if (model->abi != kModelAbi || model->args_bytes != sizeof(ModelArgs)) {
    fail(ErrorCode::invalid_argument,
         "model.library = \"{}\" was built against another version of Ductile (interface {}.{}, "
         "this one has {}.{}); build it again",
         library.string(), model->abi, model->args_bytes, kModelAbi, sizeof(ModelArgs));
  }
  if (std::string_view(model->torch_version) != TORCH_VERSION) {
    fail(ErrorCode::invalid_argument,
         "model.library = \"{}\" was built against libtorch {}, this program against {}; build it "
         "again",
         library.string(), model->torch_version, TORCH_VERSION);
  }
  return *model;
}

}  // namespace

std::unique_ptr<Model> load_model(const std::filesystem::path& library, const ModelArgs& args) {
  if (is_script_model(library)) return load_script_model(library, args);
  std::unique_ptr<Model> made(open_library(library).make(args));
  if (made == nullptr) {
    fail(ErrorCode::invalid_argument, "model.library = \"{}\": its maker returned no model",
         library.string());
  }
  return made;
}

Threads library_threads(const std::filesystem::path& library) {
  if (is_script_model(library)) return Threads::fixed;  // nobody has promised more
  return open_library(library).threads;
}

}  // namespace ductile::nn
