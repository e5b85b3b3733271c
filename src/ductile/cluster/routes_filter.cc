// What a request for a list of jobs narrows it to.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/table.h"
#include "ductile/cluster/routes_impl.h"
#include "ductile/cluster/why_impl.h"

namespace ductile::cluster {
namespace {

std::vector<Phase> phases_from(std::string_view text) {
  std::vector<Phase> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    out.push_back(phase_from(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return out;
}

}  // namespace

void require_known(Request& request, const JobFilter& filter) {
  const auto require = [](const char* what, const std::string& name,
                          const std::vector<std::string>& known) {
    if (!known.empty() && std::ranges::find(known, name) == known.end())
      fail_unknown_name(what, name, known);
  };
  JobFilter any;
  // Programs that ask by `owner` wait for somebody's first job, perhaps.
  if (request.text("user") && *filter.owner != request.call.principal.name) {
    any.owner = filter.owner;
    if (request.reader.jobs(any, 0, 1).empty())
      require("user =", *filter.owner, request.reader.owners());
  }
  if (!filter.team || filter.team->empty()) return;
  any = {};
  any.team = filter.team;
  if (!request.reader.jobs(any, 0, 1).empty()) return;
  std::vector<std::string> known = request.reader.teams();
  if (request.view() != nullptr)
    for (const auto& [team, quota] : request.view()->quotas())
      if (std::ranges::find(known, team) == known.end()) known.push_back(team);
  require("team =", *filter.team, known);
}

JobFilter filter_of(const Request& request) {
  JobFilter filter;
  if (const auto phases = request.text("phase")) filter.phases = phases_from(*phases);
  const auto name = request.text("name");
  const bool pattern = name && name->find_first_of("*?") != std::string::npos;
  (pattern ? filter.pattern : filter.name) = name;
  filter.owner = request.text("user");
  if (const auto owner = request.text("owner")) {
    if (filter.owner)
      fail(ErrorCode::invalid_argument, "user and owner mean the same; give one of them");
    filter.owner = owner;
  }
  filter.team = request.text("team");
  filter.part = request.text("part");
  filter.live = request.number("live", 0, 0, 1) == 1;
  return filter;
}

}  // namespace ductile::cluster
