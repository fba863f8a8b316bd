// `deltatune doctor`: what this program is made of and what the machine offers it.
#include <algorithm>
#include <cstdio>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "build_info.h"
#include "cli/verbs.h"
#include "io/model_path.h"
#include "observe/machine.h"
#include "ops/cuda_plugin.h"

namespace deltatune::cli {
namespace {

// Instruction sets the cpu kernels are compiled for that this machine lacks.
std::vector<std::string> missing_instructions(const Machine& machine) {
  std::vector<std::string> missing;
  for (const char* flag : build_info::cpu_needs) {
    const bool there =
        std::find(machine.cpu_flags.begin(), machine.cpu_flags.end(), flag) != machine.cpu_flags.end();
    if (flag[0] != '\0' && !there) missing.emplace_back(flag);
  }
  return missing;
}

json::Array strings(const std::vector<std::string>& list) {
  return json::Array(list.begin(), list.end());
}

json::Value facts_json(const Machine& machine, const std::vector<std::string>& missing) {
  json::Value program;
  program.set("version", build_info::version);
  program.set("commit", build_info::commit);
  program.set("compiler", build_info::compiler);
  program.set("cuda_archs", build_info::cuda_archs);
  json::Value libraries{json::Object{}};
  for (const build_info::Library& library : build_info::libraries)
    libraries.set(library.name, library.version);
  json::Value host;
  host.set("host", machine.host);
  host.set("system", machine.system);
  host.set("distribution", machine.distribution);
  host.set("cpu", machine.cpu);
  host.set("cpu_flags", strings(machine.cpu_flags));
  host.set("cpu_flags_missing", strings(missing));
  host.set("cores", machine.cores);
  host.set("cpu_quota", machine.cpu_quota);
  host.set("threads_used", thread_count());
  host.set("memory_bytes", machine.memory_bytes);
  host.set("memory_available_bytes", machine.memory_available_bytes);
  host.set("gpus", strings(machine.gpus));
  host.set("gpus_note", machine.gpus_note);
  json::Value environment{json::Object{}};
  for (const auto& [name, text] : launch_environment()) environment.set(name, text);
  json::Value root;
  root.set("program", std::move(program));
  root.set("libraries", std::move(libraries));
  root.set("machine", std::move(host));
  root.set("hugging_face_cache", hf_hub_cache().string());
  root.set("environment", std::move(environment));
  return root;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

void line(const std::string& name, const std::string& text) {
  std::printf("%-14s %s\n", name.c_str(), text.c_str());
}

void print_machine(const Machine& machine, const std::vector<std::string>& missing) {
  line("machine", format("{}, {}, {}", machine.host, machine.distribution, machine.system));
  line("cpu", format("{}, {}{}, {} used", machine.cpu.empty() ? "unknown" : machine.cpu,
                     counted(machine.cores, "core"),
                     machine.cpu_quota > 0 ? format(" (limited to {:g})", machine.cpu_quota) : "",
                     counted(thread_count(), "thread")));
  line("instructions", joined(machine.cpu_flags));
  line("memory", format("{}, {} available", format_bytes(static_cast<uint64_t>(machine.memory_bytes)),
                        format_bytes(static_cast<uint64_t>(machine.memory_available_bytes))));
  for (const std::string& gpu : machine.gpus) line("gpu", gpu);
  if (machine.gpus.empty()) line("gpu", "none: " + machine.gpus_note);
  line("device cpu", missing.empty() ? "usable" : "not usable: the processor lacks " + joined(missing));
  std::string why;
  const CudaPlugin* plugin = cuda_plugin(why);
  const bool usable = plugin && plugin->device_count(why) > 0;
  line("device cuda", usable ? "usable" : "not usable: " + why);
  for (std::string text = plugin ? plugin->versions() : ""; !text.empty();) {
    const size_t end = std::min(text.find('\n'), text.size());
    line("", text.substr(0, end));
    text.erase(0, std::min(end + 1, text.size()));
  }
}

}  // namespace

int verb_doctor(const Invocation& call) {
  const Machine machine = this_machine();
  const std::vector<std::string> missing = missing_instructions(machine);
  const int code = missing.empty() ? 0 : exit_code(ErrorKind::resource);
  if (call.config().json) {
    std::printf("%s\n", json::dump(facts_json(machine, missing), 2).c_str());
    return code;
  }
  line("deltatune",
       format("{}, commit {}, {}", build_info::version, build_info::commit, build_info::compiler));
  for (const build_info::Library& library : build_info::libraries) line(library.name, library.version);
  print_machine(machine, missing);
  line("model cache", hf_hub_cache().string());
  const auto environment = launch_environment();
  for (const auto& [name, text] : environment) line("environment", format("{}={}", name, text));
  if (environment.empty()) line("environment", "no launcher's variables, none of deltatune's own");
  return code;
}

}  // namespace deltatune::cli
