// Writes the corpora that fuzzing starts from, a folder a target: small files as they are meant to be, made here.
#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/data/image_files.h"

namespace axial::data::test {
namespace {

namespace fs = std::filesystem;

Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

Bytes joined(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Bytes ramp(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(i * 37 + i / 7);
  return bytes;
}

class Corpora {
 public:
  explicit Corpora(fs::path root) : root_(std::move(root)) {}

  fs::path next(const std::string& target) {
    fs::create_directories(root_ / target);
    return root_ / target / ("seed-" + std::to_string(number_++));
  }
  void add(const std::string& target, const Bytes& bytes) { write(next(target), bytes); }

 private:
  fs::path root_;
  int number_ = 0;
};

void pictures(Corpora& out) {
  for (const int type :
       {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGB_ALPHA}) {
    for (const int depth : {8, 16}) {
      for (const bool interlaced : {false, true}) {
        write_png(out.next("picture"), {9, 7, depth, type, interlaced}, ramp(9 * 7 * 8));
      }
    }
  }
  for (const int depth : {1, 2, 4}) {
    PngKind kind{11, 5, depth, PNG_COLOR_TYPE_GRAY};
    kind.transparent_gray = 1;
    write_png(out.next("picture"), kind, ramp(11 * 5));
  }
  PngKind palette{6, 6, 8, PNG_COLOR_TYPE_PALETTE};
  palette.palette = {{255, 0, 0}, {0, 255, 0}, {0, 0, 255}};
  write_png(out.next("picture"), palette, Bytes(36, 2));
  for (const int components : {1, 3, 4}) {
    for (const bool progressive : {false, true}) {
      JpegKind kind{40, 23, components, progressive};
      if (components == 3) {
        // Exif: big-endian, one entry, orientation 6
        kind.app1 = {'E', 'x', 'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1,
                     1,   18,  0,   3,   0, 0, 0,   1,   0, 6,  0, 0, 0, 0, 0, 0};
      }
      write_jpeg(out.next("picture"), kind, ramp(40 * 23 * 4));
    }
  }
}

Bytes safetensors(const std::string& header, std::size_t data) {
  Bytes bytes(8);
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof length);
  return joined(joined(bytes, bytes_of(header)), ramp(data));
}

void checkpoints(Corpora& out) {
  const std::vector<std::pair<std::string, std::size_t>> files = {
      {"{}", 0},
      {R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24},
      {R"({"__metadata__":{"axial.progress":"{\"epoch\":1}","k":"é"},"b":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},"c":{"dtype":"I64","shape":[0,7],"data_offsets":[2,2]},"d":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}})",
       5},
      {R"({"__metadata__":{"crc32.a":"00000000","crc32.__metadata__":"00000000"},"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})",
       1},
  };
  for (const auto& [header, data] : files) {
    out.add("safetensors_header", bytes_of(header));
    out.add("safetensors", safetensors(header, data));
  }
}

void sets(Corpora& out) {
  const Bytes labels = {0, 0, 8, 1, 0, 0, 0, 3, 1, 9, 0};
  const Bytes images = joined({0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 4}, ramp(24));
  for (const bool packed : {false, true}) {
    const Bytes first = packed ? gzip(labels) : labels;
    out.add("idx", joined(joined({static_cast<std::uint8_t>(first.size())}, first), packed ? gzip(images) : images));
  }
  for (const std::size_t label_bytes : {1u, 2u}) {
    Bytes record = ramp(label_bytes + 3072);
    std::fill_n(record.begin(), label_bytes, std::uint8_t{3});
    const Bytes fine = {static_cast<std::uint8_t>(label_bytes - 1)};
    out.add("cifar", joined(fine, joined(record, record)));
    out.add("cifar", joined(fine, gzip(record)));
  }
  for (const char* text : {"a/1.png,cat\nb/2.jpg,dog\n", "path,label\r\n\"a,\"\"b\"\".png\",cat\r\n",
                           "\xef\xbb\xbflabel,width,path\ncat,3,x.png\n", "../up.png,a\n/root.png,b\n"}) {
    out.add("image_list", bytes_of(text));
  }
}

void texts(Corpora& out, const fs::path& source) {
  for (const auto& entry : fs::directory_iterator(source / "configs")) {
    if (entry.path().extension() == ".yaml") out.add("config", read_back(entry.path()));
  }
  out.add("config", bytes_of("model: &m {dim: [8, 16], heads: [2, 2]}\noptim: {lr: 1.0e-3, betas: [0.9, 0.99]}\n"));
  out.add("config",
          bytes_of("optim.lr=1e-3\nmodel.dim=[64,128]\nmodel.heads=[2,2]\nmodel.depth=[1,1]\ndata.dir=a b"));
  for (const char* text :
       {"train\n-c\nconfigs/smoke.yaml\noptim.lr=0.1\n--lr\n1e-3\n-o\nruns/a\n--overwrite",
        "train\n--resume=runs/a\n--stop-after\n1.5", "train\n--help", "--version",
        "eval\nruns/a\n--json\nscores.json\n--device\ncuda:1",
        "predict\nruns/a\n0\n-\nx.png\n--top\n3\n--format\ncsv", "config\n--explain\noptim.lr", "completion\nbash",
        "info\n--kernel\n512\n32\n32\n64\n4\nbfloat16", "gradcheck\n--seed\n7\n-v", "runs\nDIR\n--json",
        "report\na\nb\n-o\nr.html", "explain\na\nb.png\n-o\nc.png\n--map\nrows",
        "export\na\n-o\nb.safetensors\n--weights\nema",
        "bench\n--shapes\nseed\n1,2,3,4,2\n--dtype\nbfloat16,tf32\n--size\n8,8"}) {
    out.add("command_line", bytes_of(text));
  }
}

}  // namespace
}  // namespace axial::data::test

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "expected a folder for the corpora and the source folder\n");
    return 2;
  }
  using namespace axial::data::test;
  Corpora out(argv[1]);
  pictures(out);
  checkpoints(out);
  sets(out);
  texts(out, argv[2]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "fuzz_seeds: %s\n", error.what());
  return 1;
}
