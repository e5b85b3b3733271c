#include "ductile/train/worker_program.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <c10/util/Exception.h>

#include "ductile/base/error.h"
#include "ductile/base/isa.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/log.h"
#include "ductile/base/paths.h"
#include "ductile/nn/memory.h"
#include "ductile/nn/threads.h"
#include "ductile/run/folder.h"
#include "ductile/run/progress.h"
#include "ductile/spec/job.h"
#include "ductile/train/environment.h"
#include "ductile/train/interrupt.h"
#include "ductile/train/profile.h"
#include "ductile/train/questions.h"
#include "ductile/train/serve.h"
#include "ductile/train/stage_runner.h"
#include "ductile/train/torch_error.h"
#include "ductile/train/workers.h"

namespace ductile::train {
namespace {

constexpr int kDone = 0, kConfiguration = 2, kFailed = 3, kInterrupted = 130;

struct Arguments {
  std::string run;
  int progress_fd = -1;
  bool describe = false;
  std::string model;    // a library whose model is asked about
  std::string ask;      // a question about the run's model (questions.h), as JSON
  std::string profile;  // what to measure of the operators of the run's model (profile.h), as JSON
  std::string serve;    // a request to serve the run's model (serve.h), as JSON
  bool stages = false;  // whether the job's stages are of the run's model, is asked
  uint64_t worker = 0;  // of a controller's; 0: this process runs the whole job
  net::Address controller, store;
  std::string address;  // of its host
  int64_t alone = 0;    // seconds that it goes on without a controller
};

Arguments parse(int argc, char** argv) {
  Arguments out;
  const auto value = [&](int& i) -> std::string {
    if (i + 1 >= argc) fail(ErrorCode::invalid_argument, "{} needs a value", argv[i]);
    return argv[++i];
  };
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--run") {
      out.run = value(i);
    } else if (arg == "--progress-fd") {
      out.progress_fd = std::atoi(value(i).c_str());
    } else if (arg == "--worker") {
      out.worker = std::strtoull(value(i).c_str(), nullptr, 10);
    } else if (arg == "--controller") {
      out.controller = net::Address::parse(value(i));
    } else if (arg == "--store") {
      out.store = net::Address::parse(value(i));
    } else if (arg == "--address") {
      out.address = value(i);
    } else if (arg == "--alone") {
      out.alone = std::strtoll(value(i).c_str(), nullptr, 10);
    } else if (arg == "--host") {
      value(i);  // for those who look for it among a host's processes
    } else if (arg == "--describe") {
      out.describe = true;
    } else if (arg == "--model") {
      out.model = value(i);
    } else if (arg == "--ask") {
      out.ask = value(i);
    } else if (arg == "--profile") {
      out.profile = value(i);
    } else if (arg == "--serve") {
      out.serve = value(i);
    } else if (arg == "--stages") {
      out.stages = true;
    } else {
      fail(ErrorCode::invalid_argument,
           "unknown argument {}; usage: ductile-worker --run DIR "
           "[--progress-fd N] [--worker ID --controller HOST:PORT --store HOST:PORT "
           "[--host NAME] [--address ADDRESS] [--alone SECONDS]] | "
           "--run DIR --ask JSON [--progress-fd N] | --run DIR --profile JSON [--progress-fd N] | "
           "--run DIR --stages [--progress-fd N] | "
           "--run DIR [--worker ID [--host NAME] [--address ADDRESS]] --serve JSON "
           "[--progress-fd N] | --model LIBRARY [--progress-fd N] | "
           "--describe",
           arg);
    }
  }
  if (out.run.empty() && out.model.empty() && !out.describe) {
    fail(ErrorCode::invalid_argument, "--run DIR is missing");
  }
  return out;
}

// For the command line, which links no torch: what a library says of its model.
int tell_of_model(const Arguments& arguments) {
  spec::ModelOptions options;
  options.library = arguments.model;
  run::write_line(arguments.progress_fd,
                  run::Done{{{"thread_invariant", nn::thread_invariant(options)}}});
  return kDone;
}

int run_job(const Arguments& arguments, const RecipeOf& own) {
  std::optional<ServeRequest> request;
  if (!arguments.serve.empty())
    request = ServeRequest::from_json(
        parse_json(arguments.serve, "--serve", ErrorCode::invalid_argument));
  const bool of_another = request && !request->run.empty();
  // Of a node this says less than it would here: others may see it, and this one later.
  if (of_another && request->front && kind_of(request->run / "job.toml") == FileKind::none)
    fail(ErrorCode::unavailable,
         "{}: there is no run here (no job.toml); what is served on several machines must lie on a "
         "file system that all of them share, under the same path",
         request->run.string());
  const run::RunFolder folder =
      run::RunFolder::open(of_another ? request->run : fs::path(arguments.run));
  spec::JobOptions job;
  OptionSet(job).read_toml(folder.job_file(), Moved::follow);
  spec::check(job);
  if (!job.python.object.empty() && !own) {
    fail(ErrorCode::invalid_argument,
         "{}: its model is Python's ({}), and this program runs no Python; in Python, "
         "ductile.load(\"{}\") gives the model with its weights",
         folder.path().string(), job.python.object, folder.path().string());
  }
  if (request && request->threads > 0) job.train.threads = request->threads;
  resolve_threads(job);
  prepare_torch(job);

  const auto row = [&](const nlohmann::json& values) {
    run::write_line(arguments.progress_fd, run::Row{values});
  };
  const auto interrupted = [] { return pending_interrupt() != 0; };
  if (request) {
    request->worker = arguments.worker;
    request->address = arguments.address;
    serve(std::move(*request), folder, job, row, interrupted);
    return kDone;
  }
  if (!arguments.ask.empty()) {
    const auto question =
        Question::from_json(parse_json(arguments.ask, "--ask", ErrorCode::invalid_argument));
    run::write_line(arguments.progress_fd,
                    run::Done{answer(question, folder, job, row, interrupted)});
    return kDone;
  }
  if (!arguments.profile.empty()) {
    const auto options = ProfileOptions::from_json(
        parse_json(arguments.profile, "--profile", ErrorCode::invalid_argument));
    run::write_line(arguments.progress_fd, run::Done{profile(job, options, row, interrupted)});
    return kDone;
  }
  if (arguments.stages) {
    run::write_line(arguments.progress_fd, run::Done{{{"wrong", fault_of_stages(job)}}});
    return kDone;
  }
  const Recipe recipe = own ? own(job) : Recipe();
  if (arguments.worker != 0) {
    work({folder, job, arguments.worker, arguments.controller, arguments.store, arguments.address,
          arguments.progress_fd, recipe, std::chrono::seconds(arguments.alone)});
    return kDone;
  }
  const run::RunLock lock(folder.path(), run::RunLock::kLocal);
  const link::JobEnd end = train_here(lock, {.folder = folder,
                                             .job = job,
                                             .recipe = recipe,
                                             .progress_fd = arguments.progress_fd,
                                             .interrupted = pending_interrupt});
  if (end.phase == control::Phase::failed) throw Error(end.error_code, end.reason);
  return end.phase == control::Phase::finished ? kDone : kInterrupted;
}

}  // namespace

int worker_program(int argc, char** argv, const RecipeOf& own) {
  nn::keep_freed_memory();
  catch_interrupts();
  Arguments arguments;
  try {
    // libtorch's own operators sum in another order with other vectors, and little of the time is
    // theirs. It reads this once, before its first operator.
    if (may_use(IsaLevel::avx2)) setenv("ATEN_CPU_CAPABILITY", "avx2", /*overwrite=*/0);
    arguments = parse(argc, argv);
    if (arguments.describe) {
      prepare_torch(spec::JobOptions());  // with the threads of a job, which libtorch's are not
      std::cout << dump_json(describe_environment(), 2) << "\n";
      return kDone;
    }
    return arguments.model.empty() ? run_job(arguments, own) : tell_of_model(arguments);
  } catch (const Error& e) {
    log_line(fmt::format("ductile-worker: {}", e.what()));
    run::write_line(arguments.progress_fd, run::Failed{e.code(), e.what()});
    return e.code() == ErrorCode::invalid_argument ? kConfiguration : kFailed;
  } catch (const c10::Error& e) {
    const Error error = error_of(e);
    log_line(fmt::format("ductile-worker: {}", e.what()));  // with its frames, for the log
    run::write_line(arguments.progress_fd, run::Failed{error.code(), error.what()});
    return kFailed;
  } catch (const std::bad_alloc&) {
    constexpr const char* kText = "there is no memory left (std::bad_alloc)";
    log_line(fmt::format("ductile-worker: {}", kText));
    run::write_line(arguments.progress_fd, run::Failed{ErrorCode::unavailable, kText});
    return kFailed;
  } catch (const std::exception& e) {
    log_line(fmt::format("ductile-worker: {}", e.what()));
    run::write_line(arguments.progress_fd, run::Failed{ErrorCode::internal, e.what()});
    return kFailed;
  }
}

}  // namespace ductile::train
