#include "ductile/control/protocol.h"

#include "ductile/control/json_impl.h"

namespace ductile::control {
namespace {

using nlohmann::json;

const Words<StateSource> kSources = {{StateSource::keep, "keep"},
                                     {StateSource::apply_voted, "apply_voted"},
                                     {StateSource::peer, "peer"},
                                     {StateSource::checkpoint, "checkpoint"},
                                     {StateSource::initial, "initial"}};
const Words<WorkerPhase> kWorkerPhases = {
    {WorkerPhase::loading, "loading"},     {WorkerPhase::ready, "ready"},
    {WorkerPhase::restoring, "restoring"}, {WorkerPhase::running, "running"},
    {WorkerPhase::halted, "halted"},       {WorkerPhase::done, "done"}};
const Words<SaveStatus::State> kSaveStates = {{SaveStatus::State::none, "none"},
                                              {SaveStatus::State::saving, "saving"},
                                              {SaveStatus::State::written, "written"},
                                              {SaveStatus::State::failed, "failed"}};

json to_json(const Parts& parts) {
  json list = json::array();
  for (const PartRange& part : parts) list.push_back({part.begin, part.end});
  return list;
}

Parts parts_from_json(const json& list) {
  Parts parts;
  for (const json& part : list) {
    if (!part.is_array() || part.size() != 2 || !part[0].is_number_integer() ||
        !part[1].is_number_integer())
      fail(ErrorCode::invalid_argument, "parts: not a list of [begin, end]");
    parts.push_back({part[0].get<int64_t>(), part[1].get<int64_t>()});
  }
  return parts;
}

json body(const Ack& ack) {
  return {{"instruction", "ack"},
          {"sequence", ack.sequence},
          {"cost", ack.cost ? run::to_json(*ack.cost) : json()}};
}
json body(const Halt& halt) {
  return {{"instruction", "halt"},
          {"generation", halt.generation},
          {"at_boundary", halt.at_boundary},
          {"gather", halt.gather},
          {"reason", halt.reason}};
}
json body(const Enter& enter) {
  return {{"instruction", "enter"}, {"plan", to_json(*enter.plan)}, {"reason", enter.reason}};
}
json body(const Save& save) {
  return {{"instruction", "save"},
          {"generation", save.generation},
          {"attempt", save.attempt},
          {"at_step", save.at_step},
          {"reason", save.reason}};
}
json body(const Stop& stop) { return {{"instruction", "stop"}, {"reason", stop.reason}}; }

}  // namespace

bool covers(const std::vector<const Parts*>& held, int64_t num_parts) {
  int64_t reached = 0;
  for (bool more = true; more && reached < num_parts;) {
    more = false;
    for (const Parts* parts : held) {
      for (const PartRange& part : *parts) {
        if (part.begin > reached || part.end <= reached) continue;
        reached = part.end;
        more = true;
      }
    }
  }
  return num_parts > 0 && reached >= num_parts;
}

const Member* GenerationPlan::find(WorkerId worker) const {
  for (const Member& member : members)
    if (member.worker == worker) return &member;
  return nullptr;
}

bool Enter::operator==(const Enter& other) const {
  const bool same_plan = plan == other.plan || (plan && other.plan && *plan == *other.plan);
  return same_plan && reason == other.reason;
}

std::string_view to_string(StateSource source) { return word_of(kSources, source); }
std::string_view to_string(WorkerPhase phase) { return word_of(kWorkerPhases, phase); }

json to_json(const GenerationPlan& plan) {
  json members = json::array();
  for (const Member& member : plan.members)
    members.push_back({{"worker", member.worker},
                       {"address", member.address},
                       {"begin", member.ranks.begin},
                       {"end", member.ranks.end},
                       {"source", to_string(member.source)},
                       {"feeder", member.feeder},
                       {"held", to_json(member.held)}});
  return {{"number", plan.number}, {"start", plan.start}, {"members", std::move(members)}};
}

GenerationPlan plan_from_json(const json& value) {
  const JsonFields in(value, "generation");
  GenerationPlan plan;
  in.read("number", plan.number);
  in.read("start", plan.start);
  for (const json& entry : in.array("members")) {
    const JsonFields from(entry, "member of a generation");
    Member member;
    from.read("worker", member.worker);
    from.read("address", member.address);
    from.read("begin", member.ranks.begin);
    from.read("end", member.ranks.end);
    from.read("source", member.source, kSources);
    from.read("feeder", member.feeder);
    member.held = parts_from_json(from.array("held"));
    plan.members.push_back(std::move(member));
  }
  return plan;
}

json to_json(const SaveFigures& figures) {
  return {{"bytes", figures.bytes},
          {"bytes_written", figures.bytes_written},
          {"blocking_seconds", figures.blocking_seconds},
          {"write_seconds", figures.write_seconds},
          {"write_core_seconds", figures.write_core_seconds},
          {"parts", figures.parts}};
}

SaveFigures save_figures_from_json(const json& value) {
  constexpr double kMost = 1e18;
  const JsonFields in(value, "figures of a save");
  SaveFigures figures;
  in.read("bytes", figures.bytes);
  in.read("bytes_written", figures.bytes_written);
  figures.blocking_seconds = in.number("blocking_seconds", 0, kMost);
  figures.write_seconds = in.number("write_seconds", 0, kMost);
  figures.write_core_seconds = in.number("write_core_seconds", 0, kMost);
  in.read("parts", figures.parts);
  return figures;
}

json to_json(const WorkerStatus& report) {
  return {{"worker", report.worker},
          {"sequence", report.sequence},
          {"address", report.address},
          {"phase", to_string(report.phase)},
          {"generation", report.generation},
          {"promised", report.promised},
          {"step", report.step},
          {"voted", report.voted},
          {"num_parts", report.num_parts},
          {"held", to_json(report.held)},
          {"next", to_json(report.next)},
          {"can_save", report.can_save},
          {"suspects", report.suspects},
          {"save",
           {{"attempt", report.save.attempt},
            {"state", word_of(kSaveStates, report.save.state)},
            {"step", report.save.step},
            {"text", report.save.text},
            {"figures", to_json(report.save.figures)}}},
          {"unreadable", report.unreadable},
          {"faulted", report.faulted},
          {"leaving", report.leaving},
          {"error", report.error},
          {"error_code", ductile::to_string(report.error_code)},
          {"cost", run::to_json(report.cost)},
          {"note", report.note}};
}

WorkerStatus worker_status_from_json(const json& value) {
  const JsonFields in(value, "report");
  WorkerStatus report;
  in.read("worker", report.worker);
  in.read("sequence", report.sequence);
  in.read("address", report.address);
  in.read("phase", report.phase, kWorkerPhases);
  in.read("generation", report.generation);
  in.read("promised", report.promised);
  in.read("step", report.step);
  in.read("voted", report.voted);
  in.read("num_parts", report.num_parts);
  report.held = parts_from_json(in.array("held"));
  report.next = parts_from_json(in.array("next"));
  // Workers of earlier versions never saved what others lacked.
  if (in.has("can_save")) in.read("can_save", report.can_save);
  for (const json& suspect : in.array("suspects")) {
    if (!suspect.is_number_unsigned())
      fail(ErrorCode::invalid_argument, "report: 'suspects' is not a list of worker ids");
    report.suspects.push_back(suspect.get<WorkerId>());
  }
  const JsonFields save(in.at("save"), "report: save");
  save.read("attempt", report.save.attempt);
  save.read("state", report.save.state, kSaveStates);
  save.read("step", report.save.step);
  save.read("text", report.save.text);
  // Earlier versions kept them to themselves.
  if (save.has("figures")) report.save.figures = save_figures_from_json(save.at("figures"));
  in.read("unreadable", report.unreadable);
  in.read("faulted", report.faulted);
  in.read("leaving", report.leaving);
  in.read("error", report.error);
  in.read("note", report.note);
  std::string code;
  in.read("error_code", code);
  report.error_code = error_code_from(code);
  report.cost = run::cost_from_json(in.at("cost"));
  return report;
}

json to_json(const Instruction& instruction) {
  json value = std::visit([](const auto& what) { return body(what); }, instruction.what);
  value["controller"] = instruction.controller;
  value["worker"] = instruction.worker;
  return value;
}

Instruction instruction_from_json(const json& value) {
  const JsonFields in(value, "instruction");
  Instruction instruction;
  in.read("controller", instruction.controller);
  in.read("worker", instruction.worker);
  std::string kind;
  in.read("instruction", kind);
  if (kind == "ack") {
    Ack ack;
    in.read("sequence", ack.sequence);
    if (!in.at("cost").is_null()) ack.cost = run::cost_from_json(in.at("cost"));
    instruction.what = ack;
  } else if (kind == "halt") {
    Halt halt;
    in.read("generation", halt.generation);
    in.read("at_boundary", halt.at_boundary);
    in.read("gather", halt.gather);
    in.read("reason", halt.reason);
    instruction.what = halt;
  } else if (kind == "enter") {
    Enter enter;
    enter.plan = std::make_shared<GenerationPlan>(plan_from_json(in.at("plan")));
    in.read("reason", enter.reason);
    instruction.what = enter;
  } else if (kind == "save") {
    Save save;
    in.read("generation", save.generation);
    in.read("attempt", save.attempt);
    in.read("at_step", save.at_step);
    in.read("reason", save.reason);
    instruction.what = save;
  } else if (kind == "stop") {
    Stop stop;
    in.read("reason", stop.reason);
    instruction.what = stop;
  } else {
    fail(ErrorCode::invalid_argument, "instruction: \"{}\" is none of ack, halt, enter, save, stop",
         kind);
  }
  return instruction;
}

}  // namespace ductile::control
