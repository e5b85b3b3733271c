#include "ductile/run/report.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <optional>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/isa.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/base/paths.h"
#include "ductile/page/html.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"
#include "ductile/run/blas_kernels.h"
#include "ductile/run/checkpoints.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/metrics.h"
#include "ductile/run/minima.h"
#include "ductile/run/report_impl.h"
#include "ductile/run/trace.h"
#include "ductile/spec/job.h"

namespace ductile::run {
namespace {

using nlohmann::json;
using page::as_bytes;
using page::as_duration;
using page::as_energy;
using page::as_number;
using page::as_percent;
using page::Cell;
using page::escape_html;
using page::local_time;
using page::plural;
using page::shell_word;
using page::Tile;
using page::with_thousands;

constexpr size_t kEventRows = 400;  // the first and last half of these; the rest is in the file

// The job as far as its file can be read.
struct Job {
  spec::JobOptions options;
  OptionSet set{options};
  std::string error;   // why the file could not be read; then `options` are the defaults
  bool is_job = true;  // false: a program logged the run by itself, and the file has its name alone
};

void read_job(Job& job, std::string_view toml) {
  job.is_job = !toml.starts_with("# No job");  // python/ductile/_logs.py
  try {
    job.set.read_toml_text(toml, "job.toml", Moved::follow);
  } catch (const Error& e) {
    job.error = e.what();
  }
}

// Empty: there is none.
std::string job_text(const RunFolder& folder) {
  try {
    return read_file(folder.job_file());
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    return "";
  }
}

std::string where(const Point& p) {
  return fmt::format("step {}, {}", with_thousands(static_cast<double>(p.step)),
                     as_duration(p.seconds));
}

// What the run is judged by: test accuracy, else perplexity, else loss, else the training loss.
void add_quality(std::vector<Tile>& tiles, const History& history) {
  if (const Curve* c = history.find(kEvalAccuracy); c != nullptr && c->highest) {
    tiles.push_back({"Best test accuracy", as_percent(c->highest->value),
                     fmt::format("{}; last {}", where(*c->highest), as_percent(c->last->value)),
                     true});
    return;
  }
  struct Fallback {
    std::string_view name;
    const char* label;
  };
  for (const Fallback f :
       {Fallback{kEvalPerplexity, "Best test perplexity"}, Fallback{kEvalLoss, "Best test loss"},
        Fallback{kTrainLoss, "Lowest training loss"}}) {
    if (const Curve* c = history.find(f.name); c != nullptr && c->lowest) {
      tiles.push_back({f.label, as_number(c->lowest->value),
                       fmt::format("{}; last {}", where(*c->lowest), as_number(c->last->value)),
                       true});
      return;
    }
  }
}

// A run may go on with another target than the one that it reached, or with none. Of a job that
// nobody can read it is not known.
bool has_reached(const History& history, const Job& job) {
  if (!history.target) return false;
  if (!job.is_job || !job.error.empty()) return true;
  const spec::TargetOptions& want = job.options.target;
  return history.target->metric == want.metric && history.target->threshold == want.value;
}

void add_target(std::vector<Tile>& tiles, const History& history, const Job& job) {
  const spec::TargetOptions& want = job.options.target;
  if (has_reached(history, job)) {
    const TargetReached& t = *history.target;
    std::string note = fmt::format("{} {} at step {}", t.metric, page::as_metric(t.metric, t.value),
                                   with_thousands(static_cast<double>(t.step)));
    if (t.samples) note += ", " + plural(static_cast<double>(*t.samples), "sample");
    if (t.cost) note += ", " + as_duration(t.cost->core_seconds) + " of core time";
    if (t.cost && t.cost->energy_joules) {
      note += ", " + as_energy(*t.cost->energy_joules);
    }
    tiles.push_back(
        {"Time to target", as_duration(t.cost ? t.cost->wall_seconds : t.seconds), note, true});
  } else if (!want.metric.empty()) {
    tiles.push_back(
        {"Time to target", "not reached",
         fmt::format("{} at {} {}", want.metric, want.metric == "accuracy" ? "least" : "most",
                     page::as_metric(want.metric, want.value)),
         true});
  }
}

// As the summary has it, if there is one: the lines of a run of a few steps say little.
void add_throughput(std::vector<Tile>& tiles, const History& history) {
  const Curve* c = history.find(kSamplesPerSecond);
  double mean = number_at(history.figures, "samples_per_second");
  // Of steps that are alike in size.
  if (!(mean > 0) && c != nullptr && history.find(kBatchSize) == nullptr) mean = c->mean_rate;
  if (!(mean > 0) || !std::isfinite(mean)) return;
  std::string note = "samples, mean since the last start or resumption";
  if (c != nullptr && c->last) note += "; last " + with_thousands(c->last->value);
  tiles.push_back({"Throughput", with_thousands(mean) + " /s", note});
}

void add_cost(std::vector<Tile>& tiles, const History& history) {
  const double wall = history.cost ? history.cost->wall_seconds : history.seconds;
  if (wall > 0) {
    tiles.push_back({"Run time", as_duration(wall), "all parts of the run, pauses left out"});
  }
  add_throughput(tiles, history);
  if (history.steps == 0) return;
  std::string trained;
  if (history.samples) trained = plural(static_cast<double>(*history.samples), "sample") + ", ";
  trained += fmt::format("{:.4g} epoch{}", history.epoch, history.epoch == 1 ? "" : "s");
  tiles.push_back({"Steps", with_thousands(static_cast<double>(history.steps)), trained});
  if (!history.cost) return;
  const Cost& cost = *history.cost;
  std::string note;
  if (cost.wall_seconds > 0) {
    note = fmt::format("{:.1f} cores busy on average", cost.core_seconds / cost.wall_seconds);
  }
  if (!cost.energy_joules) note += std::string(note.empty() ? "" : "; ") + "energy not measured";
  tiles.push_back({"Core time", as_duration(cost.core_seconds), note});
  if (cost.energy_joules) {
    tiles.push_back(
        {"Energy", as_energy(*cost.energy_joules), "processors and memory of the whole machine"});
  }
  if (cost.peak_rss_bytes > 0) {
    tiles.push_back({"Peak memory", as_bytes(static_cast<double>(cost.peak_rss_bytes)),
                     "largest resident set"});
  }
}

void add_checkpoints(std::vector<Tile>& tiles, const History& history) {
  int64_t count = 0;
  double written = 0;
  double waited = 0;
  for (const json& event : history.events) {
    if (event.value("kind", json()) != "checkpoint") continue;
    ++count;
    double value = 0;
    const auto add = [&](const char* key, double& sum) {
      const auto at = event.find(key);
      if (at != event.end() && number_from_json(*at, value) && std::isfinite(value)) sum += value;
    };
    add(event.contains("bytes_written") ? "bytes_written" : "bytes", written);
    add("blocking_ms", waited);
  }
  if (count == 0) return;
  std::string note =
      fmt::format("{} written; training waited {}", as_bytes(written), as_duration(waited / 1e3));
  if (history.seconds > 0) {
    note += fmt::format(", {:.2g} % of the time", waited / 10 / history.seconds);
  }
  tiles.push_back({"Checkpoints", with_thousands(static_cast<double>(count)), note});
}

std::string tiles_html(const History& history, const Job& job) {
  std::vector<Tile> tiles;
  add_quality(tiles, history);
  report::add_classes(tiles, history.figures);
  add_target(tiles, history, job);
  add_cost(tiles, history);
  report::add_work(tiles, history.figures);
  report::add_noise(tiles, history.figures);
  add_checkpoints(tiles, history);
  return page::tiles(tiles);
}

std::string notices_html(const History& history, const Job& job) {
  std::string out;
  const auto notice = [&](std::string_view text) {
    out += fmt::format("<p class=\"banner\">{}</p>\n", escape_html(text));
  };
  if (history.status == Status::failed) {
    notice("The run failed" + (history.error.empty() ? "." : ": " + history.error));
  }
  for (const Curve& c : history.curves) {
    if (c.non_finite == 0) continue;
    notice(fmt::format("{} was not a finite number {} time{}, first at step {}.", c.name,
                       c.non_finite, c.non_finite == 1 ? "" : "s", c.first_non_finite_step));
  }
  if (history.bad_lines > 0) {
    notice(fmt::format("{} of the run's records could not be read and {} left out.",
                       plural(static_cast<double>(history.bad_lines), "line"),
                       history.bad_lines == 1 ? "is" : "are"));
  }
  if (!job.error.empty()) notice("The configuration could not be read: " + job.error);
  return out;
}

std::vector<Cell> event_cells(const json& event, const report::Row& row) {
  double seconds = NAN;
  double step = NAN;
  double time = NAN;
  if (event.contains("seconds")) number_from_json(event["seconds"], seconds);
  if (event.contains("step")) number_from_json(event["step"], step);
  if (event.contains("time")) number_from_json(event["time"], time);
  return {Cell(std::isfinite(seconds) ? as_duration(seconds) : "").with_title(local_time(time)),
          std::isfinite(step) ? with_thousands(step) : "",
          Cell::of_markup(
              fmt::format("<span class=\"kind {}\">{}</span>", row.tone, escape_html(row.kind))),
          row.text};
}

std::string events_html(const History& history, const spec::JobOptions& job) {
  const std::vector<report::ShownEvent> events = report::shown_events(history, job);
  if (events.empty()) return "<p class=\"empty\">No events yet.</p>\n";
  page::HtmlTable table({{"Time", true}, {"Step", true}, {"Event"}, {""}}, "events");
  for (size_t i = 0; i < events.size(); ++i) {
    if (events.size() > kEventRows && i == kEventRows / 2) {
      const size_t hidden = events.size() - kEventRows;
      const std::string text = fmt::format("{} more events are in events.jsonl",
                                           with_thousands(static_cast<double>(hidden)));
      table.row({"", "", "", Cell(text).with_tone("muted")});
      i += hidden;
    }
    table.row(event_cells(*events[i].event, events[i].row));
  }
  return "<div id=\"strip\"></div>\n<div id=\"kinds\" class=\"chips\"></div>\n" + table.html();
}

std::string config_html(const Job& job, std::string_view toml) {
  if (!job.error.empty()) return fmt::format("<pre>{}</pre>\n", escape_html(toml));
  struct Line {
    std::string section, key, value, standard, help;
    bool differs() const { return value != standard; }
  };
  std::vector<Line> lines;
  std::set<std::string> touched;  // sections with something that is not the default
  for (const OptionField& f : job.set.fields()) {
    const size_t dot = f.path.rfind('.');
    lines.push_back({dot == std::string::npos ? "" : f.path.substr(0, dot),
                     dot == std::string::npos ? f.path : f.path.substr(dot + 1), to_toml(f.ref),
                     to_toml(f.default_value), f.help});
    if (lines.back().differs()) touched.insert(lines.back().section);
  }
  page::HtmlTable table({{""}, {""}}, "config");
  std::string section;
  for (const Line& line : lines) {
    if (line.section != section) {
      section = line.section;
      table.row({Cell("[" + section + "]").across(2)},
                touched.contains(section) ? "head" : "head untouched");
    }
    std::string value = fmt::format("<code>{}</code>", escape_html(line.value));
    if (line.differs()) {
      value += fmt::format(" <span class=\"muted\">default {}</span>", escape_html(line.standard));
    }
    table.row({line.key, Cell::of_markup(value)}, line.differs() ? "changed" : "same", line.help);
  }
  const auto changed =
      std::count_if(lines.begin(), lines.end(), [](const Line& l) { return l.differs(); });
  return fmt::format(
      "<label class=\"check\"><input type=\"checkbox\" id=\"all-options\"> show all {} options "
      "({} differ from the default)</label>\n<div id=\"config\">{}</div>\n",
      lines.size(), changed, table.html());
}

std::string host_html(const json& host) {
  if (!host.is_object() || host.empty()) return "<p class=\"empty\">Not recorded.</p>\n";
  page::HtmlTable table({{""}, {""}}, "host");
  for (const auto& [key, value] : host.items()) {
    std::string text = value.is_string() ? value.get<std::string>() : dump_json(value);
    if (value.is_number() && key.ends_with("_bytes")) text = as_bytes(value.get<double>());
    std::string label = key.ends_with("_bytes") ? key.substr(0, key.size() - 6) : key;
    std::replace(label.begin(), label.end(), '_', ' ');
    table.row({label, text});
  }
  std::string out = table.html();
  const std::string kernels = report::text_at(host, "kernels");  // of Ductile, by the processor
  const IsaLevel widest = kernels.starts_with("avx512") ? IsaLevel::avx512
                          : kernels == "avx2"           ? IsaLevel::avx2
                                                        : IsaLevel::baseline;
  const auto core = host.find("blas_kernels");
  if (core == host.end() || !core->is_string()) return out;
  if (const auto advice = blas_advice(core->get<std::string>(), widest))
    out += fmt::format("<p class=\"empty\">{}</p>\n", escape_html(*advice));
  return out;
}

// A run was given its first weights beside the job, and the batches that goodput ordered are in its
// checkpoint.
std::string command_to_repeat(const RunFolder& folder, const Job& job, bool is_done) {
  if (is_done && job.options.train.rate_control == "goodput")
    return "ductile train --replay " + shell_word(folder.path().string());
  std::string command = "ductile train " + shell_word(folder.job_file().string());
  const fs::path weights = initial_weights_of(folder);
  if (kind_of(weights) != FileKind::none) command += " --weights " + shell_word(weights.string());
  return command;
}

// What is copied from the page: commands, and by what runs are compared.
std::string commands_html(const RunFolder& folder, const History& history, const Job& job) {
  struct Command {
    const char* what;
    std::string text;
  };
  const std::string path = shell_word(folder.path().string());
  std::vector<Command> commands;
  const bool is_done = history.status == Status::done || history.status == Status::target_reached;
  if (job.is_job && !is_done)
    commands.push_back({"Continue this run, bit-exactly", "ductile train --resume " + path});
  if (job.is_job)
    commands.push_back({"Run it again from the start", command_to_repeat(folder, job, is_done)});
  commands.push_back({"Curves in TensorBoard",
                      "tensorboard --logdir " + shell_word(folder.tensorboard().string())});
  if (!history.digest.empty())
    commands.push_back({"State digest: equal where runs end in the same bits", history.digest});
  if (const auto weights = history.figures.find("weights_digest");
      !history.digest.empty() && weights != history.figures.end() && weights->is_string())
    commands.push_back(
        {"Digest of the weights: that of model.safetensors, as `ductile eval` shows it",
         weights->get<std::string>()});
  std::string out;
  for (const Command& c : commands) {
    out += fmt::format(
        "<div class=\"command\"><div class=\"label\">{}</div><div class=\"line\">"
        "<code>{}</code><button type=\"button\" class=\"copy\">Copy</button></div>"
        "</div>\n",
        c.what, escape_html(c.text));
  }
  return out;
}

// "mlp on idx, fp32 · sgd, learning rate 0.1, cosine schedule".
std::string job_sentence(const spec::JobOptions& job) {
  const std::string& rule = job.optimizer.name;
  std::string how = "the program's own optimizer";
  if (job.train.rate_control == "lrtuner") {
    how = rule;
  } else if (rule != "python") {
    how = fmt::format("{}, learning rate {:.4g}, {} schedule", rule, job.optimizer.lr,
                      job.schedule.name);
  }
  if (job.train.rate_control != "schedule") how += ", rate control " + job.train.rate_control;
  return fmt::format("{} on {}, {} \u00b7 {}", job.model.name, job.data.format, job.train.precision,
                     how);
}

// " from job.toml and events.jsonl": the files that there are.
std::string sources_text(const RunFolder& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const fs::path& file : {folder.job_file(), folder.events_file(), folder.metrics_file(),
                               minima_file(folder), trace_file(folder), plan_file(folder)}) {
    if (fs::exists(file, ignored)) names.push_back(file.filename().string());
  }
  if (names.empty()) return "";
  const std::string last = names.back();
  names.pop_back();
  return fmt::format(" from {}{}{}", fmt::join(names, ", "), names.empty() ? "" : " and ", last);
}

struct StatusText {
  const char* text;
  const char* tone;
};

StatusText status_text(Status status) {
  switch (status) {
    case Status::unfinished:
      return {"Not finished", "notice"};
    case Status::done:
      return {"Done", "good"};
    case Status::target_reached:
      return {"Target reached", "good"};
    case Status::interrupted:
      return {"Interrupted", "notice"};
    case Status::failed:
      return {"Failed", "bad"};
  }
  return {"Not finished", "notice"};
}

}  // namespace

std::string report_html(const RunFolder& folder, const History& history,
                        std::string_view job_toml) {
  Job job;
  read_job(job, job_toml);
  const spec::JobOptions& o = job.options;
  const StatusText status = status_text(history.status);

  std::string about = fmt::format("<code>{}</code>", escape_html(folder.name()));
  if (job.error.empty() && !job_toml.empty() && job.is_job)
    about = fmt::format("{} \u00b7 {}", escape_html(job_sentence(o)), about);
  if (history.begin_time > 0) {
    about += fmt::format(" \u00b7 {} to {}", local_time(history.begin_time),
                         local_time(history.end_time));
  }
  page::Page page;
  page.kind = "Ductile run";
  page.title = job_toml.empty() || !job.error.empty() ? folder.name() : o.name;
  page.status = status.text;
  page.tone = status.tone;
  page.about = {about};
  page.style = kReportCss;
  page.body = notices_html(history, job) + tiles_html(history, job);
  page.body +=
      "<section><div class=\"bar\"><h2>Curves</h2><div id=\"controls\" class=\"controls\"></div>"
      "</div>\n<div id=\"panels\" class=\"panels\"></div><div id=\"marks\" class=\"keys\"></div>\n"
      "<noscript><p class=\"empty\">The curves are drawn by a script in this page; the numbers "
      "are in metrics.jsonl.</p></noscript></section>\n";
  if (const std::string classes = report::classes_html(history.figures); !classes.empty())
    page.body += page::section("Classes", classes);
  if (const std::string rounds = report::probe_rounds_html(history); !rounds.empty())
    page.body += page::section("Learning-rate probes", rounds);
  if (const std::string trials = report::tuning_html(history); !trials.empty())
    page.body += page::section("Tuning", trials);
  const std::vector<json> minima = read_minima(folder);
  if (const std::string table = report::minima_html(minima); !table.empty())
    page.body += page::section("Sharpness of the minimum", table);
  if (const std::string trace = report::trace_html(folder, o.train.pipelined.replicas);
      !trace.empty())
    page.body += page::section("Pipeline timeline", trace);
  if (const std::string memory = report::memory_html(history, folder); !memory.empty())
    page.body += page::section("Memory of the workers", memory);
  page.body += page::section("What happened", events_html(history, o));
  page.body += "<div class=\"columns\">";
  if (job.is_job) page.body += page::section("Configuration", config_html(job, job_toml));
  page.body += "<div>" + page::section("Do it again", commands_html(folder, history, job)) +
               page::section("Machine", host_html(history.host)) + "</div></div>\n";
  page.footer = fmt::format("Written {}{}.", local_time(static_cast<double>(std::time(nullptr))),
                            sources_text(folder));
  json data = report::chart_data(history, o);
  data["slices"] = report::slices_data(minima);
  page.data = dump_json(data);
  page.scripts = {kReportJs};
  return page::to_html(page);
}

void write_report(const RunFolder& folder) {
  write_chrome_trace(folder);
  write_file_atomic(folder.report_file(),
                    report_html(folder, read_history(folder), job_text(folder)));
}

json report_json(const RunFolder& folder) {
  Job job;
  read_job(job, job_text(folder));
  History history = read_history(folder);
  if (!has_reached(history, job)) history.target.reset();
  return to_json(history);
}

json chart_data(const RunFolder& folder) {
  Job job;
  read_job(job, job_text(folder));
  return report::chart_data(read_history(folder), job.options);
}

std::string leave_report(const RunFolder& folder) {
  try {
    write_report(folder);
    return "";
  } catch (const std::exception& e) {
    return fmt::format(
        "the report could not be written ({}); nothing else of the run is lost, and `ductile "
        "report {}` writes it once that is mended",
        e.what(), folder.path().string());
  }
}

}  // namespace ductile::run
