#include "ductile/spec/model_identity.h"

#include <array>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"

namespace ductile::spec {
namespace {

struct IdentityField {
  const char* name;
  std::string ModelIdentity::*member;
};
// In the order of to_texts(); the first one is not compared.
constexpr std::array<IdentityField, 4> kIdentity = {{{"name", &ModelIdentity::name},
                                                     {"operators", &ModelIdentity::operators},
                                                     {"parameters", &ModelIdentity::parameters},
                                                     {"samples", &ModelIdentity::samples}}};
constexpr size_t kLongestIdentity = 4000;  // of a text that is read

}  // namespace

std::string short_digest(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3;
  }
  return fmt::format("{:016x}", hash);
}

std::string difference(const ModelIdentity& planned, const ModelIdentity& own) {
  std::string out;
  if (planned.empty() || own.empty()) return out;
  for (size_t i = 1; i < kIdentity.size(); ++i) {
    const std::string& there = planned.*kIdentity[i].member;
    const std::string& here = own.*kIdentity[i].member;
    if (there == here) continue;
    out += fmt::format("{}its {} are {}, and those of this one {}", out.empty() ? "" : "; ",
                       kIdentity[i].name, there, here);
  }
  return out;
}

nlohmann::json to_json(const ModelIdentity& identity) {
  nlohmann::json out = nlohmann::json::object();
  for (const IdentityField& field : kIdentity) out[field.name] = identity.*field.member;
  return out;
}

ModelIdentity model_identity_from_json(const nlohmann::json& value, const std::string& where) {
  const JsonFields fields(value, where);
  fields.only({"name", "operators", "parameters", "samples"});
  ModelIdentity out;
  for (const IdentityField& field : kIdentity) {
    std::string text = fields.text(field.name);
    if (text.size() > kLongestIdentity) {
      fail(ErrorCode::invalid_argument, "{}: {} has {} bytes; at most {} are read", where,
           field.name, text.size(), kLongestIdentity);
    }
    out.*field.member = std::move(text);
  }
  return out;
}

nlohmann::json model_identity_schema() {
  nlohmann::json properties, wanted = nlohmann::json::array();
  for (const IdentityField& field : kIdentity) {
    properties[field.name] = {{"type", "string"}};
    wanted.push_back(field.name);
  }
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", std::move(wanted)},
          {"additionalProperties", false},
          {"description", "of which model it is; another one's jobs are refused"}};
}

std::vector<std::string> to_texts(const ModelIdentity& identity) {
  std::vector<std::string> out;
  if (identity.empty()) return out;
  for (const IdentityField& field : kIdentity) out.push_back(identity.*field.member);
  return out;
}

ModelIdentity model_identity(const std::vector<std::string>& texts) {
  ModelIdentity out;
  if (texts.empty()) return out;
  if (texts.size() != kIdentity.size()) {
    fail(ErrorCode::invalid_argument,
         "train.pipelined.model has {} texts, and a model is known by {}: its name, operators, "
         "parameters and samples; leave the option out, or let `ductile train --plan` set it",
         texts.size(), kIdentity.size());
  }
  for (size_t i = 0; i < kIdentity.size(); ++i) out.*kIdentity[i].member = texts[i];
  return out;
}

}  // namespace ductile::spec
