// All programs of TensorHub in one file, for packages: they share most of their code, and one file
// has it once.
//
//   tensorhub th list          # the program's name comes first
//   th list                    # where `th` is a link to this file
#include <array>
#include <cstring>
#include <iostream>
#include <string_view>

#include "th/cli/th_program.h"
#include "th/controlled_rank/controlled_rank.h"
#include "th/server/server_program.h"
#include "th/worker/worker_program.h"

namespace {

struct Program {
  std::string_view name;
  int (*run)(int argc, char** argv);
};

constexpr std::array<Program, 4> kPrograms = {{
    {"th", th::RunTh},
    {"tensorhub_server", [](int argc, char** argv) { return th::RunServerProgram(argc, argv); }},
    {"tensorhub_worker", th::RunWorkerProgram},
    {"controlled_rank", th::RunControlledRank},  // what `th demo` starts
}};

constexpr int kUsage = 2;

std::string_view FileNameOf(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Null: it is none of them.
const Program* FindProgram(std::string_view name) {
  for (const Program& program : kPrograms) {
    if (program.name == name) return &program;
  }
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 1) return kUsage;
  const Program* program = FindProgram(FileNameOf(argv[0]));
  if (program == nullptr && argc > 1) {
    program = FindProgram(argv[1]);
    --argc;
    ++argv;
  }
  if (program != nullptr) return program->run(argc, argv);
  std::cerr << "usage: tensorhub PROGRAM [ARGUMENT...]\n\nPROGRAM is th, tensorhub_server or "
               "tensorhub_worker; PROGRAM --help says more.\n";
  return kUsage;
}
