#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace ductile::spec {

// For which model a profile or a plan was made: what two models have in common where a plan of the
// one is a plan of the other. Weights and batches have no part in it. Each text is for people, and
// ends with a digest where it says less than all.
struct ModelIdentity {
  std::string name;        // "cnn"; it is told, and not compared
  std::string operators;   // how many; names, kinds and what they read
  std::string parameters;  // how many, of how many numbers; names and shapes
  std::string samples;     // types and shapes of one sample's inputs

  bool empty() const { return operators.empty() && parameters.empty() && samples.empty(); }
  bool operator==(const ModelIdentity&) const = default;
};

// 16 hexadecimal digits (FNV-1a, 64 bits). It tells mistakes apart; nobody is kept from forging it.
std::string short_digest(std::string_view text);

// What `own` has otherwise than `planned`, as a clause: "its parameters are ..., and those of this
// one ...". Empty where they are the same, or one of the two is not known.
std::string difference(const ModelIdentity& planned, const ModelIdentity& own);

// In a graph or a plan: {"name", "operators", "parameters", "samples"}. Reading throws
// invalid_argument, which begins with `where`, for what is no such object.
nlohmann::json to_json(const ModelIdentity& identity);
ModelIdentity model_identity_from_json(const nlohmann::json& value, const std::string& where);
nlohmann::json model_identity_schema();

// As train.pipelined.model has it: the four texts, or none. Reading throws invalid_argument for
// another number of them.
std::vector<std::string> to_texts(const ModelIdentity& identity);
ModelIdentity model_identity(const std::vector<std::string>& texts);

}  // namespace ductile::spec
