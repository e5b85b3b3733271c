// The description of the interface for other programs, made from the table of routes.
#include <string>

#include "ductile/base/json_value.h"
#include "ductile/cluster/routes_impl.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::ordered_json;

Json schema(std::string_view type, std::string_view help) {
  return {{"type", type}, {"description", help}};
}

Json schemas() {
  Json out;
  out["Submission"] = {
      {"type", "object"},
      {"additionalProperties", false},
      {"properties",
       {{"name", schema("string", "what people call the job; need not be unique")},
        {"team", schema("string", "whose quota it uses")},
        {"tier", schema("string", "how much it is owed; default: standard")},
        {"kind", schema("string", "train, serve or command; default: train")},
        {"min_devices", schema("integer", "fewer are no use to it; default: 1")},
        {"max_devices", schema("integer", "more are no use to it; default: min_devices")},
        {"region", schema("string", "where its data are; default: everywhere")},
        {"transfer", schema("number", "seconds to bring its data to another region; default: 0")},
        {"movable", schema("boolean", "false: it runs in its region alone; default: true")},
        {"after",
         {{"type", "array"},
          {"items", schema("integer", "the number of an earlier job")},
          {"description",
           "it begins once these have finished, and is cancelled if one of them does not"}}},
        {"held", schema("boolean", "true: it begins once somebody resumes it; default: false")},
        {"array",
         {{"type", "array"},
          {"items", schema("object", "an index and a spec")},
          {"description",
           "in place of spec: a job for each item, called NAME-INDEX; all of them, or none"}}},
        {"spec", schema("object", "what to run")}}}};
  out["Devices"] = {
      {"type", "object"},
      {"additionalProperties", false},
      {"properties",
       {{"min_devices", schema("integer", "fewer are no use to it; default: as before")},
        {"max_devices", schema("integer", "more are no use to it; default: as before")}}}};
  out["Weights"] = {
      {"type", "object"},
      {"additionalProperties", false},
      {"properties",
       {{"version", schema("integer", "the checkpoint's step; default: the newest")}}}};
  out["Drain"] = {{"type", "object"},
                  {"additionalProperties", false},
                  {"properties",
                   {{"reason", schema("string", "for those who wonder")},
                    {"in", schema("number", "seconds until it begins; default: at once")},
                    {"for", schema("number",
                                   "seconds after which the node comes back by itself; "
                                   "default: it does not")}}}};
  out["Token"] = {
      {"type", "object"},
      {"required", {"name", "role"}},
      {"additionalProperties", false},
      {"properties",
       {{"name", schema("string", "whom it stands for: the owner of what it submits")},
        {"role", schema("string", "read, submit or admin")},
        {"team", schema("string", "whose jobs it may act on, and submits; default: its own alone")},
        {"seconds", schema("number", "after which it expires; default: never")}}}};
  out["Error"] = {{"type", "object"},
                  {"properties",
                   {{"error", schema("string", "what was wrong, and what would be right")},
                    {"code", schema("string", "the kind of error, for programs")}}}};
  return out;
}

Json parameter(std::string_view place, std::string_view name, std::string_view type,
               std::string_view help) {
  return {{"in", place},
          {"name", name},
          {"required", place == "path"},
          {"description", help},
          {"schema", {{"type", type}}}};
}

Json operation(const Route& route) {
  Json out = {{"summary", route.help},
              {"description", "Role: " + std::string(to_string(route.role)) + "."},
              {"parameters", Json::array()}};
  Json& parameters = out["parameters"];
  if (const size_t open = route.path.find('{'); open != std::string_view::npos) {
    const size_t close = route.path.find('}');
    parameters.push_back(parameter("path", route.path.substr(open + 1, close - open - 1), "string",
                                   "a number or a name"));
  }
  for (const Parameter& p : route.query)
    parameters.push_back(parameter("query", p.name, p.type, p.help));
  if (route.method == "POST")
    parameters.push_back(parameter("header", "Idempotency-Key", "string",
                                   "a text of your own: the same request with the same key is "
                                   "carried out once, however often it is sent"));
  if (!route.body.empty())
    out["requestBody"] = {
        {"content",
         {{"application/json",
           {{"schema", {{"$ref", "#/components/schemas/" + std::string(route.body)}}}}}}}};
  out["responses"] = {
      {"2XX", {{"description", "done"}}},
      {"default",
       {{"description", "an error"},
        {"content",
         {{"application/json", {{"schema", {{"$ref", "#/components/schemas/Error"}}}}}}}}}};
  return out;
}

}  // namespace

Json openapi() {
  Json out = {{"openapi", "3.0.3"},
              {"info",
               {{"title", "Ductile"},
                {"version", "1"},
                {"description", "The service that runs jobs on a cluster."}}},
              {"paths", Json::object()},
              {"components", {{"schemas", schemas()}}}};
  for (const Route& route : routes()) {
    const std::string method = route.method == "GET" ? "get" : "post";
    out["paths"][std::string(route.path)][method] = operation(route);
  }
  return out;
}

}  // namespace ductile::cluster
