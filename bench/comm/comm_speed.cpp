// Speed of collectives between the GPUs of this machine, one process each: latency of a barrier, bytes that a
// rank receives per second of gathering and of reducing, alone and captured. Prints lines of JSON.
#include <chrono>
#include <cstdio>
#include <string>

#include "cuda_ranks/gpu_ranks.h"

namespace deltatune {
namespace {

using gpu_ranks::Rank;

// Seconds of one call, of `repeats` behind each other, on the device's clock.
template <class F>
double seconds_of(Stream& stream, int repeats, const F& call) {
  for (int i = 0; i < 3; ++i) call();
  Moment begin, end;
  stream.mark(begin);
  for (int i = 0; i < repeats; ++i) call();
  stream.mark(end);
  return stream.seconds_between(begin, end) / repeats;
}

void print(const Rank& self, const char* what, double bytes, double seconds) {
  if (self.comm->rank() != 0) return;
  std::printf("{\"ranks\": %d, \"call\": \"%s\", \"received_bytes\": %.0f, \"us\": %.2f, \"gb_s\": %.1f}\n",
              self.comm->world_size(), what, bytes, seconds * 1e6, bytes / seconds * 1e-9);
  std::fflush(stdout);
}

void measure(Rank& self) {
  Communicator& comm = *self.comm;
  const int n = comm.world_size();
  const auto stream = self.device->make_stream("comm");
  // A block of the 27B model: 383 million weights.
  const int64_t whole = 383'273'216 / (64 * n) * (64 * n), part = whole / n;
  const Buffer memory =
      self.device->allocate(static_cast<size_t>(whole) * 8, "buffers", "bench", Lifetime::run);
  const Tensor full{memory.data(), DType::f32, {whole}};
  const Tensor narrow{memory.data(), DType::bf16, {whole}};
  const Tensor chunk{memory.data() + static_cast<size_t>(whole) * 4, DType::f32, {part}};
  const Tensor narrow_chunk{chunk.data, DType::bf16, {part}};
  const Tensor small{chunk.data, DType::f64, {1}};
  stream->upload(small, std::string(8, '\0').data());
  stream->sync();
  print(self, "barrier", 0, seconds_of(*stream, 1000, [&] { comm.barrier(*stream); }));
  print(self, "all_reduce f64 [1]", 8, seconds_of(*stream, 500, [&] { comm.all_reduce(*stream, small); }));
  const double others = static_cast<double>(part) * (n - 1);
  print(self, "all_gather bf16", 2 * others,
        seconds_of(*stream, 20, [&] { comm.all_gather(*stream, narrow, narrow_chunk); }));
  print(self, "reduce_scatter f32", 4 * others,
        seconds_of(*stream, 20, [&] { comm.reduce_scatter(*stream, chunk, full); }));
  print(self, "reduce_scatter_add f32", 4 * others,
        seconds_of(*stream, 20, [&] { comm.reduce_scatter_add(*stream, chunk, full); }));
  print(self, "reduce_scatter bf16 to f32", 2 * others,
        seconds_of(*stream, 20, [&] { comm.reduce_scatter(*stream, chunk, narrow); }));
  stream->begin_capture();
  for (int i = 0; i < 100; ++i) comm.barrier(*stream);
  const Graph graph = stream->end_capture();
  print(self, "barrier in a graph", 0, seconds_of(*stream, 10, [&] { stream->launch(graph); }) / 100);
  comm.check_peers();
}

}  // namespace
}  // namespace deltatune

int main(int argc, char** argv) {
  using namespace deltatune;
  std::string why;
  const int ranks = gpu_ranks::rank_count(why);
  if (ranks < 2) {
    std::fprintf(stderr, "%s\n", why.c_str());
    return 1;
  }
  CommOptions options;
  options.timeout = std::chrono::seconds(30);
  options.transport = argc > 1 && std::string(argv[1]) == "nccl" ? CommTransport::nccl : CommTransport::peer;
  int worst = 0;
  for (const int code : gpu_ranks::on_gpus(ranks, options, measure)) worst = code == 0 ? worst : 1;
  return worst;
}
