// Writing, reading and loading of checkpoints that are as they should be, or do not fit.
#include "app/checkpoint/safetensors.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "app/checkpoint/safetensors_header.h"
#include "tests/app/run_scratch.h"

namespace axial::app {
namespace {

namespace fs = std::filesystem;
using testing::get;
using testing::message_of;
using testing::Scratch;

at::TensorOptions of(at::ScalarType type) { return at::TensorOptions().dtype(type).device(at::kCPU); }

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

TEST(Safetensors, EveryTypeAndShapeComesBackBitForBit) {
  const Scratch scratch;
  SafetensorsFile file;
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kInt,
                                    at::kShort, at::kChar, at::kByte, at::kBool}) {
    const std::string name = c10::toString(type);
    file.tensors[name + ".matrix"] = at::arange(15, of(at::kFloat)).remainder(7).to(type).reshape({3, 5});
    file.tensors[name + ".scalar"] = at::ones({}, of(type));
    file.tensors[name + ".empty"] = at::empty({0, 4}, of(type));
    file.tensors[name + ".odd"] = at::ones({3}, of(type));
  }
  file.tensors["transposed"] = at::arange(6, of(at::kFloat)).reshape({2, 3}).t();
  file.tensors["expanded"] = at::ones({1}, of(at::kFloat)).expand({4});
  file.tensors["offset"] = at::arange(9, of(at::kHalf)).slice(0, 1);
  file.tensors["nan"] = at::full({2}, std::numeric_limits<double>::quiet_NaN(), of(at::kDouble));
  file.tensors["leaf"] = at::ones({2}, of(at::kFloat)).set_requires_grad(true);
  file.tensors["a \"name\" / with ü and \\"] = at::ones({1}, of(at::kByte));
  file.tensors[""] = at::ones({1}, of(at::kByte));
  file.metadata = {{"step", "12"}, {"text", "line\nand \"quotes\" and ü"}, {"", ""}};
  const fs::path path = scratch / "x.safetensors";
  write_safetensors(path, file);
  const SafetensorsFile back = read_safetensors(path);
  EXPECT_EQ(back.metadata, file.metadata);
  ASSERT_EQ(back.tensors.size(), file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) {
    ASSERT_EQ(back.tensors.count(name), 1u) << name;
    EXPECT_TRUE(same_bytes(back.tensors.at(name), tensor.detach())) << name;
    EXPECT_TRUE(back.tensors.at(name).is_contiguous());
    EXPECT_FALSE(back.tensors.at(name).requires_grad());
  }
  // Equal content, equal bytes; and what was read can be written again.
  write_safetensors(scratch / "y.safetensors", back);
  EXPECT_EQ(get(path), get(scratch / "y.safetensors"));
  EXPECT_EQ(testing::names_in(scratch.path()).size(), 2u);
}

TEST(Safetensors, NothingAtAllComesBack) {
  const Scratch scratch;
  write_safetensors(scratch / "x", {});
  const SafetensorsFile back = read_safetensors(scratch / "x");
  EXPECT_TRUE(back.tensors.empty());
  EXPECT_TRUE(back.metadata.empty());
}

TEST(Safetensors, DataAreAligned) {
  const Scratch scratch;
  SafetensorsFile file;
  for (int i = 0; i < 5; ++i) {
    file.tensors["byte" + std::to_string(i)] = at::ones({i}, of(at::kByte));
    file.tensors["float" + std::to_string(i)] = at::ones({i}, of(at::kFloat));
    file.tensors["double" + std::to_string(i)] = at::ones({i}, of(at::kDouble));
    file.tensors["half" + std::to_string(i)] = at::ones({i}, of(at::kHalf));
    file.metadata["key"] += "x";
    write_safetensors(scratch / "x", file);
    const std::string bytes = get(scratch / "x");
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    EXPECT_EQ(length % 8, 0u);
    Header header;
    ASSERT_EQ(parse_header(bytes.substr(8, length), &header), "");
    for (const TensorEntry& entry : header.tensors) {
      const std::uint64_t size = entry.dtype == "F64" ? 8 : entry.dtype == "F32" ? 4 : entry.dtype == "F16" ? 2 : 1;
      EXPECT_EQ(entry.begin % size, 0u) << entry.name;
    }
  }
}

TEST(Safetensors, UnsuitableTensorsAreNamedAndNothingIsWritten) {
  const Scratch scratch;
  const auto write = [&](const std::string& name, const at::Tensor& tensor) {
    return message_of<CheckpointError>([&] { write_safetensors(scratch / "x", {{{name, tensor}}, {}}); });
  };
  EXPECT_HAS(write("w", {}), (scratch / "x").string() + ": 'w' is undefined");
  EXPECT_HAS(write("w", at::ones({2}, of(at::kComplexFloat))), "'w' cannot be written as ComplexFloat");
  EXPECT_HAS(write("w", at::ones({2}, of(at::kFloat)).to_sparse()), "'w' cannot be written");
  EXPECT_HAS(write("__metadata__", at::ones({2}, of(at::kFloat))), "cannot be called __metadata__");
  EXPECT_HAS(write("a\xff", at::ones({2}, of(at::kFloat))), "is not UTF-8");
  EXPECT_TRUE(testing::names_in(scratch.path()).empty());
}

class LoadInto : public ::testing::Test {
 protected:
  LoadInto() {
    file_.tensors["model.weight"] = at::arange(4, of(at::kFloat)).reshape({2, 2});
    file_.tensors["model.bias"] = at::ones({2}, of(at::kFloat));
    file_.tensors["optimizer.step"] = at::ones({}, of(at::kLong));
  }
  std::string load(const std::vector<std::pair<std::string, at::Tensor>>& targets,
                   const std::string& prefix = "model.") {
    return message_of<CheckpointError>([&] { load_into(file_, "runs/x.safetensors", prefix, targets); });
  }
  SafetensorsFile file_;
  at::Tensor weight_ = at::zeros({2, 2}, of(at::kFloat)), bias_ = at::zeros({2}, of(at::kFloat));
};

TEST_F(LoadInto, CopiesInPlaceWhateverTheTargets) {
  weight_.set_requires_grad(true);
  const at::Tensor wide = at::zeros({2, 2, 2}, of(at::kFloat));
  load_into(file_, "x", "model.", {{"weight", weight_}, {"bias", bias_}});
  EXPECT_TRUE(same_bytes(weight_.detach(), file_.tensors["model.weight"]));
  EXPECT_TRUE(same_bytes(bias_, file_.tensors["model.bias"]));
  EXPECT_TRUE(weight_.requires_grad());
  load_into(file_, "x", "model.", {{"weight", wide.select(2, 1)}, {"bias", bias_}});
  EXPECT_TRUE(same_bytes(wide.select(2, 1), file_.tensors["model.weight"]));
  EXPECT_EQ(wide.select(2, 0).sum().item<float>(), 0);
}

TEST_F(LoadInto, Case14OtherShapesAndTypesAreNamedAndNothingChanges) {
  const at::Tensor small = at::zeros({2}, of(at::kFloat)), half = at::zeros({2}, of(at::kHalf));
  EXPECT_EQ(load({{"bias", bias_}, {"weight", small}}),
            "runs/x.safetensors: does not fit: different model.weight (expected F32 [2], found F32 [2, 2])");
  EXPECT_EQ(load({{"bias", half}, {"weight", weight_}}),
            "runs/x.safetensors: does not fit: different model.bias (expected F16 [2], found F32 [2])");
  const std::string both = load({{"weight", small}, {"bias", half}});
  EXPECT_HAS(both, "model.weight (expected F32 [2], found F32 [2, 2])");
  EXPECT_HAS(both, "model.bias (expected F16 [2], found F32 [2])");
  for (const at::Tensor& tensor : {weight_, bias_, small, half}) EXPECT_EQ(tensor.count_nonzero().item<int64_t>(), 0);
}

TEST_F(LoadInto, Case14AcrossDevices) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU is visible";
  const Scratch scratch;
  SafetensorsFile file;
  for (const auto& [name, tensor] : file_.tensors) file.tensors[name] = tensor.to(at::kCUDA);
  write_safetensors(scratch / "gpu", file);
  const SafetensorsFile back = read_safetensors(scratch / "gpu");
  load_into(back, "gpu", "model.", {{"weight", weight_}, {"bias", bias_}});
  EXPECT_TRUE(same_bytes(weight_, file_.tensors["model.weight"]));
  const at::Tensor on_gpu = at::zeros({2, 2}, of(at::kFloat)).to(at::kCUDA);
  load_into(file_, "cpu", "model.", {{"weight", on_gpu}, {"bias", bias_}});
  EXPECT_TRUE(same_bytes(on_gpu.cpu(), file_.tensors["model.weight"]));
}

TEST_F(LoadInto, Case15MissingAndUnexpectedKeysAreNamedTogether) {
  const at::Tensor scale = at::zeros({2}, of(at::kFloat));
  EXPECT_EQ(load({{"weight", weight_}, {"scale", scale}}),
            "runs/x.safetensors: does not fit: missing model.scale; unexpected model.bias");
  EXPECT_EQ(weight_.count_nonzero().item<int64_t>(), 0);
  EXPECT_HAS(load({{"model.weight", weight_}, {"model.bias", bias_}}, ""), "unexpected optimizer.step");
  std::vector<std::pair<std::string, at::Tensor>> many;
  for (int i = 0; i < 100; ++i) many.emplace_back(std::to_string(i), scale);
  EXPECT_HAS(load(many), " and 80 more; unexpected model.bias, model.weight");
}

// The format's own library, where it happens to be installed; nothing else here needs Python.
std::string python(const std::string& script, int* status) {
  FILE* pipe = ::popen(("python3 -c '" + script + "' 2>&1").c_str(), "r");
  std::string text;
  char buffer[4096];
  for (std::size_t count; pipe != nullptr && (count = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
    text.append(buffer, count);
  *status = pipe == nullptr ? -1 : ::pclose(pipe);
  return text;
}

TEST(SafetensorsPython, ReadsOursAndWeReadIts) {
  int status = 0;
  python("import numpy, safetensors.numpy", &status);
  if (status != 0) GTEST_SKIP() << "python3 with the packages safetensors and numpy is not installed";
  const Scratch scratch;
  SafetensorsFile file;
  file.tensors["w"] = at::arange(6, of(at::kFloat)).reshape({2, 3});
  file.tensors["b"] = at::arange(3, of(at::kByte));
  file.tensors["n"] = at::full({}, 1234567890123, of(at::kLong));
  file.metadata["k"] = "v ü";
  write_safetensors(scratch / "ours", file);
  const std::string text = python(
      "import numpy, safetensors, safetensors.numpy as s\n"
      "ours, theirs = \"" +
          (scratch / "ours").string() + "\", \"" + (scratch / "theirs").string() +
          "\"\n"
          "t = s.load_file(ours)\n"
          "print(sorted(t), t[\"w\"].tolist(), t[\"b\"].tolist(), t[\"n\"].item(),\n"
          "      safetensors.safe_open(ours, framework=\"numpy\").metadata()[\"k\"] == \"v \\u00fc\")\n"
          "s.save_file({\"x\": numpy.arange(4, dtype=numpy.float16), \"y\": numpy.ones((2, 0), bool)}, theirs, "
          "{\"a\": \"b\"})",
      &status);
  EXPECT_EQ(status, 0) << text;
  EXPECT_EQ(text, "['b', 'n', 'w'] [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] [0, 1, 2] 1234567890123 True\n");
  const SafetensorsFile back = read_safetensors(scratch / "theirs");
  EXPECT_TRUE(same_bytes(back.tensors.at("x"), at::arange(4, of(at::kHalf))));
  EXPECT_EQ(back.tensors.at("y").sizes(), (at::IntArrayRef{2, 0}));
  EXPECT_EQ(back.metadata.at("a"), "b");
}

}  // namespace
}  // namespace axial::app
