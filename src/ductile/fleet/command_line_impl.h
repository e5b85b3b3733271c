#pragma once

#include "ductile/cli/parsed.h"

namespace ductile::cli {

void add_service_at(CLI::App& app, ServiceAt& at);
// Seconds, or with a unit: 90, 30m, 12h, 2d.
CLI::Option* add_seconds(CLI::App& sub, const char* name, double& seconds, const char* help);
// Of what follows a service: how long that may be away.
void add_patience(CLI::App& sub, double& seconds);

void add_live(CLI::App& app, Parsed& parsed);
void add_report(CLI::App& app, Parsed& parsed);
void add_service(CLI::App& app, Parsed& parsed);
void add_plan(CLI::App& app, Parsed& parsed);
void add_sim(CLI::App& app, Parsed& parsed);
void add_bench(CLI::App& app, Parsed& parsed);

}  // namespace ductile::cli
