// ductile-worker: one process that hosts virtual ranks of one job. Started by the command line, or
// forked by one that was started as a zygote.
#include <string>
#include <string_view>
#include <vector>

#include "ductile/process/forked_worker.h"
#include "ductile/process/zygote.h"
#include "ductile/train/worker_program.h"

int main(int argc, char** argv) {
  using namespace ductile;
  if (argc < 2 || std::string_view(argv[1]) != process::kZygote)
    return train::worker_program(argc, argv);
  std::vector<std::string> words = process::become_worker(argv[0]);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return train::worker_program(static_cast<int>(words.size()), pointers.data());
}
