
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"
#include "ductile/spec/models.h"

namespace ductile::cli {
namespace {

const char* name_of(spec::ModelInput input) {
  switch (input) {
    case spec::ModelInput::images:
      return "images";
    case spec::ModelInput::tokens:
      return "tokens";
    case spec::ModelInput::several:
      return "several";
  }
  return "";
}

}  // namespace

ExitCode models(const ModelsCommand& command, Context& context) {
  if (command.json) {
    auto all = nlohmann::ordered_json::array();
    for (const spec::ModelHelp& model : spec::models()) {
      all.push_back({{"name", model.name},
                     {"help", model.help},
                     {"input", name_of(model.input)},
                     {"parameters", model.num_parameters},
                     {"reference", model.reference}});
    }
    context.console.print("{}\n", dump_json(all, 2));
    return kDone;
  }
  std::vector<std::vector<std::string>> rows = {{"NAME", "PARAMETERS", "AT", "WHAT"}};
  for (const spec::ModelHelp& model : spec::models()) {
    rows.push_back({std::string(model.name),
                    page::with_thousands(static_cast<double>(model.num_parameters)),
                    std::string(model.reference), std::string(model.help)});
  }
  context.console.print("{}", page::table(rows));
  return kDone;
}

}  // namespace ductile::cli
