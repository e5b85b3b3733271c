#pragma once

#include <functional>
#include <optional>
#include <string>

#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/run/folder.h"

// What the commands that use a trained model share.
namespace ductile::cli {

struct TrainedAnswer {
  run::RunFolder folder;
  std::optional<nlohmann::json> figures;  // none: interrupted
};

// Asks a worker about the run's model: `what` is the question's name (train/questions.h), `more`
// holds further fields of it.
TrainedAnswer ask_trained(const TrainedCommand& command, const char* what,
                          const nlohmann::json& more,
                          std::function<void(const nlohmann::json&)> on_row = {});

void tell_bad_samples(Console& console, const nlohmann::json& figures);

// Numbers that JSON has no word for are texts.
std::string number_text(const nlohmann::json& value, std::string (*text)(double));

}  // namespace ductile::cli
