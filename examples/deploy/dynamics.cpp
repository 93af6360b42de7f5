// Molecular dynamics at constant energy with forces from an artifact: velocity Verlet.
//
//   dynamics ARTIFACT ATOMS STEPS TIME_STEP
//
// The artifact takes positions, float64[atoms, 3], and returns energy and forces. Atoms have mass
// 1 and start on a grid. Prints the total energy, its drift, and the time that a step takes.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Loader = torch::inductor::AOTIModelPackageLoader;

struct Forces {
  double energy;
  at::Tensor forces;
};

Forces compute(Loader& model, const at::Tensor& positions) {
  auto results = model.run({positions});
  if (results.size() != 2 || results[1].sizes() != positions.sizes()) {
    throw std::runtime_error("the artifact has to return energy and forces");
  }
  return {results[0].item<double>(), results[1]};
}

// A cubic grid, a little out of order so that forces don't cancel.
at::Tensor grid(int64_t atoms) {
  int64_t side = 1;
  while (side * side * side < atoms) {
    ++side;
  }
  auto positions = at::empty({atoms, 3}, at::kDouble);
  auto place = positions.accessor<double, 2>();
  for (int64_t atom = 0; atom < atoms; ++atom) {
    const int64_t cell[3] = {atom % side, (atom / side) % side, atom / (side * side)};
    for (int64_t axis = 0; axis < 3; ++axis) {
      place[atom][axis] = 1.2 * static_cast<double>(cell[axis]) +
          0.05 * std::sin(static_cast<double>(7 * atom + 3 * axis));
    }
  }
  return positions;
}

double kinetic(const at::Tensor& velocities) {
  return 0.5 * velocities.square().sum().item<double>();
}

void run(const std::string& path, int64_t atoms, int64_t steps, double time_step) {
  const c10::InferenceMode inference;
  Loader model(path);
  auto positions = grid(atoms);
  auto velocities = at::zeros_like(positions);
  auto now = compute(model, positions);
  const double first = now.energy;
  double drift = 0.0;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < steps; ++step) {
    velocities.add_(now.forces, 0.5 * time_step);
    positions.add_(velocities, time_step);
    now = compute(model, positions);
    velocities.add_(now.forces, 0.5 * time_step);
    drift = std::max(drift, std::abs(now.energy + kinetic(velocities) - first));
  }
  const std::chrono::duration<double, std::micro> passed =
      std::chrono::steady_clock::now() - start;
  std::printf("energy at the start %.15g\n", first);
  std::printf("energy at the end %.15g\n", now.energy + kinetic(velocities));
  std::printf("kinetic energy at the end %.15g\n", kinetic(velocities));
  std::printf("largest drift %.3g\n", drift);
  std::printf("microseconds per step %.1f\n", passed.count() / static_cast<double>(steps));
}

} // namespace

int main(int count, char** words) {
  if (count != 5) {
    std::fprintf(stderr, "usage: %s ARTIFACT ATOMS STEPS TIME_STEP\n", words[0]);
    return 2;
  }
  try {
    run(words[1], std::stoll(words[2]), std::stoll(words[3]), std::stod(words[4]));
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
